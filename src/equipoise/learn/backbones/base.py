"""What every backbone shares: images in, one row of features per image out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.errors import UsageError


class Backbone(nn.Module):
    """A network without its classifier; its features are the last stage's maps, averaged over all positions."""

    width: int
    """Number of features."""
    map_widths: list[int]
    """Channels of each stage's maps."""
    flip_tta: bool = False
    """In evaluation mode, average the features of an image and its horizontal flip."""
    bf16: bool = False
    """Compute in bfloat16. Maps and features are returned in float32."""
    frozen: bool = False
    """Stay in evaluation mode, so that batch norms keep their statistics; set by ``freeze``."""
    grey_to_rgb: bool = False
    """Repeat a grey image in all three channels."""
    input_size: int | None = None
    """Resize images to this side before the first layer; None leaves them as they are."""

    def forward_stages(self, x: Tensor) -> list[Tensor]:
        """Return the output of each stage, from fine to coarse."""
        raise NotImplementedError

    def split(self) -> tuple[nn.Module, nn.Module]:
        """Return the early stages and the last stage as two modules, which share this network's parameters.

        ``last(early(x))`` returns the last stage's maps, and ``last`` does not change its input.
        """
        raise UsageError(
            f"{type(self).__name__} cannot be split into early stages and a last stage: "
            "choose another backbone, such as resnet32, resnet18, small or fast"
        )

    def pool(self, last: Tensor) -> Tensor:
        """Return features from the last stage's maps."""
        return last.mean((2, 3), dtype=torch.float32)

    def forward_before_last(self, x: Tensor) -> list[Tensor]:
        """Return the same and the maps before the last block, where the network has three stages; default: the same."""
        return self.forward_stages(x)

    def maps(self, x: Tensor, before_last: bool = False) -> list[Tensor]:
        """Return the maps of all stages, for methods that distil them, or what ``forward_before_last`` returns."""
        with self.autocast(x):
            maps = (self.forward_before_last if before_last else self.forward_stages)(self.resize(x))
        return [each.float() for each in maps]

    def embed(self, x: Tensor) -> Tensor:
        """Return the features of the images, without test-time augmentation."""
        with self.autocast(x):
            last = self.forward_stages(self.resize(x))[-1]
        return self.pool(last)

    def resize(self, x: Tensor) -> Tensor:
        """Bring images to ``input_size``, and grey ones to three channels where the network needs them."""
        if self.grey_to_rgb:
            x = x.expand(-1, 3, -1, -1)
        if self.input_size is None:
            return x
        size = self.input_size, self.input_size
        return x if x.shape[-2:] == size else F.interpolate(x, size, mode="bicubic", antialias=True)

    def autocast(self, x: Tensor) -> AbstractContextManager[None]:
        return torch.autocast(x.device.type, torch.bfloat16) if self.bf16 else nullcontext()

    def forward(self, x: Tensor) -> Tensor:
        features = self.embed(x)
        if self.flip_tta and not self.training:
            features = (features + self.embed(x.flip(3))) / 2
        return features

    def freeze(self) -> Self:
        """Stop training this network for good."""
        self.frozen = True
        return self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        return super().train(mode and not self.frozen)


def backbones_of(net: nn.Module) -> list[Backbone]:
    """Return all backbones inside a module."""
    return [part for part in net.modules() if isinstance(part, Backbone)]


@contextmanager
def disabled(net: nn.Module, option: Literal["flip_tta", "bf16"]) -> Iterator[None]:
    """Switch an option of all backbones off inside the block."""
    having = [backbone for backbone in backbones_of(net) if getattr(backbone, option)]
    for backbone in having:
        setattr(backbone, option, False)
    try:
        yield
    finally:
        for backbone in having:
            setattr(backbone, option, True)


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def initialise(net: nn.Module) -> None:
    """Initialise convolutions (fan-out) and linear layers (fan-in) after He et al. 2015, batch norms as identity."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            module.reset_parameters()
