"""ResNets: pre-activation ones as in the WA authors' code, and the ResNet-18 for CIFAR of DER and newer papers."""

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
        *early, before, last = self._all_maps(x)
        del before
        return [*early, last]

    def forward_before_last(self, x: Tensor) -> list[Tensor]:
        """PODNet's ResNet-32 has its last block as a fourth stage."""
        return self._all_maps(x) if len(self.groups) == 3 else self.forward_stages(x)

    def _all_maps(self, x: Tensor) -> list[Tensor]:
        """Return the maps of all groups, and before them the maps that enter the last block."""
        *groups, last = self.groups
        x = self.stem(x)
        maps = [x := group(x) for group in groups]
        *blocks, final = last.children()
        for block in blocks:
            x = block(x)
        out = self.bn(final(x))
        return [*maps, x, F.relu(out, inplace=True) if self.final_relu else out]

    def split(self) -> tuple[nn.Module, nn.Module]:
        activation = (nn.ReLU(inplace=True),) if self.final_relu else ()
        return nn.Sequential(self.stem, *self.groups[:-1]), nn.Sequential(self.groups[-1], self.bn, *activation)


class PostActBlock(nn.Module):
    """He et al. 2016, Deep Residual Learning: BN after each convolution, ReLU after the sum."""

    def __init__(self, inputs: int, outputs: int, stride: int, relu: bool = True) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(inputs, outputs, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = conv3x3(outputs, outputs), ZeroBatchNorm2d(outputs)
        changes = stride != 1 or inputs != outputs
        skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = skip if changes else nn.Identity()
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.bn1(self.conv1(x)), inplace=True)
        total: Tensor = self.bn2(self.conv2(inner)) + self.shortcut(x)
        return F.relu(total, inplace=True) if self.relu else total


class ZeroBatchNorm2d(nn.BatchNorm2d):
    """A batch norm with an initial scale of 0, so that a residual block starts as an identity (DER's code)."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.weight)


class PostActResNet(Backbone):
    """A ResNet for small images: a 3×3 stem with BN and ReLU, and no pooling before the first group."""

    def __init__(self, channels: int, widths: Sequence[int], blocks: int, final_relu: bool = True) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv3x3(channels, widths[0]), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True))
        self.groups = nn.ModuleList()
        for group, width in enumerate(widths):
            last = group == len(widths) - 1
            first = PostActBlock(widths[max(group - 1, 0)], width, stride=2 if group else 1)
            others = (PostActBlock(width, width, 1, final_relu or not last) for _ in range(blocks - 1))
            self.groups.append(nn.Sequential(first, *others))
        self.width, self.map_widths = widths[-1], list(widths)

    def forward_stages(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        return [x := group(x) for group in self.groups]

    def split(self) -> tuple[nn.Module, nn.Module]:
        return nn.Sequential(self.stem, *self.groups[:-1]), self.groups[-1]


def resnet32(channels: int, final_relu: bool = True) -> PreActResNet:
    """For 32×32 images: 3 × 5 blocks of 16, 32, 64 channels; 0.46 M parameters."""
    return PreActResNet(conv3x3(channels, 16), (16, 32, 64), 5, final_relu)


def resnet18(channels: int, final_relu: bool = True) -> PreActResNet:
    """For 224×224 images: 4 × 2 blocks of 64, 128, 256, 512 channels; 11 M parameters.

    As in the WA authors' code the stem is a bare 7×7 convolution and a max-pool: the first block activates.
    """
    stem = nn.Sequential(nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False), nn.MaxPool2d(3, 2, padding=1))
    return PreActResNet(stem, (64, 128, 256, 512), 2, final_relu)


def resnet18_cifar(channels: int, final_relu: bool = True) -> PostActResNet:
    """For 32×32 images: 4 × 2 blocks of 64, 128, 256, 512 channels with a 3×3 stem; 11 M parameters."""
    return PostActResNet(channels, (64, 128, 256, 512), 2, final_relu)
