"""Unknown images: the familiarity score from its definition, calibration, and models that say "unknown"."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise import IncrementalClassifier
from equipoise.app.model_dir import ModelDir
from equipoise.core.tensors import parse
from equipoise.errors import UsageError
from equipoise.learn.unknown import (
    POINTS,
    SLOPE,
    SLOPE_SPREAD,
    Expectation,
    Familiarity,
    class_cosines,
    cosines_without_self,
    mean_features,
)
from tests.conftest import Ran
from tests.folders import glyph_folder

Cli = Callable[..., Ran]


def rows(classes: int, count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draws = np.random.default_rng(seed)
    centres = draws.random((classes, 20))
    labels = np.repeat(np.arange(classes), count)
    return torch.from_numpy(centres[labels] + 0.3 * draws.normal(size=(len(labels), 20))), torch.from_numpy(labels)


def test_cosines_leave_each_row_out_of_its_own_mean() -> None:
    x, y = rows(3, 4)
    means, counts = mean_features(x, y, 3, torch.arange(len(x)))
    found = cosines_without_self(x, y, means, counts).numpy()
    for i in range(len(x)):
        for c in range(3):
            others = [j for j in range(len(x)) if y[j] == c and j != i]
            mean = x[others].mean(0)
            expected = float(x[i] @ mean / x[i].norm() / mean.norm())
            assert found[i, c] == pytest.approx(expected, abs=1e-12)


def test_the_only_image_of_a_class_is_not_compared_with_itself() -> None:
    x, y = rows(2, 1)
    means, counts = mean_features(x, y, 2, torch.arange(len(x)))
    cosines = cosines_without_self(x, y, means, counts)
    assert cosines.diagonal().tolist() == [-1.0, -1.0]


def test_the_expectation_is_the_posterior_mean_of_a_regression() -> None:
    draws = np.random.default_rng(0)
    counts = torch.from_numpy(draws.choice([1.0, 4.0, 25.0], 50))
    values = 3 - 1.5 / counts.sqrt() + torch.from_numpy(0.2 * draws.normal(size=50))
    found = Expectation.fit(values, counts)
    # least squares with one more row for the prior of the slope: (slope − SLOPE·s) / SLOPE_SPREAD, in units of s
    s = values.std(correction=0)
    design = np.column_stack([np.ones(50), counts.numpy() ** -0.5])
    design = np.vstack([design, [0, 1 / SLOPE_SPREAD]])
    target = np.append(values, SLOPE * s / SLOPE_SPREAD)
    base, slope = np.linalg.lstsq(design, target, rcond=None)[0]
    assert found.base == pytest.approx(base)
    assert found.slope == pytest.approx(slope)
    rest = values.numpy() - base - slope * counts.numpy() ** -0.5
    assert found.spread == pytest.approx(rest.std())


def test_the_threshold_is_a_quantile_of_known_images() -> None:
    x, y = rows(4, 30)
    means, counts = mean_features(x, y, 4, torch.arange(len(x)))
    logits = class_cosines(x, means) * 10
    known = Familiarity.fit(logits, cosines_without_self(x, y, means, counts), means, counts)
    assert known.quantiles.shape == (POINTS,)
    scores = known.quantiles
    assert known.threshold(0.9) == pytest.approx(scores[100].item())
    assert known.threshold(1.0) == -torch.inf
    assert (known.scores(x, logits) >= known.threshold(0.9)).double().mean() > 0.85
    far = torch.from_numpy(np.random.default_rng(1).normal(size=(50, 20)))
    assert (known.scores(far, class_cosines(far, means) * 10) >= known.threshold(0.95)).double().mean() < 0.2
    order = torch.tensor([2, 0, 3, 1])
    again = Familiarity.of(known.reordered(order).tensors())
    torch.testing.assert_close(again.scores(x, logits[:, order]), known.scores(x, logits))


# ---- models


def far_and_near(count: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows of three classes, their labels, and rows of other classes."""
    draws = np.random.default_rng(0)
    centres = draws.normal(size=(6, 64))
    labels = np.repeat(np.arange(6), count)
    x = (centres[labels] + 0.5 * draws.normal(size=(len(labels), 64))).astype(np.float32)
    return x[labels < 3], labels[labels < 3], x[labels >= 3]


@pytest.mark.parametrize("method", ["ridge", "ncm", "slda"])
def test_a_classifier_recognises_what_it_does_not_know(method: str) -> None:
    x, y, others = far_and_near()
    classifier = IncrementalClassifier(method=method, holdout=0.0 if method == "ridge" else 0.3)
    classifier.fit(x[::2], y[::2])
    assert classifier.is_unknown(others).mean() > 0.9
    assert classifier.is_unknown(x[1::2]).mean() < 0.2
    assert not classifier.is_unknown(others, accept=1.0).any()
    assert classifier.steps_[-1].ece is not None
    with pytest.raises(UsageError, match="accept must be above 0 and at most 1"):
        classifier.is_unknown(others, accept=0)


def test_predict_says_unknown(cli: Cli, two_steps: Path, tmp_path: Path) -> None:
    """Nothing is known with --accept 0.01, everything with 1."""
    glyph_folder(tmp_path / "photos", [0])
    (line, *_) = cli("predict", two_steps, tmp_path / "photos", "--accept", "0.01").out.splitlines()
    assert "  unknown (nearest: " in line
    rows = [json.loads(line) for line in cli("predict", two_steps, tmp_path / "photos", "--json").out.splitlines()]
    assert {type(row["unknown"]) for row in rows} == {bool}
    table = cli("predict", two_steps, tmp_path / "photos", "--csv", "--accept", "0.01").out.splitlines()
    assert table[0] == "path,class,probability,unknown"
    assert {row.rpartition(",")[2] for row in table[1:]} <= {"true", "false"}
    assert "unknown (" not in cli("predict", two_steps, tmp_path / "photos", "--accept", "1").out
    assert "accept must be above 0" in cli("predict", two_steps, tmp_path / "photos", "--accept", "2").err


def test_probabilities_of_held_out_images_are_calibrated(two_steps: Path) -> None:
    """The temperature of a trained method minimises the loss on held-out images."""
    model = ModelDir(two_steps).load(images=True)
    found = model.temperature
    assert found != 1.0

    def loss(temperature: float) -> float:
        model.temperature = temperature
        probabilities = model.probabilities(model.holdout)
        return float(-probabilities.gather(1, model.holdout.labels[:, None]).log().mean())

    assert loss(found) < min(loss(found * 3), loss(found / 3))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", torch.tensor(-1.0)),
        ("temperature", torch.tensor(float("nan"))),
        ("means", torch.zeros(3)),
        ("counts", torch.zeros(99)),
        ("expected", torch.zeros(1)),
        ("quantiles", torch.zeros(POINTS, dtype=torch.int64)),
    ],
)
def test_damaged_calibration_is_reported(model_path: Path, name: str, value: torch.Tensor) -> None:
    place = ModelDir(model_path)
    tensors = parse((model_path / "model.safetensors").read_bytes(), "") | {f"calibration.{name}": value}
    with pytest.raises((ValueError, RuntimeError)):
        place.load().load_state_dict(tensors)
