"""Numerical trouble: values that are not finite, singular matrices, few or identical images, clocks, two writers.

Each is an error in one sentence, or harmless.
"""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import equipoise as eq
from equipoise.app.model_dir import ModelDir
from equipoise.engine import step as engine_step
from equipoise.errors import LockedError, RunError, UsageError
from equipoise.learn.backbones.small import SmallNet
from equipoise.learn.method import Method
from tests.conftest import Quick, Ran
from tests.folders import tree
from tests.models import QUICK, learn, probabilities

Rows = tuple[np.ndarray, np.ndarray]
PER_CLASS, CLASSES, WIDTH = 6, 4, 16
SOLVED = ("ncm", "ridge", "slda", "fecam", "ranpac", "acil")
"""Methods that are solved in closed form."""


def draw(per_class: int = PER_CLASS, width: int = WIDTH) -> Rows:
    """Return features of classes that are easy to tell apart, and labels."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), per_class)
    noise = random.normal(size=(len(labels), width))
    return np.abs(3 * random.random((CLASSES, width))[labels] + 0.1 * noise).astype(np.float32), labels


def classifier(method: str, **options: Any) -> eq.IncrementalClassifier:
    fields = {"projection": 24} if method in ("ranpac", "acil") else {}
    settings = {"fields": fields, "runtime": {"threads": 1}}
    return eq.IncrementalClassifier(method, epochs=2, settings=settings, **options)


def learn_twice(method: str, rows: Rows, **options: Any) -> eq.IncrementalClassifier:
    """Learn half of the classes, then the other half."""
    features, labels = rows
    clf = classifier(method, **options)
    for mine in (labels < CLASSES // 2, labels >= CLASSES // 2):
        clf.partial_fit(features[mine], labels[mine])
    return clf


def assert_sensible(clf: eq.IncrementalClassifier, features: np.ndarray) -> None:
    """Assert that probabilities are finite and add up to 1."""
    found = clf.predict_proba(features)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)
    assert clf.is_unknown(features).shape == (len(features),)


# ---- features that are not finite


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_features_that_are_not_finite_are_rejected(value: float) -> None:
    features, labels = draw()
    clf = classifier("wa").fit(features, labels)
    before, wrong = clf.predict_proba(features), features.copy()
    wrong[3, 5] = value
    attempts: list[Callable[[], object]] = [
        lambda: classifier("ridge").fit(wrong, labels),
        lambda: clf.partial_fit(wrong, labels + CLASSES),
        lambda: clf.partial_fit(torch.from_numpy(wrong), labels),
        lambda: clf.predict(wrong),
        lambda: clf.is_unknown(wrong),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):  # as scikit-learn's checks demand
            attempt()
    np.testing.assert_array_equal(clf.predict_proba(features), before)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_backbone_that_computes_nan_changes_no_model(
    value: float, two_steps: Path, glyph_steps: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = shutil.copytree(two_steps, tmp_path / "model")
    before = tree(place / "versions")
    with monkeypatch.context() as patch:
        break_backbone(patch, value)
        with pytest.raises(RunError, match="it does not predict finite numbers"):
            learn(place, glyph_steps[2], epochs=1)
        with pytest.raises(RunError, match=r"the loss became (nan|inf) in epoch 1 of step 1"):
            learn(tmp_path / "new", glyph_steps[2], epochs=1)
    assert tree(place / "versions") == before
    assert probabilities(place).isfinite().all()
    assert not ModelDir(tmp_path / "new").exists


def test_a_frozen_backbone_that_computes_nan_creates_no_model(
    glyph_steps: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_backbone(monkeypatch, math.nan)
    overrides = QUICK | {"net": {"backbone": "tiny", "frozen": True}}
    with pytest.raises(UsageError, match="features are too large for 16 bits, or not finite"):
        learn(tmp_path / "model", glyph_steps[0], method="ridge", memory=None, overrides=overrides)
    assert not ModelDir(tmp_path / "model").exists


def break_backbone(patch: pytest.MonkeyPatch, value: float) -> None:
    """Let the network compute one value that is not finite."""
    whole = SmallNet.forward_stages

    def broken(self: SmallNet, x: torch.Tensor) -> list[torch.Tensor]:
        *others, last = whole(self, x)
        mask = torch.zeros_like(last)
        mask[0, 0] = value
        return [*others, last + mask]

    patch.setattr(SmallNet, "forward_stages", broken)


# ---- gradients that are not finite


def poison_gradients(patch: pytest.MonkeyPatch, batches: range, value: float) -> Iterator[int]:
    """Set the gradients of some batches, counted from 0; ``next`` of what is returned is their number so far."""
    numbers, usual = count(), Method.after_backward

    def after(self: Method) -> None:
        usual(self)
        if next(numbers) in batches:
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad.fill_(value)

    patch.setattr(Method, "after_backward", after)
    return numbers


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("method", ["wa", "icarl", "bic"])
def test_gradients_that_are_not_finite_are_an_error(method: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = draw()
    clf = classifier(method).fit(features, labels)
    before = clf.predict_proba(features)
    poison_gradients(monkeypatch, range(1), value)
    with pytest.raises(RunError, match=r"in epoch [12] of step 2: lower train\.lr"):
        clf.partial_fit(features, labels + CLASSES)
    np.testing.assert_array_equal(clf.predict_proba(features), before)


@pytest.mark.parametrize("from_end", [1, 2])
def test_a_run_stores_no_weights_after_the_last_gradient_was_nan(
    from_end: int, quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of the last batch is computed before its gradient spoils the weights."""
    options: dict[str, Any] = {"method": "wa", "steps": "2,8", "overrides": {"train": {"epochs": 1}}}
    batches = count_batches(lambda: quick(**options))
    poison_gradients(monkeypatch, range(batches - from_end, batches), math.nan)
    with pytest.raises(RunError, match=r"not finite|lower train\.lr"):
        quick(**options, out=tmp_path / "run")
    monkeypatch.undo()
    assert len(quick(**options, out=tmp_path / "run").steps) == 2  # the same command completes it


def count_batches(learn_all: Callable[[], object]) -> int:
    """Return how many batches are trained on."""
    with pytest.MonkeyPatch.context() as patch:
        numbers = poison_gradients(patch, range(0), 0.0)
        learn_all()
    return next(numbers)


@pytest.mark.parametrize("method", ["wa", "icarl", "bic"])
def test_a_classifier_refuses_weights_after_the_last_gradient_was_nan(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, labels = draw()
    clf = classifier(method).fit(features, labels)
    before, other = clf.predict_proba(features), classifier(method).fit(features, labels)
    batches = count_batches(lambda: other.partial_fit(features, labels + CLASSES))
    poison_gradients(monkeypatch, range(batches - 1, batches), math.nan)
    with pytest.raises(RunError, match=r"lower train\.lr"):
        clf.partial_fit(features, labels + CLASSES)
    np.testing.assert_array_equal(clf.predict_proba(features), before)


# ---- singular Gram matrices


def constant() -> Rows:
    return np.ones((CLASSES * PER_CLASS, WIDTH), dtype=np.float32), draw()[1]


def duplicates() -> Rows:
    features, labels = draw(1)
    return features.repeat(PER_CLASS, 0), labels.repeat(PER_CLASS)


def equal_classes() -> Rows:
    """Return the same images in all classes."""
    features, labels = draw()
    return np.tile(features[:PER_CLASS], (CLASSES, 1)), labels


def constant_column() -> Rows:
    features, labels = draw()
    features[:, 3] = 7
    return features, labels


def equal_columns() -> Rows:
    features, labels = draw()
    return features[:, :1] * np.linspace(1, 2, WIDTH, dtype=np.float32), labels


def huge() -> Rows:
    features, labels = draw()
    return features * np.float32(1e15), labels


SINGULAR: dict[str, tuple[Callable[[], Rows], float]] = {
    "constant features": (constant, 1 / CLASSES),
    "duplicate images": (duplicates, 1),
    "equal classes": (equal_classes, 1 / CLASSES),
    "one image per class": (lambda: draw(1), 1),
    "fewer images than features": (lambda: draw(3, 40), 1),
    "a constant column": (constant_column, 1),
    "columns that are multiples": (equal_columns, 1 / CLASSES),
    "huge features": (huge, 1),
}
"""Features, and the accuracy to expect: of classes that cannot be told apart, chance."""


@pytest.mark.parametrize("case", SINGULAR)
@pytest.mark.parametrize("method", SOLVED)
@pytest.mark.parametrize("memory", ["all", 0])
def test_a_singular_gram_matrix_is_harmless(memory: Any, method: str, case: str) -> None:
    make, accuracy = SINGULAR[case]
    features, labels = make()
    clf = learn_twice(method, (features, labels), backbone="identity", memory=0 if method == "acil" else memory)
    assert_sensible(clf, features)
    assert clf.score(features, labels) >= accuracy
    if case in ("constant features", "equal classes"):
        np.testing.assert_allclose(clf.predict_proba(features), 1 / CLASSES, atol=1e-3)


def all_zero() -> Rows:
    return np.zeros((CLASSES * PER_CLASS, WIDTH), dtype=np.float32), draw()[1]


@pytest.mark.parametrize("method", ["ncm", "fecam"])
def test_directions_of_zeros_are_an_error(method: str) -> None:
    with pytest.raises(RunError, match="all features are zero in step 1: check the images"):
        learn_twice(method, all_zero(), backbone="identity")


@pytest.mark.parametrize("method", ["ridge", "slda", "ranpac", "acil"])
def test_zeros_tell_nothing_apart(method: str) -> None:
    clf = learn_twice(method, all_zero(), backbone="identity")
    np.testing.assert_allclose(clf.predict_proba(all_zero()[0]), 1 / CLASSES, atol=1e-6)


# ---- one image, identical images


def test_one_image_has_no_variance() -> None:
    with pytest.raises(UsageError, match="cannot learn from one sample"):
        classifier("ridge").fit(*(part[:1] for part in draw()))


@pytest.mark.parametrize("method", [*SOLVED, "wa", "icarl", "finetune"])
def test_one_image_of_a_new_class_is_learned(method: str) -> None:
    features, labels = draw()
    clf = classifier(method).fit(features, labels)
    clf.partial_fit(features[:1] + 20, [CLASSES])
    assert clf.steps_[-1].images == 1
    assert_sensible(clf, features)


def test_one_image_per_folder_is_learned(tmp_path: Path) -> None:
    for name, shade in (("dark", 10), ("light", 240)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (24, 24), (shade, shade, shade)).save(tmp_path / "photos" / name / "one.png")
    result = learn(tmp_path / "model", tmp_path / "photos", holdout=None, epochs=2)
    assert (result.images, result.held_out) == (2, 0)
    assert probabilities(tmp_path / "model").isfinite().all()


@pytest.mark.parametrize("method", ["wa", "ridge", "slda"])
def test_identical_images_are_learned(method: str) -> None:
    """Two classes of one grey image each: the network sees no variance at all."""
    pixels = np.full((12, 24, 24, 3), 60, dtype=np.uint8)
    pixels[6:] = 200
    net = {"backbone": "tiny", "frozen": method != "wa"}
    clf = eq.IncrementalClassifier(method, epochs=2, settings={"net": net, "runtime": {"threads": 1}})
    clf.fit(pixels, ["a"] * 6 + ["b"] * 6)
    assert_sensible(clf, pixels)
    clf.partial_fit(pixels[:6], ["the same again"] * 6)
    assert_sensible(clf, pixels)
    assert len({tuple(row) for row in clf.predict_proba(pixels[:6])}) == 1, "equal images get equal answers"


# ---- a clock that goes backwards


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time of day go back by an hour whenever it is asked for."""
    hours, start = count(), time.time()

    class Backwards(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.fromtimestamp(start, UTC) - timedelta(hours=next(hours))

    monkeypatch.setattr(time, "time", lambda: start - 3600 * next(hours))
    monkeypatch.setattr(time, "time_ns", lambda: int((start - 3600 * next(hours)) * 1e9))
    monkeypatch.setattr(engine_step, "datetime", Backwards)


@pytest.mark.usefixtures("backwards")
def test_a_model_does_not_need_the_time_of_day(
    glyph_steps: list[Path], tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    place = tmp_path / "model"
    for folder in glyph_steps[:2]:
        learn(place, folder, epochs=2)
    steps = ModelDir(place).steps()
    assert [step.classes for step in steps] == [list("ABC"), list("DEF")]
    assert steps[0].finished > steps[1].finished, "the clock did go back"
    for step in steps:
        assert min(step.seconds, *step.seconds_by_part.values()) >= 0
        assert step.images_per_second > 0
    history = cli("history", place)
    assert history.code == 0, history.err
    assert history.out.index("A, B, C") < history.out.index("D, E, F")
    assert " -" not in history.out
    assert cli("undo", place).code == 0
    assert [step.classes for step in ModelDir(place).steps()] == [list("ABC")]


@pytest.mark.usefixtures("backwards")
def test_a_run_does_not_need_the_time_of_day(quick: Quick, tmp_path: Path) -> None:
    one = quick(steps="4,3,3", out=tmp_path / "run")
    assert [step.step for step in one.steps] == [1, 2, 3]
    assert all(step.seconds >= 0 and step.images_per_second > 0 for step in one.steps)
    again = quick(steps="4,3,3", out=tmp_path / "run")
    assert [step.step for step in again.steps] == [1, 2, 3]


# ---- two writers


def test_a_second_writer_waits_outside(model_path: Path, glyph_steps: list[Path], cli: Callable[..., Ran]) -> None:
    before = tree(model_path / "versions")
    with ModelDir(model_path).writing():
        for words in (("undo",), ("forget", "A"), ("learn", glyph_steps[2]), ("rename", "A", "Z")):
            done = cli(words[0], model_path, *words[1:])
            assert done.code == 2, done
            assert "another process is writing to" in done.err, done
        assert cli("history", model_path).code == 0, "readers need no lock"
    assert tree(model_path / "versions") == before


def test_of_two_writers_at_once_one_learns(glyph_steps: list[Path], model_path: Path) -> None:
    """Threads stand for processes: each opens the lock file itself."""
    start, errors = threading.Barrier(2), []

    def write() -> None:
        start.wait()
        try:
            with ModelDir(model_path).writing():
                ModelDir(model_path).undo()
                time.sleep(0.2)  # keeps the lock until the other has tried
        except LockedError as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 1
    assert [step.classes for step in ModelDir(model_path).steps()] == [list("ABC")]
    learn(model_path, glyph_steps[2], epochs=1)
