"""Folders of photos as people have them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.app.learn import LearnListener, LearnOptions, learn_folder
from equipoise.app.model_dir import ModelDir
from equipoise.app.photo_folder import FolderScan, SkippedFile, read_images, scan_folder
from equipoise.app.predict import expand_paths, predict
from equipoise.errors import DataError
from tests.folders import glyph_folder, messy_folder
from tests.models import QUICK, learn


def test_the_good_images_of_a_messy_folder_are_learned(tmp_path: Path) -> None:
    expected = messy_folder(tmp_path / "pictures")
    skipped: list[SkippedFile] = []

    class Notes(LearnListener):
        def plan(self, plan: Any, found: FolderScan, seconds: float, epochs_done: int) -> None:
            skipped.extend(found.skipped)

    options = LearnOptions(epochs=3, image_size=32, overrides=QUICK, holdout=0.2)
    result = learn_folder(ModelDir(tmp_path / "m"), tmp_path / "pictures", options, Notes())
    assert result is not None
    assert result.classes == ["Blüte 花", "linked class", "old temple"]
    reasons = {entry.path: entry.reason for entry in skipped}
    assert reasons.keys() == expected.keys()
    for path, reason in expected.items():
        assert reason in reasons[path], path
    assert result.skipped_files == len(expected)
    assert result.images + result.held_out == 14 + 4 + 14 + 8 + 1 - 2
    model = ModelDir(tmp_path / "m").load()
    sources = list(expand_paths([str(tmp_path / "pictures" / "old temple")]))
    assert len([one for one in predict(model, sources) if one.classes]) == len(sources) == 23


def test_folders_behind_links_are_read_once(tmp_path: Path) -> None:
    glyph_folder(tmp_path / "elsewhere", [0])
    (tmp_path / "pictures" / "up").mkdir(parents=True)
    (tmp_path / "pictures" / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "pictures" / "up" / "again").symlink_to(tmp_path / "pictures", target_is_directory=True)
    inside = [file for file in (tmp_path / "elsewhere").rglob("*") if file.is_file()]
    assert len(list(expand_paths([str(tmp_path / "pictures")]))) == len(inside) > 0


def test_strict_rejects_a_messy_folder(tmp_path: Path) -> None:
    messy_folder(tmp_path / "pictures")
    with pytest.raises(DataError, match=r"and \d+ more\); nothing was learned because of --strict"):
        learn_folder(ModelDir(tmp_path / "m"), tmp_path / "pictures", LearnOptions(strict=True, overrides=QUICK))
    assert not ModelDir(tmp_path / "m").exists


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "is not a directory"),
        (lambda root: root.mkdir(), "no class folders with images found"),
        (lambda root: (root / "a").mkdir(parents=True), "no class folders with images found"),
        (lambda root: glyph_folder(root / "train", [0, 1]), "holds splits such as train, not classes: .*/train$"),
        (lambda root: [glyph_folder(root / part, [0]) for part in ("train/x", "test/x")], "use the folder .*/train$"),
    ],
)
def test_folders_without_classes_are_rejected(make: Any, message: str, tmp_path: Path) -> None:
    make(tmp_path / "pictures")
    with pytest.raises(DataError, match=message):
        learn_folder(ModelDir(tmp_path / "m"), tmp_path / "pictures", LearnOptions())
    assert not (tmp_path / "m").exists()


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    glyph_folder(tmp_path, [0])
    (tmp_path / "A").rename(tmp_path / "train")
    assert list(scan_folder(tmp_path).classes) == ["train"]


def test_pixels_of_an_unreadable_file_are_always_the_same(tmp_path: Path) -> None:
    """An interrupted step is recognised by all pixels, and uninitialised memory could hold anything."""
    glyph_folder(tmp_path, [0], count=4)
    (tmp_path / "A" / "001.png").write_bytes(b"rubbish")
    fingerprints = set()
    for value in (7, 8):
        freed = torch.full((4, 3, 24, 24), value, dtype=torch.uint8)
        del freed  # the next tensor of this size may get its memory
        fingerprints.add(read_images(scan_folder(tmp_path), 24)["A"].fingerprint())
    assert len(fingerprints) == 1


def test_names_that_are_not_utf8_are_shown_and_learned(tmp_path: Path) -> None:
    glyph_folder(tmp_path / "pictures", [0, 1])
    (tmp_path / "pictures" / "A").rename(tmp_path / "pictures" / os.fsdecode(b"caf\xe9"))
    result = learn(tmp_path / "m", tmp_path / "pictures", epochs=1)
    assert result.classes == ["B", "caf\\xe9"]


def test_a_link_to_the_folder_itself_is_no_class(tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    glyph_folder(pictures, [0, 1])
    (pictures / "all").symlink_to(pictures, target_is_directory=True)
    (pictures / "above").symlink_to(tmp_path, target_is_directory=True)
    found = scan_folder(pictures)
    assert sorted(found.classes) == ["A", "B"]
    assert {entry.reason for entry in found.skipped} == {"the link leads back to the folder itself"}


def test_circular_links_and_pipes_are_skipped(tmp_path: Path) -> None:
    pictures = glyph_folder(tmp_path / "pictures", [0, 1])
    (pictures / "A" / "loop.jpg").symlink_to("loop.jpg")
    (pictures / "round").symlink_to("round")
    os.mkfifo(pictures / "A" / "pipe.jpg")
    reasons = {entry.path: entry.reason for entry in scan_folder(pictures).skipped}
    assert reasons["A/pipe.jpg"] == "it is not a regular file"
    assert {"A/loop.jpg", "round"} < reasons.keys()
    assert learn(tmp_path / "m", pictures, epochs=1).skipped_files == 3
    predictions = list(predict(ModelDir(tmp_path / "m").load(), expand_paths([str(pictures)])))
    assert {Path(one.path).name for one in predictions if one.error} == {"pipe.jpg", "loop.jpg"}
