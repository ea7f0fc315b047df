"""Networks for rows of features."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.learn.backbones.base import Backbone


class MLP(Backbone):
    """Two layers for rows of features, such as another model's embeddings. Features are non-negative."""

    def __init__(self, inputs: int, widths: Sequence[int] = (256, 128), final_relu: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(i, o, bias=False) for i, o in pairwise((inputs, *widths)))
        self.norms = nn.ModuleList(nn.BatchNorm1d(o) for o in widths)
        self.final_relu = final_relu
        self.width, self.map_widths = widths[-1], list(widths)

    def forward_stages(self, x: Tensor) -> list[Tensor]:
        """A layer's output counts as a map with one position."""
        x, stages = x.flatten(1), []
        for depth, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            x = norm(layer(x))
            if depth < len(self.layers) - 1 or self.final_relu:
                x = F.relu(x)
            stages.append(x[:, :, None, None])
        return stages


class Identity(Backbone):
    """Rows of features as they are, for methods that need no network of their own."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.width, self.map_widths = inputs, [inputs]

    def forward_stages(self, x: Tensor) -> list[Tensor]:
        return [x]
