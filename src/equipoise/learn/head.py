"""The classifier head: one row of weights per class, growing as classes arrive."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Kind = Literal["linear", "unit", "cosine"]


class Head(nn.Module):
    """Logits from features.

    Parameters
    ----------
    features
        Number of input features.
    bias
        Add a bias per class.
    kind
        ``linear`` is Wφ + b; ``unit`` normalises the rows of W to unit L2 norm in the forward pass (the paper's weight
        normalisation layer); ``cosine`` normalises rows and features.
    scale
        Factor of the logits of ``unit`` and ``cosine`` heads.
    learn_scale
        Make the scale a parameter.
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
        logits = F.linear(x, F.normalize(self.weight, dim=1)) * self.scale
        return logits if self.bias is None else logits + self.bias

    @property
    def classes(self) -> int:
        return len(self.weight)

    @torch.no_grad()
    def grow(self, count: int, reinit: bool = False) -> None:
        """Add ``count`` randomly initialised rows; ``reinit`` initialises the old ones again too."""
        old = len(self.weight)
        weight = self._random(old + count, self.features)
        if not reinit:
            weight[:old] = self.weight
        self.weight = nn.Parameter(weight)
        if self.bias is not None:
            bias = self._random(old + count)
            if not reinit:
                bias[:old] = self.bias
            self.bias = nn.Parameter(bias)

    @torch.no_grad()
    def keep_classes(self, classes: Tensor) -> None:
        """Keep only the rows of ``classes``, in that order."""
        self.weight = nn.Parameter(self.weight[classes])
        if self.bias is not None:
            self.bias = nn.Parameter(self.bias[classes])

    def resize(self, rows: int, features: int) -> None:
        """Take the given shape, with undefined values: a state is about to be loaded."""
        if (rows, features) != tuple(self.weight.shape):
            device, self.features, trained = self.weight.device, features, self.weight.requires_grad
            self.weight = nn.Parameter(torch.empty(rows, features, device=device), trained)
            if self.bias is not None:
                self.bias = nn.Parameter(torch.empty(rows, device=device), trained)

    def _random(self, *shape: int) -> Tensor:
        """Draw uniformly from ±1/√features, torch's own initialisation of linear layers and the WA authors'."""
        bound = 1 / math.sqrt(self.features)
        return torch.empty(shape, device=self.weight.device).uniform_(-bound, bound)
