"""Losses that methods share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def distill(logits: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Distillation loss, Eq. 3 of the paper: -Σ q̂ log q over the teacher's classes, averaged over the batch.

    Cross-entropy form, without a T² factor. Further columns of ``logits`` (new classes) are ignored.
    """
    old = teacher.shape[1]
    target = F.softmax(teacher / temperature, dim=1)
    return -(target * F.log_softmax(logits[:, :old] / temperature, dim=1)).sum(1).mean()


def distillation_weight(old: int, new: int) -> float:
    """Return λ = C_old / (C_old + C), the weight of the distillation loss (Sec. 3.1, after BiC)."""
    return old / (old + new)


def weighted_distill(
    logits: Tensor, y: Tensor, teacher: Tensor, temperature: float = 2.0, weight: float | None = None
) -> Tensor:
    """Return (1 - λ) cross-entropy + λ distillation, Eq. 1 of the paper; ``weight`` is λ, if it is not the default."""
    if weight is None:
        old = teacher.shape[1]
        weight = distillation_weight(old, logits.shape[1] - old)
    return (1 - weight) * F.cross_entropy(logits, y) + weight * distill(logits, teacher, temperature)


def distill_groups(logits: Tensor, teacher: Tensor, sizes: Sequence[int], temperature: float = 2.0) -> Tensor:
    """Distil each group of classes with its own softmax, summed over the groups."""
    sizes = [size for size in sizes if size]  # all classes of a step may have been forgotten
    groups = zip(logits[:, : teacher.shape[1]].split(sizes, 1), teacher.split(sizes, 1), strict=True)
    return torch.stack([distill(student, target, temperature) for student, target in groups]).sum()


def sigmoid_distill(logits: Tensor, y: Tensor, teacher: Tensor | None) -> Tensor:
    """Binary cross-entropy over batch and classes; targets are one-hot, but the teacher's sigmoids on old classes."""
    target = F.one_hot(y, logits.shape[1]).to(logits)
    if teacher is not None:
        target[:, : teacher.shape[1]] = teacher.sigmoid()
    return F.binary_cross_entropy_with_logits(logits, target)
