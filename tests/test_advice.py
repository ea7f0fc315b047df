"""Advice after a step: the class that more images would help most, from confusions and a learning curve."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from equipoise import IncrementalClassifier
from equipoise.app.advice import CURVE, PRIOR, most_needed


def test_the_class_with_the_largest_expected_gain_is_named() -> None:
    wrong = torch.tensor([[38, 2, 0], [1, 3, 2], [0, 0, 40]])
    need = most_needed(wrong, torch.tensor([40, 6, 40]), b=0.5)
    assert need is not None
    average = 5 / 86
    error = (3 + PRIOR * average) / (6 + PRIOR)
    assert (need.index, need.confused_with) == (1, 2)
    assert need.error == pytest.approx(error)
    assert need.error_after == pytest.approx(error * (16 / 6) ** -0.5)


def test_a_class_with_many_images_gains_little_from_ten_more() -> None:
    """Class 0 has the larger error, but 400 images: ten more are worth less to it."""
    wrong = torch.tensor([[280, 120], [2, 6]])
    need = most_needed(wrong, torch.tensor([400, 8]), b=0.5)
    assert need is not None
    assert need.index == 1


def test_nothing_is_advised_where_nothing_would_be_gained() -> None:
    assert most_needed(torch.tensor([[50, 0], [0, 50]]), torch.tensor([50, 50]), b=CURVE[1]) is None
    assert most_needed(torch.tensor([[499, 1], [1, 499]]), torch.tensor([500, 500]), b=CURVE[1]) is None


def test_a_step_advises_more_images_of_a_class_that_is_confused() -> None:
    draws = np.random.default_rng(0)
    centres = draws.normal(size=(3, 64))
    centres[2] = centres[1] + 0.35 * draws.normal(size=64)
    counts = [40, 40, 6]
    labels = np.repeat(["apple", "bowl", "cup"], counts)
    rows = np.repeat(centres, counts, 0) + draws.normal(size=(86, 64))
    advice = IncrementalClassifier(method="ridge").fit(rows.astype(np.float32), labels).steps_[-1].advice
    assert advice is not None
    assert advice.startswith("cup: 6 images, sometimes predicted as bowl; more images of cup would help most")
