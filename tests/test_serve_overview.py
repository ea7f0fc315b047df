"""Which step taught a class, and how old and new classes compare, after corrections."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from equipoise import IncrementalClassifier
from equipoise.app.corrections import merge, move, rename
from equipoise.app.forget import forget
from equipoise.app.model_dir import ModelDir
from equipoise.app.stored_features import ids_of

pytest.importorskip("fastapi", reason="the extra serve is not installed")
from equipoise.serve.overview import balance, first_steps

NAMES = "abcd"


def teach(path: Path, name: str) -> None:
    """Teach a class of twelve rows."""
    draws = np.random.default_rng(ord(name[0]))
    rows = (draws.random(32) + 0.3 * draws.random((12, 32))).astype(np.float32)
    model = eq.load(path) if ModelDir(path).exists else IncrementalClassifier(method="ridge")
    model.partial_fit(rows, [name] * 12).save(path)


@pytest.fixture
def place(tmp_path: Path) -> ModelDir:
    """Return a model that has learned a, b, c and d in four steps."""
    for name in NAMES:
        teach(tmp_path / "model", name)
    return ModelDir(tmp_path / "model")


def learned(place: ModelDir) -> dict[object, int]:
    """Return the step that taught each class, in the order of the classes' names."""
    found = first_steps(place.steps())
    assert set(found) == set(place.config().classes)
    return dict(sorted(found.items(), key=str))


def compared(place: ModelDir) -> tuple[int, int] | None:
    """Return how many old and new classes are compared."""
    found = balance(place.steps(), place.config().classes)
    return None if found is None else (found.old_classes, found.new_classes)


def test_steps_of_classes(place: ModelDir) -> None:
    assert learned(place) == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert compared(place) == (3, 1)


def test_the_newest_class_is_merged_into_another(place: ModelDir) -> None:
    merge(place, "c", ["d"])
    assert learned(place) == {"a": 1, "b": 2, "c": 3}
    assert compared(place) == (2, 1)
    teach(place.path, "d")
    assert learned(place) == {"a": 1, "b": 2, "c": 3, "d": 6}
    assert compared(place) == (3, 1)


@pytest.mark.parametrize(("old", "step"), [("a", 1), ("d", 4)])
def test_a_class_gets_the_name_of_one_that_was_merged_away(place: ModelDir, old: str, step: int) -> None:
    merge(place, "c", ["b"])
    rename(place, old, "b")
    others = {"a": 1, "c": 3, "d": 4}
    del others[old]
    assert learned(place) == {**others, "b": step}
    rename(place, "b", "x")
    assert learned(place) == {**others, "x": step}
    teach(place.path, "b")
    assert learned(place) == {**others, "b": 8, "x": step}
    assert compared(place) == (3, 1)


def test_names_that_are_used_again(place: ModelDir) -> None:
    rename(place, "a", "x")
    teach(place.path, "a")
    assert learned(place) == {"a": 6, "b": 2, "c": 3, "d": 4, "x": 1}
    rename(place, "x", "y")
    rename(place, "a", "x")
    assert learned(place) == {"b": 2, "c": 3, "d": 4, "x": 6, "y": 1}
    forget(place, ["x"])
    assert learned(place) == {"b": 2, "c": 3, "d": 4, "y": 1}


def test_a_class_that_was_made_by_moving_images_and_renamed(place: ModelDir) -> None:
    images = ids_of(place.load(images=True).images_by_class()["a"][0])
    move(place, images[:4], "new", create=True)
    rename(place, "new", "newer")
    assert learned(place) == {"a": 1, "b": 2, "c": 3, "d": 4, "newer": 5}
    assert compared(place) == (4, 1)


def test_a_merge_whose_names_are_forgotten(place: ModelDir) -> None:
    merge(place, "c", ["b", "d"])
    teach(place.path, "b")
    forget(place, ["b"])  # nothing says any more that d was merged
    assert compared(place) == (1, 1)
