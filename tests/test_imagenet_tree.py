"""A tree with the layout of ImageNet and 1,000 synsets of tiny images: learning from it, and checking it."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import equipoise as eq
from equipoise.data import check as module
from equipoise.data.check import CheckResult, check
from equipoise.data.decoding import decode
from equipoise.data.sources import load
from equipoise.data.stream import ClassStream
from equipoise.errors import DataError

SYNSETS = [f"n{number:08d}" for number in range(1000)]


def plant(root: Path, synsets: list[str], train: int = 2, val: int = 1) -> Path:
    """Create few images with many names: hard links take no time."""
    root.mkdir(exist_ok=True)
    draws = np.random.default_rng(0)
    pictures = []
    for number in range(5):
        pictures.append(root / f"{number}.jpg")
        Image.fromarray(draws.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(pictures[-1])
    for part, images in (("train", train), ("val", val)):
        for place, synset in enumerate(synsets):
            (root / part / synset).mkdir(parents=True)
            for number in range(images):
                os.link(pictures[(place + number) % 5], root / part / synset / f"{synset}_{number}.JPEG")
    return root


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("imagenet"), SYNSETS)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that ImageNet has two training images and one validation image per class."""
    monkeypatch.setattr(module, "COUNTS", {"train": (2, 2), "val": (1, 1)})
    monkeypatch.setattr(module, "TRAIN_IMAGES", 2000)


# ---- learning from it


@settings(max_examples=300, deadline=None)
@given(size=st.tuples(st.integers(8, 99), st.integers(8, 99)), draw=st.tuples(*[st.floats(0, 1)] * 4))
def test_every_random_crop_is_inside_the_image(size: tuple[int, int], draw: tuple[float, ...]) -> None:
    file = io.BytesIO()
    Image.new("RGB", size, (0, 0, 200)).save(file, "JPEG")
    assert (decode(file.getvalue(), 8, draw)[:, :, 2] > 150).all()


def test_three_steps_of_the_imagenet_protocol(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.study.gallery.MAX_HEIGHT", 2000)  # as with larger thumbnails
    overrides: dict[str, dict[str, Any]] = {
        "stream": {"steps": "400,300,300"},
        "memory": {"size": 1000},
        "data": {"size": 8},
        "net": {"backbone": "tiny"},
        "train": {"epochs": 1, "milestones": []},
        "runtime": {"threads": 1},
    }
    result = eq.run("imagenet1000", method="wa", out=tmp_path / "run", data_root=tree, overrides=overrides)
    assert [step.seen for step in result.steps] == [400, 700, 1000]
    assert json.loads((tmp_path / "run" / "gallery" / "gallery.json").read_text())["rows"] == 250
    with Image.open(tmp_path / "run" / "gallery" / "exemplars.webp") as sheet:
        assert sheet.size == (4 * 8, 250 * 8)


def test_reading_files_equals_decoding_them_one_by_one(tree: Path) -> None:
    data = load("imagenet100-lucir", tree, size=16)
    stream = ClassStream(data, 10, "1993")
    step = stream[3].images
    where = torch.tensor([7, 0, 19])
    crops = torch.rand((3, 4), generator=torch.Generator().manual_seed(0))
    for draws, margin in ((None, 256 / 224), (crops, 1.0)):
        for place, pixels in zip(range(3), step.read(where, draws), strict=True):
            name = stream.names[int(step.labels[where[place]])]
            path = tree / "train" / name / f"{name}_{int(where[place]) % 2}.JPEG"
            one = decode(str(path), 16, None if draws is None else draws[place].tolist(), margin)
            np.testing.assert_array_equal(pixels.permute(1, 2, 0), one)


# ---- checking it


def problems(result: CheckResult) -> list[str]:
    return [problem.what for problem in result.problems]


@pytest.mark.parametrize("name", ["imagenet1000", "imagenet100-lucir"])
def test_a_complete_tree_has_no_problems(name: str, tree: Path, small: None) -> None:
    found = check(name, tree, deep=True)
    assert found.problems == []
    assert found.complete
    assert found.images == {"imagenet1000": {"train": 2000, "val": 1000}}.get(name, {"train": 200, "val": 100})


def test_the_first_hundred_synsets_must_be_imagenets(tree: Path, small: None) -> None:
    assert problems(check("imagenet100", tree)) == ["the 100th synset by name is n00000099 instead of n01855672"]


def test_the_official_counts_are_known(tree: Path) -> None:
    few, other, total = check("imagenet1000", tree).problems
    assert few.what == "classes in train/ whose number of images is not 732 to 1,300"
    assert few.where[0] == "n00000000: 2"
    assert len(few.where) == 1000
    assert few.describe().endswith("n00000007: 2 and 992 more): unpack ILSVRC2012_img_train.tar again")
    assert other.what == "classes in val/ whose number of images is not 50"
    assert total.what == "train/ has 2,000 images instead of ImageNet's 1,281,167"


def nothing(root: Path) -> None:
    for part in ("train", "val"):
        for file in sorted((root / part).rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        (root / part).rmdir()


def flatten(root: Path) -> None:
    for place, file in enumerate(sorted((root / "val").rglob("*.JPEG"))):
        file.rename(root / "val" / f"ILSVRC2012_val_{place:08d}.JPEG")
        file.parent.rmdir()


def one_class_less(root: Path) -> None:
    for file in sorted((root / "train" / SYNSETS[3]).iterdir()):
        file.unlink()
    (root / "train" / SYNSETS[3]).rmdir()


def strange_and_empty(root: Path) -> None:
    (root / "train" / SYNSETS[3]).rename(root / "train" / "n3")
    for file in (root / "val" / SYNSETS[5]).iterdir():
        file.unlink()


PROBLEMS: dict[Callable[[Path], None], list[str]] = {
    nothing: [
        "train/ is missing: unpack ILSVRC2012_img_train.tar into ROOT/train, with one folder per synset",
        "val/ is missing: unpack ILSVRC2012_img_val.tar into ROOT/val, with one folder per synset",
    ],
    flatten: [
        "val/ has 30 images outside of synset folders, as ILSVRC2012_img_val.tar contains them: move each into the "
        "folder of its synset; the development kit lists the synsets in ILSVRC2012_validation_ground_truth.txt",
        "ROOT/train has 30 synset folders, but imagenet1000 needs 1000: …",
    ],
    one_class_less: [
        "ROOT/train has 29 synset folders, but imagenet1000 needs 1000: …",
        "classes in val/ that are not in train/ (n00000003): add them to train/",
        "train/ has 58 images instead of ImageNet's 2,000: unpack ILSVRC2012_img_train.tar again",
    ],
    strange_and_empty: [
        "folders in train/ whose names are not synsets such as n01440764 (n3): move them elsewhere",
        "classes in train/ that are not in val/ (n3): add them to val/",
        "classes in val/ that are not in train/ (n00000003): add them to train/",
        "class folders in ROOT/val without images (n00000005): add some or remove the folders",
    ],
}


@pytest.mark.parametrize("spoil", PROBLEMS, ids=lambda spoil: spoil.__name__)
def test_problems_are_reported(spoil: Callable[[Path], None], tmp_path: Path, small: None, cli) -> None:  # type: ignore[no-untyped-def]
    root = plant(tmp_path / "tree", SYNSETS[:30])
    spoil(root)
    ran = cli("data", "check", "imagenet1000", "--data-root", root)
    assert ran.code == 1
    assert ran.err == ""
    for sentence in PROBLEMS[spoil]:
        assert sentence.replace("ROOT", str(root)).rstrip("…") in ran.out
    assert ran.out.splitlines()[-1].startswith("imagenet1000 is not complete (")
    found = json.loads(cli("data", "check", "imagenet1000", "--data-root", root, "--json").out)
    assert not found["complete"]
    assert len(found["problems"]) == len(ran.out.splitlines()) - 1
    assert all(set(problem) == {"what", "remedy", "where"} for problem in found["problems"])


def test_only_a_deep_check_opens_files(tmp_path: Path, cli) -> None:  # type: ignore[no-untyped-def]
    root = plant(tmp_path / "tree", ["cat", "dog"], train=4, val=2)
    (root / "val" / "cat" / "cut.jpg").write_bytes((root / "0.jpg").read_bytes()[:-200])
    (root / "train" / "dog" / "void.png").touch()
    ran = cli("data", "check", "folder", "--data-root", root)
    assert (ran.code, ran.out) == (0, "complete: folder, 2 classes, images: 9 in train, 5 in val\n")
    deep = cli("data", "check", "folder", "--data-root", root, "--deep")
    assert deep.code == 1
    assert "void.png (the file is empty)" in deep.out
    assert "cut.jpg (image file is truncated" in deep.out


def test_other_data_sets_are_checked_too(tmp_path: Path, cli, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    assert cli("data", "check", "digits").out == "complete: digits, 10 classes, images: 1,438 in train, 359 in test\n"
    assert "cifar-100-python.tar.gz is missing: put it into" in cli("data", "check", "cifar100").out
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"half of it")
    ran = cli("data", "check", "cifar100", "--data-root", tmp_path)
    assert ran.code == 1
    assert "truncated or not the CIFAR-100 archive" in ran.out
    (tmp_path / "pets" / "cat").mkdir(parents=True)
    (tmp_path / "pets" / "dog").mkdir()
    (tmp_path / "pets" / "dog" / "a.jpg").touch()
    ran = cli("data", "check", "folder", "--data-root", tmp_path / "pets")
    assert "without images (cat): add some or remove the folders" in ran.out
    assert (
        "classes with a single image, although one per class is held out for testing (dog): add more images" in ran.out
    )
    (tmp_path / "none").mkdir()
    assert "has no class folders" in cli("data", "check", "folder", "--data-root", tmp_path / "none").out
    for wrong in (("nonsense",), ("imagenet1000",), ("folder", "--data-root", tmp_path / "nowhere"), ()):
        ran = cli("data", "check", *wrong)
        assert ran.code == 2
        assert len(ran.err.splitlines()) == 1


def test_folders_without_permission_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = plant(tmp_path / "tree", ["cat", "dog"])

    def refuse(folder: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("equipoise.data.index._scan", refuse)
    (problem,) = check("folder", root).problems
    assert problem.describe() == f"cannot read {root}/train/cat (Permission denied): check its permissions"


def test_a_class_name_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"tea"):
        folder = tmp_path / os.fsdecode(name)
        folder.mkdir()
        for number in range(2):
            Image.new("RGB", (9, 9), (number, 0, 0)).save(folder / f"{number}.png")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")  # a circular link is not a class
    with pytest.raises(DataError, match=r"the name of the class folder .*caf\? is not UTF-8: rename it"):
        load("folder", tmp_path)
    (problem,) = check("folder", tmp_path).problems
    assert "not UTF-8" in problem.what
    (tmp_path / os.fsdecode(b"caf\xe9")).rename(tmp_path / "coffee")
    assert load("folder", tmp_path).classes == ("coffee", "tea")
    assert check("folder", tmp_path).complete
