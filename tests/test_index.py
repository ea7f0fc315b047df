"""The index of a tree of class folders: packed names, the cache, and its cost."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from equipoise.core.files import digest
from equipoise.core.progress_line import track
from equipoise.data import index as module
from equipoise.data.images import FileStore
from equipoise.data.index import Index, count, is_dir, is_image_name, list_images, pack, unpack
from equipoise.data.sources.folder import open_images
from equipoise.errors import DataError

NAMES = st.lists(
    st.binary(min_size=1, max_size=12).filter(lambda b: not {0, ord("/")} & set(b)).map(os.fsdecode), max_size=6
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a separate cache that includes even the smallest tree."""
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "MIN_CACHED_FILES", 1)
    return tmp_path / "cache" / "index"


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the class folders that were listed."""
    seen: list[str] = []
    scan: Callable[[Path], bytes] = module._scan

    def watched(folder: Path) -> bytes:
        seen.append(folder.name)
        return scan(folder)

    monkeypatch.setattr(module, "_scan", watched)
    return seen


def plant(root: Path, tree: dict[str, Sequence[str]]) -> Path:
    """Create empty files in folders that were last changed long ago."""
    for name, images in tree.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for image in images:
            (root / name / image).touch()
        age(root / name, 1_000_000_000)
    return root


def age(folder: Path, seconds: int) -> None:
    os.utime(folder, (seconds, seconds))


# ---- packed names


@settings(max_examples=60, deadline=None)
@given(tree=st.lists(st.tuples(st.sampled_from(["", "/", "a/", "/x/a/", "/x/b c/", "/x/ä/"]), NAMES), max_size=5))
def test_paths_are_restored_and_their_fingerprint_is_the_published_one(tree: list[tuple[str, list[str]]]) -> None:
    paths = [folder + name for folder, names in tree for name in names]
    index = Index.of(paths)
    assert len(index) == len(paths)
    assert index.paths(np.arange(len(paths))) == paths
    before = "\n".join("/".join(path.rsplit(os.sep, 2)[-2:]) for path in paths)  # run directories store this
    assert FileStore(paths, 8).fingerprint() == digest(os.fsencode(before))


def test_rows_after_an_empty_folder_have_the_right_label() -> None:
    listing = {"a": pack(["1", "2"]), "b": pack([]), "c": pack(["3"])}
    index = Index.of_tree(Path("/tree"), listing)
    assert index.labels().tolist() == [0, 0, 2]
    assert index.paths(np.array([2, 0])) == ["/tree/c/3", "/tree/a/1"]
    assert unpack(listing["a"]) == ["1", "2"]
    assert list(map(count, listing.values())) == [2, 0, 1]


def test_files_whose_names_are_not_utf8_are_read(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    Path(os.fsdecode(folder)).mkdir()
    pixels = torch.randint(256, (12, 12, 3), dtype=torch.uint8)
    for name in (b"\xff.png", "花.png".encode(), b"line\nbreak.png"):
        Image.fromarray(pixels.numpy()).save(os.fsdecode(folder + b"/" + name))
    images = open_images(tmp_path, [os.fsdecode(b"caf\xe9")], size=12)
    assert len(images) == 3
    assert torch.equal(images.read(torch.arange(3)), pixels.permute(2, 0, 1).expand(3, -1, -1, -1))
    assert len(images.fingerprint()) == 16


def test_images_and_folders_are_recognised(tmp_path: Path) -> None:
    assert all(map(is_image_name, ["a.jpg", "b.JPEG", ".c.Png", "d.e.tiff"]))
    assert not any(map(is_image_name, ["a.txt", "jpg", "b.jpg.bak", ""]))
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("dir")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "file").touch()
    with os.scandir(tmp_path) as entries:
        assert sorted(entry.name for entry in entries if is_dir(entry)) == ["dir", "link"]


# ---- the cache


def test_only_changed_folders_are_listed_again(tmp_path: Path, cache: Path, scanned: list[str]) -> None:
    root = plant(tmp_path / "tree", {"a": ["2.jpg", "1.JPEG"], "b": ["x.png", "notes.txt"], "c": ["y.gif"]})
    first = list_images(root, ["a", "b", "c"])
    assert first == {"a": pack(["1.JPEG", "2.jpg"]), "b": pack(["x.png"]), "c": pack(["y.gif"])}
    assert list_images(root, ["a", "b", "c"]) == first
    assert scanned == ["a", "b", "c"]
    (root / "b" / "new.jpg").touch()
    age(root / "b", 1_000_000_001)
    assert list_images(root, ["c", "b"]) == {"c": first["c"], "b": pack(["new.jpg", "x.png"])}
    assert list_images(root, ["a"]) == {"a": first["a"]}  # asking for some classes does not remove others
    assert scanned[3:] == ["b"]
    (root / "a" / "1.JPEG").unlink()  # just now: a second change could leave the time stamp as it is
    assert list_images(root, ["a", "gone"]) == {"a": pack(["2.jpg"])}
    list_images(root, ["a"])
    assert scanned[4:] == ["a", "a"]
    assert not any(root.rglob("*.msgpack"))


@pytest.mark.parametrize("damage", ["cut", "bits", "text", "version", "another tree's", "empty"])
def test_an_invalid_cache_is_written_again(
    damage: str, tmp_path: Path, cache: Path, scanned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = plant(tmp_path / "tree", {"a": ["1.jpg"], "b": ["2.jpg"]})
    expected = list_images(root, ["a", "b"])
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    broken = {
        "cut": whole[: len(whole) // 2],
        "bits": whole.replace(b"1.jpg", b"7.jpg"),
        "text": b"no index",
        "empty": b"",
    }
    if damage == "version":
        monkeypatch.setattr(module, "CACHE_VERSION", 99)
    elif damage == "another tree's":
        list_images(plant(tmp_path / "other", {"a": ["3.jpg"]}), ["a"])
        (other,) = set(cache.iterdir()) - {file}
        file.write_bytes(other.read_bytes())
    else:
        file.write_bytes(broken[damage])
    scanned.clear()
    assert list_images(root, ["a", "b"]) == expected
    assert scanned == ["a", "b"]
    assert list_images(root, ["a", "b"]) == expected
    assert scanned == ["a", "b"]


def test_everything_works_without_a_writable_cache(tmp_path: Path, cache: Path) -> None:
    root = plant(tmp_path / "tree", {"a": ["1.jpg"]})
    cache.parent.write_text("a file where the cache should be")
    assert list_images(root, ["a"]) == {"a": pack(["1.jpg"])}


def test_small_trees_are_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    list_images(plant(tmp_path / "tree", {"a": ["1.jpg"]}), ["a"])
    assert not (tmp_path / "cache").exists()


def test_missing_and_empty_class_folders_are_named(tmp_path: Path) -> None:
    root = plant(tmp_path, {"a": ["1.jpg"], "b": ["readme.md"]})
    with pytest.raises(DataError, match=r"the class folder .*/c is missing: add it"):
        open_images(root, ["a", "c"], 8)
    with pytest.raises(DataError, match=r"no images found in the class folder .*/b"):
        open_images(root, ["a", "b"], 8)


# ---- cost and progress


class FakeEntry:
    """What os.scandir yields for a file."""

    def __init__(self, name: str) -> None:
        self.name = name

    def is_file(self) -> bool:
        return True


real_scandir = os.scandir


@contextmanager
def simulated(folder: Path | int) -> Iterator[Iterator[Any]]:
    if isinstance(folder, int):  # of the cache
        with real_scandir(folder) as found:
            yield found
        return
    yield (FakeEntry(f"{folder.name}_{number * 7919 % 100_003}.JPEG") for number in range(1281))


def test_an_index_as_large_as_imagenet_takes_seconds_and_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    synsets = [f"n{number:08d}" for number in range(1000)]
    root = plant(tmp_path / "train", dict.fromkeys(synsets, ()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", simulated)
        listing = list_images(root, synsets)
    index = Index.of_tree(root, listing)
    fingerprint = FileStore(index, 8).fingerprint()
    assert time.monotonic() - began < 10
    assert len(index) == 1_281_000
    assert index.paths(np.array([1281])) == [f"{root}/n00000001/n00000001_0.JPEG"]
    again = list_images(root, synsets)  # from the cache: the folders themselves are empty
    assert FileStore(Index.of_tree(root, again), 8).fingerprint() == fingerprint
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024


def test_progress_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert list(track("abcd", 4, "reading", "letters")) == list("abcd")
    assert capsys.readouterr().err == "reading: 2 of 4 letters, 0:00:03 left\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    list(track("abcd", 4, "reading", "letters"))
    assert capsys.readouterr().err.startswith("\rreading: 2 of 4 letters, 0:00:03 left\rreading: 3 of 4")
