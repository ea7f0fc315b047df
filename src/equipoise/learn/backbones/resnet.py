"""Pre-activation ResNets, as the WA authors' code has them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.learn.backbones.base import Backbone, conv3x3


class PreActBlock(nn.Module):
    """He et al. 2016, Identity Mappings: BN and ReLU before each convolution.

    Where the shape changes, the shortcut is a 1×1 convolution of the activated input, as in the WA authors' code.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv3x3(inputs, outputs, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), conv3x3(outputs, outputs)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x), inplace=True)
        skip = x if self.shortcut is None else self.shortcut(active)
        inner: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active)), inplace=True))
        return inner.add_(skip)


class PreActResNet(Backbone):
    """A pre-activation ResNet whose features end in BN and ReLU, so none is negative."""

    def __init__(self, stem: nn.Module, widths: Sequence[int], blocks: int, final_relu: bool = True) -> None:
        super().__init__()
        self.stem = stem
        self.groups = nn.ModuleList()
        for group, width in enumerate(widths):
            first = PreActBlock(widths[max(group - 1, 0)], width, stride=2 if group else 1)
            self.groups.append(nn.Sequential(first, *(PreActBlock(width, width, 1) for _ in range(blocks - 1))))
        self.bn = nn.BatchNorm2d(widths[-1])
        self.final_relu = final_relu
        self.width, self.map_widths = widths[-1], list(widths)

    def forward_stages(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        stages = [x := group(x) for group in self.groups]
        last = self.bn(stages[-1])
        return [*stages[:-1], F.relu(last, inplace=True) if self.final_relu else last]


def resnet32(channels: int, final_relu: bool = True) -> PreActResNet:
    """For 32×32 images: 3 × 5 blocks of 16, 32, 64 channels; 0.46 M parameters."""
    return PreActResNet(conv3x3(channels, 16), (16, 32, 64), 5, final_relu)


def resnet18(channels: int, final_relu: bool = True) -> PreActResNet:
    """For 224×224 images: 4 × 2 blocks of 64, 128, 256, 512 channels; 11 M parameters.

    As in the WA authors' code the stem is a bare 7×7 convolution and a max-pool: the first block activates.
    """
    stem = nn.Sequential(nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False), nn.MaxPool2d(3, 2, padding=1))
    return PreActResNet(stem, (64, 128, 256, 512), 2, final_relu)
