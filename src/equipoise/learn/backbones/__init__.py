"""Backbones by name. ``Architecture`` creates networks for images of one shape."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from equipoise.core.ranges import shown
from equipoise.errors import UsageError, unknown_name
from equipoise.learn.backbones.base import Backbone, initialise
from equipoise.learn.backbones.fast import FastNet
from equipoise.learn.backbones.lite import EfficientNetLite
from equipoise.learn.backbones.mlp import MLP, Identity
from equipoise.learn.backbones.pretrained import load_pretrained
from equipoise.learn.backbones.resnet import resnet18, resnet18_cifar, resnet32
from equipoise.learn.backbones.small import SmallNet
from equipoise.learn.backbones.timm_net import TimmNet, download
from equipoise.learn.backbones.weights import load_weights

T = TypeVar("T", bound=Backbone)

BACKBONES: dict[str, Callable[[int, bool], Backbone]] = {
    "resnet32": resnet32,
    "resnet18": resnet18,
    "resnet18-cifar": resnet18_cifar,
    "small": lambda channels, final_relu: SmallNet(channels, final_relu=final_relu),
    "tiny": lambda channels, final_relu: SmallNet(channels, (8, 16, 32), final_relu),
    "fast": lambda channels, final_relu: FastNet(channels, final_relu=final_relu),
    "fast-wide": lambda channels, final_relu: FastNet(channels, (64, 192, 384), final_relu),
    "lite0": lambda channels, final_relu: EfficientNetLite(channels, 0, final_relu),
    "lite1": lambda channels, final_relu: EfficientNetLite(channels, 1, final_relu),
    "lite2": lambda channels, final_relu: EfficientNetLite(channels, 2, final_relu),
    "mlp": lambda inputs, final_relu: MLP(inputs, final_relu=final_relu),
    "identity": lambda inputs, final_relu: Identity(inputs),
}
"""Constructors: channels (or features) of the input, and whether the features end in a ReLU."""


ROWS = ("mlp", "identity")
"""Backbones for rows of features instead of images."""
PRETRAINED_WEIGHTS = "pretrained"
"""The value of net.weights that stands for installed weights instead of a file."""
HUB = "hub"
"""The value of net.weights with which the user allows a download."""


def check_backbone(name: str) -> None:
    """Raise an error for an unknown name."""
    if name not in BACKBONES and not name.startswith("timm:"):
        raise unknown_name("backbone", name, [*BACKBONES, "timm:NAME"])
    # timm would fetch hf-hub:… by itself, even for an untrusted model
    if name not in BACKBONES and not re.fullmatch(r"timm:[\w.-]+", name, re.ASCII):
        raise UsageError(
            f"{shown(name)} is not the name of a timm network: use timm:NAME, and --weights hub to download"
        )


@dataclass(frozen=True)
class Architecture:
    """Creates networks for images of one shape; calling it returns a new one."""

    name: str
    shape: tuple[int, int, int]
    """Channels, height and width of the images."""
    flip_tta: bool = False
    """Average features over an image and its flip in evaluation mode."""
    bf16: bool = False
    """Compute in bfloat16."""
    weights: str | None = None
    """A safetensors file with pretrained weights, "pretrained" for those that are installed, or "hub" to download."""
    frozen: bool = False
    """Never train the network."""
    input_size: int | None = None
    """Resize images to this side inside the network."""
    grey_to_rgb: bool = False
    """Repeat grey images in three channels, for a network that was trained on colour images."""

    def at(self, size: float) -> Architecture:
        """Return the architecture for images scaled by ``size``."""
        channels, height, width = self.shape
        return replace(self, shape=(channels, max(round(height * size), 1), max(round(width * size), 1)))

    def __call__(self, final_relu: bool = True) -> Backbone:
        """Return a new network, He-initialised or pretrained."""
        check_backbone(self.name)
        if self.input_size is not None and self.shape[1:] == (1, 1):
            raise UsageError("net.input_size is for images, not for rows of features: remove it")
        if self.name.startswith("timm:"):
            made: Backbone = TimmNet(self.name.removeprefix("timm:"), self.shape[0], self.input_size or self.shape[1])
        else:
            made = self._own_net(final_relu)
        net = self._configure(made)
        if self.weights == PRETRAINED_WEIGHTS:
            load_pretrained(net, self.name)
        elif self.weights is not None:
            load_weights(net, self._weights_file(self.weights))
        return net.freeze() if self.frozen else net

    def _weights_file(self, weights: str) -> Path:
        if weights != HUB:
            return Path(weights)
        if not self.name.startswith("timm:"):
            raise UsageError(f"--weights hub is for networks of timm, not for {self.name}: use --backbone timm:NAME")
        return download(self.name.removeprefix("timm:"))

    def configure(self, net: T) -> T:
        """Apply the common options to a network that a method builds itself."""
        if self.weights is not None or self.frozen:
            raise UsageError("net.weights and net.frozen do not apply to this method: it builds its own networks")
        return self._configure(net)

    def _configure(self, net: T) -> T:
        net.flip_tta, net.bf16, net.input_size = self.flip_tta, self.bf16, self.input_size
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def _own_net(self, final_relu: bool) -> Backbone:
        net = BACKBONES[self.name](3 if self.grey_to_rgb else self.shape[0], final_relu)
        net.input_size, net.grey_to_rgb = self.input_size, self.grey_to_rgb
        initialise(net)
        try:
            with torch.no_grad():
                net.eval().embed(torch.zeros(1, *self.shape))
        except RuntimeError as error:
            side = f"{self.shape[1]}×{self.shape[2]}"
            raise UsageError(
                f"{side} images are too small for the backbone {self.name}: choose another backbone or larger images"
            ) from error
        return net.train()
