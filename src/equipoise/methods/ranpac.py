"""RanPAC: ridge regression on random projections of fixed features."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.methods import Architecture, Range, generator
from equipoise.methods.ridge import Ridge


@dataclass(eq=False)
class RanPAC(Ridge):
    """Ridge on relu(xR) with a random matrix R; without the paper's adapter, which is trained in the first step."""

    projection: Annotated[int, Range(1, 20_000)] = 5000
    """Columns of R (paper: 10,000)."""

    paper = "McDonnell et al., RanPAC: Random Projections and Pre-trained Models for Continual Learning, NeurIPS 2023"
    variants: ClassVar = {"ranpac": {}}
    stores = "class means and one matrix of projected features (or all features)"

    def __post_init__(self) -> None:
        super().__post_init__()

    def build(self, architecture: Architecture) -> None:
        super().build(architecture)
        drawn = torch.randn(self.backbone.width, self.projection, generator=generator("ranpac", self.projection))
        self.random = torch.nn.Buffer(drawn, persistent=False)  # drawn again when it is loaded

    def expanded_width(self, features: int) -> int:
        return self.projection

    def expand(self, features: Tensor) -> Tensor:
        return F.relu(features @ self.random)
