"""A small network for small images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.learn.backbones.base import Backbone, conv3x3


class SmallNet(Backbone):
    """Four convolutions, for glyphs and digits in seconds. Features are non-negative."""

    def __init__(self, channels: int, widths: Sequence[int] = (16, 32, 64, 128), final_relu: bool = True) -> None:
        super().__init__()
        self.convs = nn.ModuleList(conv3x3(i, o) for i, o in pairwise((channels, *widths)))
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for o in widths)
        self.final_relu = final_relu
        self.width, self.map_widths = widths[-1], list(widths)

    def forward_stages(self, x: Tensor) -> list[Tensor]:
        stages = []
        for depth, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = norm(conv(x))
            if depth < len(self.convs) - 1:
                x = F.max_pool2d(x, 2)  # before the ReLU: same result, a quarter of the work
            if depth < len(self.convs) - 1 or self.final_relu:
                x = F.relu(x, inplace=True)
            stages.append(x)
        return stages

    def split(self) -> tuple[nn.Module, nn.Module]:
        *early, last = zip(self.convs, self.norms, strict=True)
        activation = (nn.ReLU(inplace=True),)
        pooled = [layer for pair in early for layer in (*pair, nn.MaxPool2d(2), *activation)]
        return nn.Sequential(*pooled), nn.Sequential(*last, *(activation if self.final_relu else ()))
