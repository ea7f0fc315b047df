"""Backbones: images in, one row of features an image out. A backbone tells its feature count as ``width``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import ranks
from equipoise.errors import UsageError, unknown


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


class Backbone(nn.Module):
    """Images in, features out: the last of its maps, pooled over all places."""

    width: int
    """How many features."""
    map_widths: list[int]
    """Channels of each of its maps."""
    mirror: bool = False
    """Outside training, features are the mean of those of the image and of its mirror image."""
    bf16: bool = False
    """Compute in bfloat16. Maps and features are handed out in 32 bits, and all that follows has them."""

    def compute(self, x: Tensor) -> list[Tensor]:
        """What each stage hands on, from fine to coarse."""
        raise NotImplementedError

    def pool(self, last: Tensor) -> Tensor:
        """Features from the last of the maps."""
        return last.mean((2, 3), dtype=torch.float32)

    def maps(self, x: Tensor) -> list[Tensor]:
        """All maps, for methods that distil them."""
        with self.precision(x):
            maps = self.compute(x)
        return [each.float() for each in maps]

    def look(self, x: Tensor) -> Tensor:
        """Features of the images as they are."""
        with self.precision(x):
            last = self.compute(x)[-1]
        return self.pool(last)

    def precision(self, x: Tensor) -> AbstractContextManager[None]:
        """What computing happens in."""
        if self.bf16:
            return torch.autocast(x.device.type, torch.bfloat16)
        return nullcontext()

    def forward(self, x: Tensor) -> Tensor:
        features = self.look(x)
        if self.mirror and not self.training:
            features = (features + self.look(x.flip(3))) / 2
        return features


T = TypeVar("T", bound=Backbone)


def backbones_of(net: nn.Module) -> list[Backbone]:
    return [part for part in net.modules() if isinstance(part, Backbone)]


@contextmanager
def without(net: nn.Module, trait: Literal["mirror", "bf16"]) -> Iterator[None]:
    """For a while, none of the network's backbones looks at mirror images, or none computes in bfloat16."""
    having = [backbone for backbone in backbones_of(net) if getattr(backbone, trait)]
    for backbone in having:
        setattr(backbone, trait, False)
    try:
        yield
    finally:
        for backbone in having:
            setattr(backbone, trait, True)


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
    """A pre-activation ResNet whose features end in BN and ReLU (so none is negative) and an average over places."""

    def __init__(self, stem: nn.Module, widths: Sequence[int], blocks: int, final_relu: bool = True) -> None:
        super().__init__()
        self.stem = stem
        self.groups = nn.ModuleList()
        for group, width in enumerate(widths):
            first = PreActBlock(widths[max(group - 1, 0)], width, stride=2 if group else 1)
            self.groups.append(nn.Sequential(first, *(PreActBlock(width, width, 1) for _ in range(blocks - 1))))
        self.bn = nn.BatchNorm2d(widths[-1])
        self.final_relu = final_relu
        self.width = widths[-1]
        self.map_widths = list(widths)

    def compute(self, x: Tensor) -> list[Tensor]:
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
    stem = nn.Sequential(
        nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False),
        nn.MaxPool2d(3, 2, padding=1),
    )
    return PreActResNet(stem, (64, 128, 256, 512), 2, final_relu)


class SmallNet(Backbone):
    """Four convolutions for small pictures: glyphs in seconds. Features are non-negative."""

    def __init__(self, channels: int, widths: Sequence[int] = (16, 32, 64, 128), final_relu: bool = True) -> None:
        super().__init__()
        ends = list(widths)
        starts = [channels, *ends[:-1]]
        self.convs = nn.ModuleList(conv3x3(i, o) for i, o in zip(starts, ends, strict=True))
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for o in ends)
        self.final_relu = final_relu
        self.width = ends[-1]
        self.map_widths = ends

    def compute(self, x: Tensor) -> list[Tensor]:
        stages = []
        for depth, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = norm(conv(x))
            if depth < len(self.convs) - 1:
                x = F.max_pool2d(x, 2)  # before the ReLU: the same values, a quarter of the work
            if depth < len(self.convs) - 1 or self.final_relu:
                x = F.relu(x, inplace=True)
            stages.append(x)
        return stages


class Whitening(nn.Module):
    """Patches of 2×2 pixels along their principal axes, each with unit variance, and once more with the sign turned.

    The first batch it is trained on decides, and then it stands still: there is no gradient to compute here, nor one
    for the input of the convolution that follows, which in a plain network are the dearest of all.
    """

    SIDE = 2
    NOISE = 1e-2  # added to variances, so that axes of almost nothing are not blown up

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.axes: Tensor
        self.fitted: Tensor
        pixels = torch.eye(channels * self.SIDE**2).unflatten(1, (channels, self.SIDE, self.SIDE))
        self.register_buffer("axes", torch.cat([pixels, -pixels]))
        self.register_buffer("fitted", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.fitted:
            self.fit(x)
        return F.conv2d(x, self.axes)

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        patches = F.unfold(x, self.SIDE).transpose(1, 2).flatten(0, 1).double()
        count = ranks.total(patches.new_tensor(len(patches)))  # all processes learn the same axes
        centred = patches - ranks.total(patches.sum(0)) / count
        variances, axes = torch.linalg.eigh(ranks.total(centred.T @ centred) / count)
        white = (axes / (variances + self.NOISE).sqrt()).T.to(x.dtype).unflatten(1, self.axes.shape[1:])
        self.axes.copy_(torch.cat([white, -white]))
        self.fitted.fill_(True)


class FastNet(Backbone):
    """For 32×32 images on a CPU: whitened patches, then pairs of convolutions.

    The first of a pair is pooled before its batch norm and ReLU, which then cost a quarter.
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

    def compute(self, x: Tensor) -> list[Tensor]:
        x = F.gelu(self.whitening(x))  # without it, half of the channels would only be the others with the sign turned
        return [x := stage(x) for stage in self.stages]


class MLP(Backbone):
    """For rows of features, such as another model's embeddings: two layers. Features are non-negative."""

    def __init__(self, inputs: int, widths: Sequence[int] = (256, 128), final_relu: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(i, o, bias=False) for i, o in pairwise((inputs, *widths)))
        self.norms = nn.ModuleList(nn.BatchNorm1d(o) for o in widths)
        self.final_relu = final_relu
        self.width, self.map_widths = widths[-1], list(widths)

    def compute(self, x: Tensor) -> list[Tensor]:
        """A layer's output is a map of one place."""
        x, stages = x.flatten(1), []
        for depth, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            x = norm(layer(x))
            if depth < len(self.layers) - 1 or self.final_relu:
                x = F.relu(x)
            stages.append(x[:, :, None, None])
        return stages


BACKBONES: dict[str, Callable[[int, bool], Backbone]] = {
    "resnet32": resnet32,
    "resnet18": resnet18,
    "small": lambda channels, final_relu: SmallNet(channels, final_relu=final_relu),
    "tiny": lambda channels, final_relu: SmallNet(channels, (8, 16, 32), final_relu),
    "fast": lambda channels, final_relu: FastNet(channels, final_relu=final_relu),
    "fast-wide": lambda channels, final_relu: FastNet(channels, (64, 192, 384), final_relu),
    "mlp": lambda inputs, final_relu: MLP(inputs, final_relu=final_relu),
}


def check_backbone(name: str) -> None:
    """Refuse a name that nobody knows."""
    if name not in BACKBONES and not name.startswith("timm:"):
        raise unknown("backbone", name, [*BACKBONES, "timm:NAME"])


@dataclass(frozen=True)
class Architecture:
    """Which network for which images; calling it makes a fresh one, He-initialised, channels-last."""

    name: str
    shape: tuple[int, int, int]
    """Channels, height and width of the images."""
    mirror: bool = False
    """Whether features are averaged over an image and its mirror image, outside training."""
    bf16: bool = False
    """Whether backbones compute in bfloat16."""

    def at(self, size: float) -> Architecture:
        """The same for images of another size, a share of theirs."""
        channels, height, width = self.shape
        return replace(self, shape=(channels, max(round(height * size), 1), max(round(width * size), 1)))

    def __call__(self, final_relu: bool = True) -> Backbone:
        return self.dress(self._net(final_relu))

    def dress(self, net: T) -> T:
        """Give a network all that does not depend on what it is made of."""
        net.mirror, net.bf16 = self.mirror, self.bf16
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def _net(self, final_relu: bool) -> Backbone:
        check_backbone(self.name)
        if self.name.startswith("timm:"):
            from equipoise.learn.timm_net import TimmNet

            return TimmNet(self.name.removeprefix("timm:"), self.shape)
        net = BACKBONES[self.name](self.shape[0], final_relu)
        initialise(net)
        try:
            with torch.no_grad():
                net.eval().look(torch.zeros(1, *self.shape))
        except RuntimeError as error:
            side = f"{self.shape[1]}×{self.shape[2]}"
            raise UsageError(
                f"images of {side} are too small for the backbone {self.name}: choose another, or larger images"
            ) from error
        return net.train()


def initialise(net: nn.Module) -> None:
    """He et al. 2015 for convolutions (fan-out) and layers (fan-in); batch norms start as the identity."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            module.reset_parameters()
