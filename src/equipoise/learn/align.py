"""The correction of the paper: Weight Aligning, for any linear layer."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from equipoise.errors import UsageError


class LinearLike(Protocol):
    """Anything with a row of weights a class, and perhaps a bias: ``nn.Linear``, our head, a pair of tensors."""

    @property
    def weight(self) -> Tensor: ...

    @property
    def bias(self) -> Tensor | None: ...


def head_norms(head: LinearLike, norm: int = 1) -> Tensor:
    """The norm of each class's weights (Sec. 4.1), one a class.

    >>> layer = torch.nn.Linear(2, 2)
    >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, -4.0], [0.0, 1.0]]))
    >>> head_norms(layer, norm=1), head_norms(layer, norm=2)
    (tensor([7., 1.]), tensor([5., 1.]))
    """
    if norm not in (1, 2):
        raise UsageError(f"norm is {norm}, but it can be 1 or 2")
    weight = head.weight.detach()
    if weight.dtype in (torch.float16, torch.bfloat16):
        weight = weight.float()  # a sum of 512 halves may overflow
    norms: Tensor = torch.linalg.vector_norm(weight, ord=norm, dim=1)
    return norms


@torch.no_grad()
def align_head(head: LinearLike, n_old: int, norm: int = 1, clamp: bool = True) -> float:
    """Scale the rows of new classes, in place, so that their mean norm equals the old ones'; returns γ (Eq. 6, 7).

    γ scales the bias of new classes too, and with it their whole output (Eq. 9, Sec. 5.4). ``clamp`` keeps γ ≤ 1,
    as the authors' code does: new classes are never made stronger.

    >>> layer = torch.nn.Linear(1, 2, bias=False)
    >>> _ = layer.weight.data.copy_(torch.tensor([[1.0], [4.0]]))
    >>> align_head(layer, n_old=1), layer.weight.flatten().tolist()
    (0.25, [1.0, 1.0])
    """
    norms = head_norms(head, norm)
    if not 0 < n_old < len(norms):
        raise UsageError(f"{n_old} of {len(norms)} classes cannot be the old ones: give 1 to {len(norms) - 1}")
    old, new = norms[:n_old].mean(), norms[n_old:].mean()
    if not (torch.isfinite(old) and torch.isfinite(new)):
        raise UsageError("the head's weights are not finite numbers, so there is nothing to align: train again")
    if old == 0 or new == 0:
        which = "old" if old == 0 else "new"
        raise UsageError(f"the weights of all {which} classes are zero, so there is no ratio: train them first")
    if head.bias is not None and len(head.bias) != len(norms):
        raise UsageError(f"the head has {len(norms)} rows but a bias of {len(head.bias)}: they do not belong together")
    gamma = (old / new).item()  # Eq. 7
    if clamp:
        gamma = min(gamma, 1.0)
    head.weight[n_old:] *= gamma  # Eq. 6
    if head.bias is not None:
        head.bias[n_old:] *= gamma
    return gamma


@torch.no_grad()
def unit_head(head: LinearLike) -> None:
    """Bring every class's weights to unit L2 norm, in place: the alternative that Sec. 5.2 finds inferior to WA."""
    norms = head_norms(head, 2).clamp(min=torch.finfo(head.weight.dtype).tiny)
    head.weight.div_(norms[:, None])
    if head.bias is not None:
        head.bias.div_(norms)
