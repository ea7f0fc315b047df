"""Figures of a run against arithmetic written out plainly."""

from __future__ import annotations

import pytest
import torch

from equipoise.engine.evaluate import (
    Predictions,
    confusion,
    error_split,
    forgetting,
    per_class,
    per_step,
    step_metrics,
    summarise,
)


def test_error_split_counts_as_table_1() -> None:
    torch.manual_seed(0)
    labels, said = torch.randint(10, (500,)), torch.randint(10, (500,))
    old = 6
    e = {"e_n": 0, "e_o": 0, "e_on": 0, "e_oo": 0}
    for y, p in zip(labels.tolist(), said.tolist(), strict=True):
        if y != p and y >= old:
            e["e_n"] += 1
        if y != p and y < old:
            e["e_o"] += 1
            e["e_on" if p >= old else "e_oo"] += 1
    split = error_split(labels, said, old)
    assert split == e
    assert split["e_o"] == split["e_on"] + split["e_oo"]


def test_error_split_of_a_first_step_is_all_new() -> None:
    split = error_split(torch.tensor([0, 1, 2]), torch.tensor([0, 2, 2]), 0)
    assert split == {"e_n": 1, "e_o": 0, "e_on": 0, "e_oo": 0}


def test_confusion_and_per_class() -> None:
    labels, said = torch.tensor([0, 0, 0, 2, 2]), torch.tensor([0, 1, 1, 2, 0])
    assert confusion(labels, said, 3).tolist() == [[1, 2, 0], [0, 0, 0], [1, 0, 1]]
    first, second, third = per_class(labels, said, 3)
    assert first == pytest.approx(100 / 3)
    assert second is None
    assert third == 50
    assert per_step(labels, said, [2, 1]) == [pytest.approx(100 / 3), 50.0]


def test_both_averages_and_forgetting() -> None:
    # three steps; accuracies on the classes of each step after each step
    history = [[90.0], [70.0, 80.0], [60.0, 85.0, 88.0]]
    # step 1's classes: best before the last is 90, now 60; step 2's: best 80, now 85
    assert forgetting(history) == pytest.approx(((90 - 60) + (80 - 85)) / 2)
    assert forgetting(history[:1]) is None
    rows = [{"top1": top1, "per_step": line} for top1, line in zip([90.0, 75.0, 77.0], history, strict=True)]
    assert summarise(rows) == {
        "average_without_first": pytest.approx((75 + 77) / 2),
        "average_with_first": pytest.approx((90 + 75 + 77) / 3),
        "last": 77.0,
        "forgetting": pytest.approx(12.5),
    }
    assert summarise(rows[:1])["average_without_first"] is None


def test_step_metrics_tell_before_from_after() -> None:
    labels = torch.tensor([0, 1, 2, 3])
    after = Predictions(labels, torch.tensor([0, 1, 2, 0]), torch.tensor([True] * 4), torch.ones(4))
    before = Predictions(labels, torch.tensor([3, 2, 2, 3]), torch.tensor([True, False, True, True]), torch.ones(4))
    row = step_metrics(after, before, [2, 2])
    assert (row["top1"], row["top1_uncorrected"], row["top5"], row["top5_uncorrected"]) == (75, 50, 100, 75)
    assert (row["seen"], row["new"], row["step"]) == (4, 2, 2)
    assert (row["e_n"], row["e_on"], row["e_oo"]) == (1, 0, 0)
    assert (row["e_n_uncorrected"], row["e_on_uncorrected"], row["e_oo_uncorrected"]) == (0, 2, 0)
