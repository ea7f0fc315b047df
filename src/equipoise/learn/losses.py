"""Losses that methods share."""

from __future__ import annotations

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
