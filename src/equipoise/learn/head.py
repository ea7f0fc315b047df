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

    @property
    def bound(self) -> float:
        """Initial weights are uniform between ± this, as in torch's linear layers and the WA authors' code."""
        return 1 / math.sqrt(self.features)

    @torch.no_grad()
    def reinitialise(self) -> None:
        """Reinitialise all rows in place, so that an optimizer keeps them."""
        for _, rows in self._rows():
            rows.uniform_(-self.bound, self.bound)

    @torch.no_grad()
    def grow(self, count: int, reinit: bool = False) -> None:
        """Add ``count`` randomly initialised rows; ``reinit`` initialises the old ones again too."""
        for name, old in self._rows():
            grown = torch.empty(len(old) + count, *old.shape[1:], device=old.device).uniform_(-self.bound, self.bound)
            if not reinit:
                grown[: len(old)] = old
            setattr(self, name, nn.Parameter(grown))

    @torch.no_grad()
    def keep_classes(self, classes: Tensor) -> None:
        """Keep only the rows of ``classes``, in that order."""
        for name, rows in self._rows():
            setattr(self, name, nn.Parameter(rows[classes]))

    def resize(self, rows: int, features: int) -> None:
        """Take the given shape, with undefined values, before a state is loaded."""
        if (rows, features) != tuple(self.weight.shape):
            self.features = features
            for name, old in self._rows():
                shape = (rows, features)[: old.dim()]
                setattr(self, name, nn.Parameter(old.new_empty(shape), old.requires_grad))

    def rows(self) -> list[nn.Parameter]:
        """Return weights and bias, without a learned scale."""
        return [rows for _, rows in self._rows()]

    def _rows(self) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters that have one row per class."""
        return [(name, rows) for name in ("weight", "bias") if (rows := getattr(self, name)) is not None]
