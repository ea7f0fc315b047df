"""Unknown images: the familiarity score from its definition, calibration, and models that say "unknown"."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from equipoise.engine.metrics import calibration_error
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


def rows(classes: int, count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draws = np.random.default_rng(seed)
    centres = draws.random((classes, 20))
    labels = np.repeat(np.arange(classes), count)
    return torch.from_numpy(centres[labels] + 0.3 * draws.normal(size=(len(labels), 20))), torch.from_numpy(labels)


def test_cosines_leave_each_row_out_of_its_own_mean() -> None:
    x, y = rows(3, 4)
    means, counts = mean_features(x, y, 3)
    found = cosines_without_self(x, y, means, counts).numpy()
    for i in range(len(x)):
        for c in range(3):
            others = [j for j in range(len(x)) if y[j] == c and j != i]
            mean = x[others].mean(0)
            expected = float(x[i] @ mean / x[i].norm() / mean.norm())
            assert found[i, c] == pytest.approx(expected, abs=1e-12)


def test_the_only_image_of_a_class_is_not_compared_with_itself() -> None:
    x, y = rows(2, 1)
    means, counts = mean_features(x, y, 2)
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
    means, counts = mean_features(x, y, 4)
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


def test_calibration_error_of_bins_with_equal_numbers() -> None:
    confidence = torch.tensor([0.1, 0.2, 0.8, 0.9])
    correct = torch.tensor([False, True, True, True])
    # two bins: |0.15 − 0.5| and |0.85 − 1|, each with half of the images
    assert calibration_error(confidence, correct, bins=2) == pytest.approx(100 * (0.35 + 0.15) / 2)
    assert calibration_error(confidence[:0], correct[:0]) is None
