"""The head: one row of weights a class, growing as classes come."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Kind = Literal["linear", "unit", "cosine"]


class Head(nn.Module):
    """Scores from features.

    ``linear``  W φ (+ b)
    ``unit``    rows of W brought to unit L2 norm inside the forward pass: the paper's weight normalisation layer
    ``cosine``  rows and features to unit norm
    A ``scale`` multiplies the scores of the last two; ``learn_scale`` makes it a parameter.
    """

    def __init__(
        self,
        features: int,
        bias: bool = False,
        kind: Kind = "linear",
        scale: float = 1.0,
        learn_scale: bool = False,
    ) -> None:
        super().__init__()
        self.features, self.kind = features, kind
        self.weight = nn.Parameter(torch.empty(0, features))
        self.bias = nn.Parameter(torch.empty(0)) if bias else None
        self.scale: float | nn.Parameter = nn.Parameter(torch.tensor(scale)) if learn_scale else scale

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "linear":
            return F.linear(x, self.weight, self.bias)
        if self.kind == "cosine":
            x = F.normalize(x, dim=1)
        scores = F.linear(x, F.normalize(self.weight, dim=1)) * self.scale
        return scores if self.bias is None else scores + self.bias

    @property
    def classes(self) -> int:
        return len(self.weight)

    @torch.no_grad()
    def grow(self, count: int, redraw: bool = False) -> None:
        """Add ``count`` rows drawn at random; ``redraw`` draws the old ones anew too."""
        old = len(self.weight)
        weight = self._draw(old + count, self.features)
        if not redraw:
            weight[:old] = self.weight
        self.weight = nn.Parameter(weight)
        if self.bias is not None:
            bias = self._draw(old + count)
            if not redraw:
                bias[:old] = self.bias
            self.bias = nn.Parameter(bias)

    @torch.no_grad()
    def keep(self, classes: Tensor) -> None:
        """Only the rows of ``classes`` stay, in that order."""
        self.weight = nn.Parameter(self.weight[classes])
        if self.bias is not None:
            self.bias = nn.Parameter(self.bias[classes])

    def _draw(self, *shape: int) -> Tensor:
        """Uniform in ±1/√features, the usual start of a linear layer, and the authors'."""
        bound = 1 / math.sqrt(self.features)
        return torch.empty(shape, device=self.weight.device).uniform_(-bound, bound)

    def _load_from_state_dict(self, state: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        """Take on as many classes as the state has."""
        rows = state.get(prefix + "weight")
        if rows is not None and len(rows) != len(self.weight):
            self.weight = nn.Parameter(torch.empty(len(rows), self.features, device=self.weight.device))
            if self.bias is not None:
                self.bias = nn.Parameter(torch.empty(len(rows), device=self.weight.device))
        super()._load_from_state_dict(state, prefix, *rest)
