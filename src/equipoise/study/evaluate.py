"""What a model says of the test images, and every figure that follows from it. Accuracies are in percent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.data.augment import Augment
from equipoise.data.images import Images
from equipoise.learn.method import Method
from equipoise.learn.runtime import Runtime
from equipoise.learn.trainer import run_over


@dataclass(frozen=True)
class Predictions:
    """One entry a test image."""

    labels: Tensor
    top1: Tensor
    """The class with the highest score."""
    in_top5: Tensor
    """Whether the true class is among the five highest."""
    confidence: Tensor
    """The softmax of the highest score."""
    all_alike: bool = False
    """Whether every image got the same scores, as from a network that has died."""


def predict_all(method: Method, images: Images, augment: Augment, runtime: Runtime) -> Predictions:
    """What matters of the scores is taken from each batch: all scores of ImageNet's test images would be 200 MB."""

    def judge(x: Tensor) -> Tensor:
        scores = method.predict(x).float()
        five = scores.topk(min(5, scores.shape[1]), dim=1).indices
        five = F.pad(five, (0, 5 - five.shape[1]), value=-1)
        spread = torch.stack([scores.softmax(1).amax(1), scores.logsumexp(1)], 1)
        return torch.cat([scores.argmax(1, keepdim=True), five, spread], 1)

    said = run_over(method, judge, images, augment, runtime)
    return Predictions(
        images.labels,
        top1=said[:, 0].long(),
        in_top5=(said[:, 1:6] == images.labels[:, None]).any(1),
        confidence=said[:, 6],
        all_alike=bool((said == said[:1]).all()),
    )


def accuracy(hits: Tensor) -> float:
    return 100 * hits.double().mean().item()


def error_split(labels: Tensor, predicted: Tensor, old: int) -> dict[str, int]:
    """Table 1 of the paper: wrong new images, wrong old ones, and those taken for new and for other old classes."""
    is_old, said_old, wrong = labels < old, predicted < old, labels != predicted
    return {
        "e_n": int((wrong & ~is_old).sum()),
        "e_o": int((wrong & is_old).sum()),
        "e_on": int((is_old & ~said_old).sum()),
        "e_oo": int((is_old & said_old & wrong).sum()),
    }


def confusion(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """How often class i (row) was taken for class j (column)."""
    return torch.bincount(labels * classes + predicted, minlength=classes * classes).view(classes, classes)


def per_class(labels: Tensor, predicted: Tensor, classes: int) -> list[float | None]:
    """Accuracy of each class; None for one without test images."""
    counts = confusion(labels, predicted, classes).double()
    shares = 100 * counts.diagonal() / counts.sum(1)
    return [None if share.isnan() else share.item() for share in shares]


def per_step(labels: Tensor, predicted: Tensor, sizes: Sequence[int]) -> list[float]:
    """Accuracy on the classes of each step so far."""
    step_of = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return [accuracy((labels == predicted)[step_of[labels] == step]) for step in range(len(sizes))]


def step_metrics(after: Predictions, before: Predictions, sizes: Sequence[int]) -> dict[str, Any]:
    """The figures of one step, from predictions after and before the correction; ``sizes`` of the steps so far."""
    seen, new = sum(sizes), sizes[-1]
    return {
        "step": len(sizes),
        "seen": seen,
        "new": new,
        "top1": accuracy(after.top1 == after.labels),
        "top5": accuracy(after.in_top5),
        "top1_uncorrected": accuracy(before.top1 == before.labels),
        "top5_uncorrected": accuracy(before.in_top5),
        "gamma": None,
        **error_split(after.labels, after.top1, seen - new),
        **{f"{k}_uncorrected": v for k, v in error_split(before.labels, before.top1, seen - new).items()},
        "per_step": per_step(after.labels, after.top1, sizes),
        "per_class": per_class(after.labels, after.top1, seen),
    }


def forgetting(history: Sequence[Sequence[float]]) -> float | None:
    """How far each earlier step's classes fell from their best, averaged (Chaudhry et al. 2018, Eq. 3).

    ``history[i][j]`` is the accuracy on the classes of step j after step i. None while there is nothing to forget.
    """
    last = len(history) - 1
    if last < 1:
        return None
    falls = [max(history[i][j] for i in range(j, last)) - history[last][j] for j in range(last)]
    return sum(falls) / len(falls)


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The paper's average leaves the first step out; iCaRL's, PODNet's, DER's and PyCIL's count it in."""
    top1 = [row["top1"] for row in rows]
    return {
        "average_without_first": sum(top1[1:]) / len(top1[1:]) if len(top1) > 1 else None,
        "average_with_first": sum(top1) / len(top1),
        "last": top1[-1],
        "forgetting": forgetting([row["per_step"] for row in rows]),
    }
