"""Metrics that a report computes from the predictions of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from equipoise.engine import metrics
from equipoise.study.report.runs import Array, RunRecord, StepPredictions

BINS = 15
ERRORS = {
    "e_n": "new images misclassified, e(n)",
    "e_on": "old images predicted as new classes, e(o,n)",
    "e_oo": "old images predicted as other old classes, e(o,o)",
}


def new_share(predictions: StepPredictions, old: int) -> tuple[float, float]:
    """Return how many predictions are new classes, and how many test images belong to them, in percent."""
    return 100 * float((predictions.top1 >= old).mean()), 100 * float((predictions.labels >= old).mean())


def calibration_error(predictions: StepPredictions, mask: Array) -> float | None:
    """Return the expected calibration error of some images (Guo et al. 2017, Eq. 3) in points, over 15 equal bins."""
    if not mask.any():
        return None
    confidence, correct = predictions.confidence[mask], (predictions.top1 == predictions.labels)[mask]
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.abs(np.bincount(bins, correct, BINS) - np.bincount(bins, confidence, BINS))
    return 100 * float(gaps.sum() / len(bins))


def confusion(predictions: StepPredictions, classes: int) -> Array:
    """Count how often class i (row) is predicted as class j (column)."""
    labels, top1 = torch.from_numpy(predictions.labels), torch.from_numpy(predictions.top1)
    counts: Array = metrics.confusion(labels, top1, classes).numpy()
    return counts


def accuracy_by_age(run: RunRecord) -> list[dict[str, Any]]:
    """Return the accuracy on each step's classes after that step and every later one; age counts the steps since."""
    return [
        {"learned": learned + 1, "age": at - learned, "accuracy": accuracy}
        for at, step in enumerate(run.steps)
        for learned, accuracy in enumerate(step.per_step)
        if accuracy is not None
    ]


def error_rows(counts: Mapping[str, float], **where: Any) -> list[dict[str, Any]]:
    """Return a row per kind of misclassified images; ``where`` names the bar."""
    kinds = enumerate(ERRORS.items())
    return [{**where, "kind": words, "count": counts[name], "order": order} for order, (name, words) in kinds]


def error_cells(counts: Mapping[str, float], suffix: str = "") -> dict[str, float]:
    """Return the counts by the symbols of the paper, such as e(n)."""
    return {f"{words.rpartition(', ')[2]}{suffix}": counts[name] for name, words in ERRORS.items()}
