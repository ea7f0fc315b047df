"""Tiny-ImageNet-100: folders and archive are read alike, and files that are not what they claim to be are refused."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import equipoise as eq
from equipoise.data.check import check
from equipoise.data.decoding import decode
from equipoise.data.sources import load, tiny_imagenet
from equipoise.data.sources.folder import MEAN, STD
from equipoise.errors import DataError, UsageError

NAME = "tiny-imagenet-100"
SYNSETS = [f"n{number:08d}" for number in range(100)]
FIRST = f"{NAME}/train/{SYNSETS[0]}"


def jpeg(mode: str = "RGB") -> bytes:
    file, draws = io.BytesIO(), np.random.default_rng(0)
    shape = (64, 64) if mode == "L" else (64, 64, 3)
    Image.fromarray(draws.integers(0, 256, shape, dtype=np.uint8)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plant 100 synsets with two training images and one test image each; one in ten is grey."""
    root = tmp_path_factory.mktemp("tiny")
    colour, grey = jpeg(), jpeg("L")
    for part, count in (("train", 2), ("val", 1)):
        for number, synset in enumerate(SYNSETS):
            folder = root / NAME / part / synset
            folder.mkdir(parents=True)
            for image in range(count):
                (folder / f"{synset}_{image}.JPEG").write_bytes(grey if number % 10 == 0 and image == 0 else colour)
    (root / NAME / "words.txt").write_text("n00000000\tfirst\n")
    return root


def pack(root: Path, out: Path, change: Callable[[tarfile.TarFile], None] | None = None) -> Path:
    """Write the archive of a tree with the last synsets first, and what ``change`` adds to it."""
    out.mkdir(exist_ok=True)
    with tarfile.open(out / f"{NAME}.tar.gz", "w:gz", compresslevel=1) as tar:
        for file in sorted((root / NAME).rglob("*"), reverse=True):
            tar.add(file, file.relative_to(root).as_posix(), recursive=False)
        if change is not None:
            change(tar)
    return out


def add(name: str, data: bytes = b"", **fields: Any) -> Callable[[tarfile.TarFile], None]:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    for field, value in fields.items():
        setattr(entry, field, value)
    return lambda tar: tar.addfile(entry, io.BytesIO(data))


@pytest.fixture(scope="module")
def archive(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tree, tmp_path_factory.mktemp("packed"))


def test_folder_root_and_archive_are_read_alike(
    tree: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(archive.rglob("*"))
    found = [load(NAME, tree), load(NAME, tree / NAME), load(NAME, archive)]
    monkeypatch.setenv("EQUIPOISE_DATA", str(archive))
    found.append(load(NAME))
    for data in found:
        assert data.classes == tuple(SYNSETS)
        assert data.train.labels.tolist() == [label for label in range(100) for _ in range(2)]
        assert data.test.labels.tolist() == list(range(100))
        assert data.train.store.shape == (3, 64, 64)
        assert data.train.fingerprint() == found[0].train.fingerprint()
        assert data.test.fingerprint() == found[0].test.fingerprint()
        assert (data.augment.mean, data.augment.std, data.augment.pad, data.augment.flip) == (MEAN, STD, 8, True)
    pixels = found[0].train.read()
    for row in (0, 1, 199):
        path = tree / NAME / "train" / SYNSETS[row // 2] / f"{SYNSETS[row // 2]}_{row % 2}.JPEG"
        np.testing.assert_array_equal(pixels[row].permute(1, 2, 0), decode(str(path), 64))
    assert torch.equal(pixels[0, 0], pixels[0, 2])  # grey
    assert sorted(archive.rglob("*")) == before  # nothing is unpacked
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_the_size_is_an_option(archive: Path) -> None:
    data = load(NAME, archive, size=16)
    assert data.test.store.shape == (3, 16, 16)
    assert data.augment.pad == 2
    for size in (4, 1000):
        with pytest.raises(UsageError, match=r"data\.size must be (between 8 and|at most 256 pixels)"):
            load(NAME, archive, size=size)


def test_steps_are_learned(archive: Path, tmp_path: Path) -> None:
    overrides: dict[str, dict[str, Any]] = {
        "data": {"size": 16},
        "stream": {"steps": 2},
        "memory": {"size": 100},
        "net": {"backbone": "tiny"},
        "train": {"epochs": 1, "first_epochs": 1},
        "runtime": {"threads": 1},
    }
    result = eq.run(NAME, method="wa", out=tmp_path / "run", data_root=archive, overrides=overrides)
    assert [step.seen for step in result.steps] == [50, 100]


# ---- archives that are not what they claim to be


def link(kind: bytes) -> Callable[[tarfile.TarFile], None]:
    return add(f"{FIRST}/link.JPEG", type=kind, linkname="/etc/passwd")


HOSTILE = {
    "parent": (add(f"{NAME}/../../evil.JPEG"), "leads out of the archive"),
    "absolute": (add("/etc/evil.JPEG"), "leads out of the archive"),
    "symlink": (link(tarfile.SYMTYPE), "is a link, a device or a sparse file"),
    "hard link": (link(tarfile.LNKTYPE), "is a link, a device or a sparse file"),
    "device": (link(tarfile.CHRTYPE), "is a link, a device or a sparse file"),
    "pipe": (link(tarfile.FIFOTYPE), "is a link, a device or a sparse file"),
    "large": (add(f"{FIRST}/big.JPEG", bytes(2**20 + 1)), r"has 1,048,577 bytes, and .* at most 1,048,576 per file"),
    "large text": (add(f"{NAME}/words2.txt", bytes(2**20 + 1)), "has 1,048,577 bytes"),
    "twice": (add(f"{FIRST}/{SYNSETS[0]}_0.JPEG", jpeg()), "is in the archive twice"),
    "not an image": (add(f"{FIRST}/\x1b.JPEG", b"not an image"), r"cannot read .*\\x1b\.JPEG' as an image \("),
    "empty image": (add(f"{FIRST}/x.JPEG"), r"cannot read .*x\.JPEG' as an image \("),
    "cut image": (add(f"{FIRST}/x.JPEG", jpeg()[:-300]), r"cannot read .*x\.JPEG' as an image \(.*truncated"),
    "no synset": (add(f"{NAME}/val/cats/x.JPEG", jpeg()), "has a folder 'cats', which is not a synset"),
    "more in train": (add(f"{NAME}/train/n99999999/x.JPEG", jpeg()), r"in train/ that are not in val/ \(n99999999\)"),
    "more in val": (add(f"{NAME}/val/n99999999/x.JPEG", jpeg()), r"in val/ that are not in train/ \(n99999999\)"),
    "no images": (add(f"{NAME}/val/n99999999/x.txt"), "val/n99999999 has no images"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused(name: str, tree: Path, tmp_path: Path) -> None:
    change, message = HOSTILE[name]
    pack(tree, tmp_path / "in", change)
    with pytest.raises(DataError, match=message) as caught:
        load(NAME, tmp_path / "in", size=8)
    assert f"{NAME}.tar.gz" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).rpartition(": ")[2] in ("get the archive again", "move it elsewhere")
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == [f"{NAME}.tar.gz"]


def test_files_beside_the_images_are_ignored(tree: Path, archive: Path, tmp_path: Path) -> None:
    def change(tar: tarfile.TarFile) -> None:
        for name in (f"{FIRST}/._x.JPEG", f"{FIRST}/boxes.txt", f"{FIRST}/a/b.JPEG", "other/train/n1/x.JPEG"):
            add(name, b"not an image")(tar)

    pack(tree, tmp_path, change)
    assert load(NAME, tmp_path).train.fingerprint() == load(NAME, archive).train.fingerprint()


def test_truncated_and_damaged_archives_are_refused(archive: Path, tmp_path: Path) -> None:
    file = tmp_path / f"{NAME}.tar.gz"
    whole = (archive / file.name).read_bytes()
    plain = gzip.decompress(whole)
    damaged = bytearray(plain)
    with tarfile.open(archive / file.name) as tar:
        last = tar.getmembers()[-1].offset
    damaged[last] ^= 1  # tarfile takes a header with a wrong checksum for the end
    nested = tarfile.TarInfo("x")
    nested.type = tarfile.GNUTYPE_LONGNAME
    for content in (
        whole[:-4],
        whole[: len(whole) // 2],
        whole[:100],
        b"",
        plain,
        gzip.compress(plain[: len(plain) // 2], 1),
        gzip.compress(plain[:last], 1),
        gzip.compress(bytes(damaged), 1),
        gzip.compress(nested.tobuf(tarfile.GNU_FORMAT) * 2000, 1),
        gzip.compress(b"not a tar", 1),
    ):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"is truncated or not the archive of .*: get the archive again"):
            load(NAME, tmp_path)


def test_numbers_and_sizes_are_limited(archive: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tiny_imagenet, "MAX_ARCHIVE_BYTES", 100_000)
        with pytest.raises(DataError, match="has more than 100,000 bytes when unpacked"):
            load(NAME, archive)
    monkeypatch.setattr(tiny_imagenet, "MAX_FILES", 50)
    for root in (archive, tree):
        with pytest.raises(DataError, match="exceeds the limit of 50 files"):
            load(NAME, root)


# ---- trees that are not what they claim to be


def val_missing(root: Path) -> None:
    shutil.rmtree(root / "val")


def all_empty(root: Path) -> None:
    shutil.rmtree(root / "train")
    (root / "train" / SYNSETS[0]).mkdir(parents=True)


def one_class_less(root: Path) -> None:
    for part in ("train", "val"):
        shutil.rmtree(root / part / SYNSETS[7])


def differing(root: Path) -> None:
    (root / "val" / SYNSETS[7]).rename(root / "val" / "n00000777")


def linked_file(root: Path) -> None:
    (root / "train" / SYNSETS[0] / "x.JPEG").symlink_to(root / "words.txt")


def linked_class(root: Path) -> None:
    (root / "train" / "n00000777").symlink_to(root / "train" / SYNSETS[0])


def pipe(root: Path) -> None:
    os.mkfifo(root / "train" / SYNSETS[0] / "x.JPEG")


def large(root: Path) -> None:
    (root / "train" / SYNSETS[0] / "x.JPEG").write_bytes(bytes(2**20 + 1))


def broken(root: Path) -> None:
    (root / "val" / SYNSETS[3] / "x.JPEG").write_bytes(b"not an image")


TREES: dict[Callable[[Path], None], str] = {
    val_missing: "has no val/<synset>/ with images",
    all_empty: f"train/{SYNSETS[0]} has no images",
    one_class_less: "has 99 synsets, but tiny-imagenet-100 has 100",
    differing: r"in train/ that are not in val/ \(n00000007\)",
    linked_file: r"x\.JPEG' is a link: replace it",
    linked_class: r"n00000777' is a link: replace it",
    pipe: r"x\.JPEG' is a pipe or a device",
    large: r"x\.JPEG' has 1,048,577 bytes",
    broken: r"cannot read .*n00000003/x\.JPEG' as an image",
}


@pytest.mark.parametrize("spoil", TREES, ids=lambda spoil: spoil.__name__)
def test_hostile_trees_are_refused(spoil: Callable[[Path], None], tree: Path, tmp_path: Path) -> None:
    root = tmp_path / NAME
    shutil.copytree(tree / NAME, root)
    spoil(root)
    for place in (tmp_path, root):
        with pytest.raises(DataError, match=TREES[spoil]) as caught:
            load(NAME, place, size=8)
        assert len(str(caught.value).splitlines()) == 1


def test_a_missing_data_set_is_reported_with_a_remedy(tmp_path: Path, archive: Path, cli) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DataError, match=f"is not in .*: put {NAME}.tar.gz or the unpacked folder"):
        load(NAME, tmp_path)
    (problem,) = check(NAME, tmp_path).problems
    assert "is not in" in problem.what
    ran = cli("data", "check", NAME, "--data-root", archive, "--deep")
    assert (ran.code, ran.out) == (0, f"complete: {NAME}, 100 classes, images: 200 in train, 100 in test\n")
    assert NAME in cli("datasets").out
    assert "tiny-imagenet-lite" in cli("recipes").out


def test_a_lack_of_permission_is_reported(archive: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str | Path, *_: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    for called, root in (("tar_archive.gzip.open", archive), ("sources.tiny_imagenet.os.scandir", tree)):
        with monkeypatch.context() as patch:
            patch.setattr(f"equipoise.data.{called}", refuse)
            with pytest.raises(DataError, match=r"cannot read .* \(Permission denied\): check its permissions"):
                load(NAME, root)


# ---- the real one


@pytest.mark.realdata
def test_the_real_tiny_imagenet() -> None:
    root = os.environ.get("EQUIPOISE_DATA")
    if not root or not any((Path(root) / name).exists() for name in (NAME, f"{NAME}.tar.gz")):
        pytest.skip(f"needs the real Tiny-ImageNet-100: set EQUIPOISE_DATA to the directory of {NAME}.tar.gz")
    data = load(NAME, root)
    assert torch.bincount(data.train.labels).tolist() == [250] * 100
    assert torch.bincount(data.test.labels).tolist() == [50] * 100
    assert (data.classes[0], data.classes[-1]) == ("n01443537", "n03250847")
    pixels = data.test.read()
    assert pixels.shape == (5000, 3, 64, 64)
    grey = (pixels[:, 0] == pixels[:, 1]).flatten(1).all(1)
    assert 0 < grey.sum() < 250
    np.testing.assert_allclose(pixels.double().div(255).mean((0, 2, 3)), MEAN, atol=0.03)
