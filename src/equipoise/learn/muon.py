"""Muon (Jordan et al. 2024): an optimizer that orthogonalises the updates of convolutions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of an odd polynomial that moves singular values between 0 and 1 quickly towards 1."""
ITERATIONS = 3


def orthogonal(matrix: Tensor) -> Tensor:
    """Approximate the nearest matrix whose singular values are 1, by Newton–Schulz iterations.

    An iteration is x ← p(xxᵀ) x. All p(xxᵀ) are polynomials in the first xxᵀ, so they are multiplied on its small side;
    the matrix itself, about ten times as long, takes part twice only. That halves the time.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / (wide.norm() + 1e-7)
    gram = x @ x.T
    whole = p = _polynomial(gram)
    for _ in range(ITERATIONS - 1):
        gram = p @ gram @ p
        p = _polynomial(gram)
        whole = p @ whole
    turned: Tensor = whole @ x
    return turned if wide is matrix else turned.T


def _polynomial(gram: Tensor) -> Tensor:
    a, b, c = QUINTIC
    p = b * gram + c * (gram @ gram)
    p.diagonal().add_(a)
    return p


def orthogonal_filters(filters: Tensor) -> Tensor:
    """Apply ``orthogonal`` with one row per filter, in channels-last order, which needs no copy."""
    rows = filters.permute(0, 2, 3, 1)
    return orthogonal(rows.flatten(1)).view(rows.shape).permute(0, 3, 1, 2)


class Muon(torch.optim.Optimizer):
    """Orthogonalised updates for convolutions, SGD with Nesterov momentum for all other parameters.

    The updates of convolutions do not depend on the scale of the loss, and the batch norm that follows makes the scale
    of the filters irrelevant. So each layer's filters are kept at a mean norm of 1.
    """

    def __init__(self, groups: Iterable[Mapping[str, Any]], lr: float, momentum: float, weight_decay: float) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__([dict(group) for group in groups], defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                filters = parameter.dim() == 4
                gradient = parameter.grad if filters else parameter.grad.add(parameter, alpha=group["weight_decay"])
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                buffer = state["momentum_buffer"].mul_(momentum).add_(gradient)
                update = gradient.add(buffer, alpha=momentum)
                if filters:
                    parameter.mul_(math.sqrt(len(parameter)) / parameter.norm())
                    update = orthogonal_filters(update)
                parameter.sub_(update, alpha=lr)
