"""Weight Aligning, the paper's correction, for any linear layer."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from equipoise.errors import UsageError


class LinearLike(Protocol):
    """Anything with one row of weights per class and an optional bias, such as ``nn.Linear``."""

    @property
    def weight(self) -> Tensor: ...

    @property
    def bias(self) -> Tensor | None: ...


def head_norms(head: LinearLike, norm: int = 1) -> Tensor:
    """Return the norm of each class's weight vector (Sec. 4.1).

    >>> layer = torch.nn.Linear(2, 2)
    >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, -4.0], [0.0, 1.0]]))
    >>> head_norms(layer, norm=1), head_norms(layer, norm=2)
    (tensor([7., 1.]), tensor([5., 1.]))
    """
    if norm not in (1, 2):
        raise UsageError(f"norm must be 1 or 2, got {norm}")
    weight = head.weight.detach()
    if weight.dtype in (torch.float16, torch.bfloat16):
        weight = weight.float()  # a sum of 512 half-precision values may overflow
    norms: Tensor = torch.linalg.vector_norm(weight, ord=norm, dim=1)
    return norms


@torch.no_grad()
def align_head(head: LinearLike, n_old: int, norm: int = 1, clamp: bool = True, scale_bias: bool = True) -> float:
    """Scale the new classes' rows in place so that their mean norm equals the old classes'; return γ (Eq. 6, 7).

    γ also scales the bias of new classes, and so their logits as a whole (Eq. 9, Sec. 5.4), unless ``scale_bias`` is
    false. ``clamp`` limits γ to 1 as the authors' code does, so new classes never get larger weights.

    >>> layer = torch.nn.Linear(1, 2, bias=False)
    >>> _ = layer.weight.data.copy_(torch.tensor([[1.0], [4.0]]))
    >>> align_head(layer, n_old=1), layer.weight.flatten().tolist()
    (0.25, [1.0, 1.0])
    """
    norms = head_norms(head, norm)
    if len(norms) < 2:
        raise UsageError(f"cannot align a head of {len(norms)} classes: it needs old and new ones")
    if not 0 < n_old < len(norms):
        raise UsageError(
            f"n_old must be between 1 and {len(norms) - 1} for a head of {len(norms)} classes, got {n_old}"
        )
    old, new = norms[:n_old].mean(), norms[n_old:].mean()
    if not (torch.isfinite(old) and torch.isfinite(new)):
        raise UsageError("cannot align a head whose weights are not finite: train it again")
    if old == 0 or new == 0:
        which = "old" if old == 0 else "new"
        raise UsageError(f"cannot align: the weights of all {which} classes are zero; train them first")
    if head.bias is not None and len(head.bias) != len(norms):
        raise UsageError(f"the head has {len(norms)} rows but its bias has {len(head.bias)} values")
    gamma = (old / new).item()  # Eq. 7
    if clamp:
        gamma = min(gamma, 1.0)
    head.weight[n_old:] *= gamma  # Eq. 6
    if head.bias is not None and scale_bias:
        head.bias[n_old:] *= gamma
    return gamma


@torch.no_grad()
def unit_head(head: LinearLike) -> None:
    """Normalise each class's weights to unit L2 norm, in place (in Sec. 5.2, worse than WA)."""
    norms = head_norms(head, 2).clamp(min=torch.finfo(head.weight.dtype).tiny)
    head.weight.div_(norms[:, None])
    if head.bias is not None:
        head.bias.div_(norms)
