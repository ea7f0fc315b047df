"""Losses that methods share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def distill(scores: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Eq. 3 of the paper: -Σ q̂ log q over the teacher's classes, averaged over the batch.

    Cross-entropy form, and no T² factor. ``scores`` may have more columns (new classes): they take no part.
    """
    old = teacher.shape[1]
    target = F.softmax(teacher / temperature, dim=1)
    return -(target * F.log_softmax(scores[:, :old] / temperature, dim=1)).sum(1).mean()


def old_share(old: int, new: int) -> float:
    """λ = C_old / (C_old + C): how much of the loss is distillation (Sec. 3.1, after BiC)."""
    return old / (old + new)


def distill_each(scores: Tensor, teacher: Tensor, sizes: Sequence[int], temperature: float = 2.0) -> Tensor:
    """Distillation with a softmax of its own for each group of classes, summed over the groups."""
    sizes = [size for size in sizes if size]  # all classes of a step may have been forgotten
    groups = zip(scores[:, : teacher.shape[1]].split(sizes, 1), teacher.split(sizes, 1), strict=True)
    return torch.stack([distill(said, taught, temperature) for said, taught in groups]).sum()


def sigmoid_distill(scores: Tensor, y: Tensor, teacher: Tensor | None) -> Tensor:
    """Binary cross-entropy, averaged over batch and units: one-hot targets, but the teacher's sigmoids on old units."""
    target = F.one_hot(y, scores.shape[1]).to(scores)
    if teacher is not None:
        target[:, : teacher.shape[1]] = teacher.sigmoid()
    return F.binary_cross_entropy_with_logits(scores, target)
