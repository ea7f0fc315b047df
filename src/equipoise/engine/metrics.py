"""Figures computed from predictions. Accuracies are in percent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.engine.results import ClassResult, ErrorCounts, Label, StepResult


def accuracy(correct: Tensor) -> float | None:
    """Return the percentage of true values; None if there are none."""
    return 100 * correct.double().mean().item() if len(correct) else None


def error_counts(labels: Tensor, predicted: Tensor, old: int) -> ErrorCounts:
    """Count misclassified images as in Table 1 of the paper: of new and old classes, and as what they are predicted."""
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
    """Return the mean accuracy of the classes that have images, each counting the same; None if there are none."""
    known = [result.accuracy for result in classes if result.accuracy is not None]
    return sum(known) / len(known) if known else None


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
    return sum(falls) / len(falls) if falls else None


def summarise(results: Sequence[StepResult]) -> dict[str, float | None]:
    """Summarise a run; the paper averages without the first step, iCaRL, PODNet, DER and PyCIL with it."""
    values = [result.accuracy for result in results if result.accuracy is not None] or [0.0]
    return {
        "average_without_first": sum(values[1:]) / len(values[1:]) if len(values) > 1 else None,
        "average_with_first": sum(values) / len(values),
        "last": values[-1],
        "forgetting": forgetting([result.per_step for result in results]),
    }
