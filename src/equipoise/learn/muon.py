"""Muon (Jordan et al. 2024): an optimizer for which an update of a matrix is a direction, the same for all scales."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of an odd polynomial that pulls singular values between 0 and 1 quickly towards 1."""
ITERATIONS = 3


def orthogonal(matrix: Tensor) -> Tensor:
    """About the nearest matrix with singular values of 1, by Newton–Schulz iterations: products only.

    An iteration is x ← p(xxᵀ) x. All p(xxᵀ) are polynomials in the first xxᵀ, so they are multiplied on its small side,
    and the matrix itself, which is some ten times as long, comes in twice only: half the time.
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
    """``orthogonal`` with a row a filter; the order of a row's values is free, so it is channels-last: no copy."""
    rows = filters.permute(0, 2, 3, 1)
    return orthogonal(rows.flatten(1)).view(rows.shape).permute(0, 3, 1, 2)


class Muon(torch.optim.Optimizer):
    """Filters take orthogonal steps and keep their size; all other parameters follow SGD with Nesterov's momentum.

    A filter's update says only in which direction, never how far: it does not depend on the scale of the loss, and the
    filters, followed by a batch norm, need none of their own. So each layer's filters are kept at a mean norm of 1.
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
