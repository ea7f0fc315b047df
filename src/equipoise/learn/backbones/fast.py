"""A network that trains fast on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.core import distributed
from equipoise.learn.backbones.base import Backbone, conv3x3


class Whitening(nn.Module):
    """Project 2×2 patches onto their principal axes, scaled to unit variance, and append the negated projections.

    The axes are fitted on the first training batch and then fixed. So neither this layer nor the input of the next
    convolution needs a gradient, and in a plain network those are the most expensive ones.
    """

    SIDE = 2
    NOISE = 1e-2  # added to the variances, so that noise is not amplified

    def __init__(self, channels: int) -> None:
        super().__init__()
        pixels = torch.eye(channels * self.SIDE**2).unflatten(1, (channels, self.SIDE, self.SIDE))
        self.axes: Tensor = nn.Buffer(torch.cat([pixels, -pixels]))
        self.fitted: Tensor = nn.Buffer(torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.fitted:
            self.fit(x)
        return F.conv2d(x, self.axes)

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        patches = F.unfold(x, self.SIDE).transpose(1, 2).flatten(0, 1).double()
        count = distributed.all_reduce_sum(patches.new_tensor(len(patches)))  # all processes fit the same axes
        centred = patches - distributed.all_reduce_sum(patches.sum(0)) / count
        variances, axes = torch.linalg.eigh(distributed.all_reduce_sum(centred.T @ centred) / count)
        white = (axes / (variances + self.NOISE).sqrt()).T.to(x.dtype).unflatten(1, self.axes.shape[1:])
        self.axes.copy_(torch.cat([white, -white]))
        self.fitted.fill_(True)


class FastNet(Backbone):
    """For 32×32 images on a CPU: whitened patches, then pairs of convolutions.

    The first convolution of a pair is pooled before its batch norm and ReLU, which makes these four times cheaper.
    """

    def __init__(self, channels: int, widths: Sequence[int] = (48, 128, 256), final_relu: bool = True) -> None:
        super().__init__()
        self.whitening = Whitening(channels)
        self.stages = nn.ModuleList()
        inputs = len(self.whitening.axes)
        for width in widths:
            first = (conv3x3(inputs, width), nn.MaxPool2d(2), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
            second = (conv3x3(width, width), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
            last = len(self.stages) == len(widths) - 1
            self.stages.append(nn.Sequential(*first, *(second if final_relu or not last else second[:-1])))
            inputs = width
        self.width, self.map_widths = inputs, list(widths)

    def forward_stages(self, x: Tensor) -> list[Tensor]:
        x = F.gelu(self.whitening(x))  # without it, half of the channels would be the negated other half
        return [x := stage(x) for stage in self.stages]

    def split(self) -> tuple[nn.Module, nn.Module]:
        return nn.Sequential(self.whitening, nn.GELU(), *self.stages[:-1]), self.stages[-1]
