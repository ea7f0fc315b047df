"""Metrics computed from predictions. Accuracies are in percent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.engine.results import ClassResult, ErrorCounts, Label, StepResult


@dataclass(frozen=True)
class Metric:
    """An accuracy that tables and charts can show, and its keys."""

    title: str
    accuracy: str
    """Of a step, in StepResult."""
    last: str
    """Of a run, in summary.json, as are the following."""
    average_without_first: str
    average_with_first: str
    forgetting: str | None = None


TOP1 = Metric("top-1", "accuracy", "last", "average_without_first", "average_with_first", "forgetting")
TOP5 = Metric("top-5", "accuracy_top5", "last_top5", "average_top5_without_first", "average_top5_with_first")
METRICS = {"top1": TOP1, "top5": TOP5}


def metrics_for(classes: int) -> list[Metric]:
    """Return the metrics that are worth showing: with five classes or fewer, top-5 accuracy is always 100 %."""
    return [TOP1, TOP5] if classes > 5 else [TOP1]


def accuracy(correct: Tensor) -> float | None:
    """Return the percentage of true values; None if there are no values."""
    return 100 * correct.double().mean().item() if len(correct) else None


def error_counts(labels: Tensor, predicted: Tensor, old: int) -> ErrorCounts:
    """Count misclassified images as in Table 1 of the paper: by true and by predicted kind of class."""
    is_old, as_old, wrong = labels < old, predicted < old, labels != predicted
    return ErrorCounts(
        e_n=int((wrong & ~is_old).sum()),
        e_o=int((wrong & is_old).sum()),
        e_on=int((is_old & ~as_old).sum()),
        e_oo=int((is_old & as_old & wrong).sum()),
        e_no=int((~is_old & as_old).sum()),
    )


def calibration_error(confidence: Tensor, correct: Tensor, bins: int = 15) -> float | None:
    """Return the expected calibration error in percent, over bins with the same number of images each.

    The difference between mean confidence and accuracy in each bin, averaged over all images.
    """
    if not len(confidence):
        return None
    order = confidence.argsort(stable=True)
    gaps = (confidence.double() - correct.double())[order].tensor_split(min(bins, len(order)))
    return 100 * sum(abs(gap.sum().item()) for gap in gaps) / len(order)


def confusion(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Count how often class i (row) is predicted as class j (column)."""
    return torch.bincount(labels * classes + predicted, minlength=classes * classes).view(classes, classes)


def per_class(labels: Tensor, predicted: Tensor, names: Sequence[Label]) -> list[ClassResult]:
    """Return the result of each class."""
    counts = confusion(labels, predicted, len(names))
    totals, correct = counts.sum(1).tolist(), counts.diagonal().tolist()
    return [
        ClassResult(name, 100 * right / total if total else None, right, total)
        for name, right, total in zip(names, correct, totals, strict=True)
    ]


def macro_accuracy(classes: Sequence[ClassResult]) -> float | None:
    """Return the unweighted mean accuracy of the classes that have images; None if there are none."""
    return _mean([result.accuracy for result in classes])


def per_step(labels: Tensor, predicted: Tensor, sizes: Sequence[int]) -> list[float | None]:
    """Return the accuracy on the classes of each step so far."""
    step_of = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return [accuracy((labels == predicted)[step_of[labels] == step]) for step in range(len(sizes))]


def forgetting(history: Sequence[Sequence[float | None]]) -> float | None:
    """Average how far the accuracy of each earlier step's classes fell from its best (Chaudhry et al. 2018, Eq. 3).

    ``history[i][j]`` is the accuracy on the classes of step j after step i. None after a single step.
    """
    last = len(history) - 1
    falls = []
    for j in range(last):
        best = [value for i in range(j, last) if (value := history[i][j]) is not None]
        now = history[last][j]
        if best and now is not None:
            falls.append(max(best) - now)
    return _mean(falls)


def summarise(results: Sequence[StepResult]) -> dict[str, float | None]:
    """Return the content of summary.json."""
    return averages(results) | {"forgetting": forgetting([result.per_step for result in results])}


def averages(results: Sequence[StepResult]) -> dict[str, float | None]:
    """Return both averages and the last value of every metric; None where nothing was evaluated.

    The paper averages without the first step, iCaRL, PODNet, DER and PyCIL with it.
    """
    found: dict[str, float | None] = {}
    for metric in METRICS.values():
        values = [getattr(result, metric.accuracy) for result in results]
        found[metric.average_without_first] = _mean(values[1:])
        found[metric.average_with_first] = _mean(values)
        found[metric.last] = values[-1]
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
