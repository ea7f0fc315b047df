"""Forgetting classes for good."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import equipoise as eq
from equipoise.app.forget import forget
from equipoise.app.model_dir import ModelDir
from equipoise.errors import UsageError
from tests.folders import tree
from tests.models import StopAfter, learn, undo


def test_forgotten_classes_leave_no_trace(model_path: Path, glyph_steps: list[Path]) -> None:
    with pytest.raises(KeyboardInterrupt):  # an interrupted step must go too
        learn(model_path, glyph_steps[2], StopAfter(1))
    files = [file for kind in ("memory", "holdout") for file in (model_path / kind / "B").iterdir()]
    pictures, contents = [np.array(Image.open(file)) for file in files], [file.read_bytes() for file in files]
    logits = ModelDir(model_path).load().method.predict(torch.zeros(2, 3, 24, 24))
    before = {result.name: result.correct for result in ModelDir(model_path).steps()[-1].per_class}
    forgotten = forget(ModelDir(model_path), ["B"])
    assert (forgotten.classes, forgotten.images) == (["B"], len(files))
    left = tree(model_path)
    assert forgotten.scanned == len(left) + 1  # and the lock
    check_gone(model_path, left, pictures, contents)
    after = ModelDir(model_path).load()
    assert after.classes == list("ACDEF")
    torch.testing.assert_close(after.method.predict(torch.zeros(2, 3, 24, 24)), logits[:, [0, 2, 3, 4, 5]])
    for result in ModelDir(model_path).steps()[-1].per_class:
        assert (result.correct or 0) >= (before[result.name] or 0)  # there is one class less to be confused with
    with pytest.raises(UsageError, match="no earlier version to go back to, because `equipoise forget`"):
        undo(model_path)
    accuracy = learn(model_path, glyph_steps[2]).accuracy  # and it learns more
    assert ModelDir(model_path).load().classes == list("ACDEFGHI")
    assert accuracy is not None
    assert accuracy > 40


def check_gone(model: Path, left: dict[str, bytes], pictures: list[np.ndarray], contents: list[bytes]) -> None:
    """Look for class B without the code under test: no picture, no bytes, no name."""
    for file, data in left.items():
        assert "B" not in Path(file).parts
        assert all(content not in data for content in contents), file
        if file.endswith(".png"):
            pixels = np.array(Image.open(model / file))
            assert not any(np.array_equal(pixels, other) for other in pictures), file
        if file.endswith((".json", ".md")):
            assert '"B"' not in data.decode(), file
            assert "| B |" not in data.decode(), file


def test_unknown_classes_and_all_classes_are_rejected(model_path: Path) -> None:
    before = tree(model_path)
    with pytest.raises(UsageError, match="unknown class 'Z'"):
        forget(ModelDir(model_path), ["A", "Z"])
    with pytest.raises(UsageError, match="these are all classes"):
        forget(ModelDir(model_path), list("ABCDEF"))
    assert tree(model_path) == before


def test_an_image_of_two_classes_is_kept_for_the_other_class(tmp_path: Path) -> None:
    """In Python the same image can have two labels."""
    pixels = np.random.default_rng(0).integers(0, 255, (12, 8, 8, 3), dtype=np.uint8)
    pixels[6:9] = pixels[:3]
    clf = eq.IncrementalClassifier(epochs=1, settings={"net": {"backbone": "tiny"}})
    clf.fit(pixels, ["a"] * 6 + ["b"] * 6).save(tmp_path / "m")
    assert forget(ModelDir(tmp_path / "m"), ["a"]).classes == ["a"]
    assert not list((tmp_path / "m").rglob("a/*.png"))
    assert len(list((tmp_path / "m").rglob("b/*.png"))) == 6
