"""From uint8 batches to what a network takes: augmentation with a draw for every image, then normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.data.images import Images
from equipoise.errors import UsageError

DRAWS = 9
"""Random numbers an image: four for the crop, two for the shift, one each for mirror, brightness and contrast."""
MIRROR = 6


@dataclass(frozen=True)
class Augment:
    """How training images are varied, and how all images are normalised."""

    mean: tuple[float, ...] = (0.5,)
    """Mean of each channel, of values in 0–1."""
    std: tuple[float, ...] = (0.25,)
    """Standard deviation of each channel."""
    pad: int = 0
    """Pad by so many pixels, then crop back to the size at a random place."""
    padding: Literal["black", "reflect"] = "black"
    """What the pad shows: nothing, or the picture continued as in a mirror."""
    flip: bool = False
    """Mirror half of the images."""
    alternate: bool = False
    """Mirror each image in every other epoch instead of by chance, so that none is seen the same way twice running."""
    brightness: float = 0.0
    """Add up to so much to an image's values, or take it away (EEIL: 63/255)."""
    contrast: float = 0.0
    """Multiply an image's differences from its mean by 1 ± up to so much (EEIL: 0.8)."""
    resized_crop: bool = False
    """Random resized crop (8–100 % of the area) when a file is decoded, as usual for ImageNet."""

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise UsageError(f"augment.pad is {self.pad}, but it cannot be negative")
        if not (0 <= self.brightness <= 1 and 0 <= self.contrast <= 1):
            raise UsageError("augment.brightness and augment.contrast are shares, from 0 to 1")
        if not all(value > 0 for value in self.std):
            raise UsageError(f"augment.std is {list(self.std)}, but deviations must be above 0")

    def check(self, channels: int) -> None:
        if {len(self.mean), len(self.std)} - {1, channels}:
            raise UsageError(f"augment.mean and augment.std need a value for each of the {channels} channels")

    def draw(self, count: int, generator: torch.Generator, mirror: Tensor | None = None) -> Tensor:
        """The randomness of ``count`` images, from 0 to 1. A row decides all of an image, whoever decodes it.

        ``mirror``, where it is given, takes the place of the numbers that decide who is mirrored.
        """
        draws = torch.rand((count, DRAWS), generator=generator)
        if mirror is not None:
            draws[:, MIRROR] = mirror
        return draws

    def mirror_draws(self, count: int, epoch: int, generator: torch.Generator) -> Tensor | None:
        """Who is mirrored in an epoch, if that is not left to chance: a half more or less each time turns it round."""
        return (torch.rand(count, generator=generator) + epoch / 2) % 1 if self.alternate else None

    def batch(self, images: Images, where: Tensor, draws: Tensor, size: int | None = None) -> Tensor:
        """A training batch: read, varied as each image's row of ``draws`` says, shrunk to ``size``, normalised."""
        pixels = images.read(where, draws[:, :4] if self.resized_crop else None)
        if self.pad or self.flip:
            pixels = shift_and_mirror(pixels, self.pad, self.flip, draws[:, 4:7], self.padding == "reflect")
        if self.brightness or self.contrast:
            pixels = relight(pixels, self.brightness, self.contrast, draws[:, 7:9])
        if size is not None and size != pixels.shape[2]:
            pixels = shrink(pixels, size)
        return self.normalise(pixels)

    def plain(self, images: Images, where: Tensor) -> Tensor:
        """An evaluation batch: read and normalised, nothing else."""
        return self.normalise(images.read(where))

    def normalise(self, pixels: Tensor) -> Tensor:
        """Floats with the data's mean and deviation taken out, channels-last (the fast layout for convolutions)."""
        full = 255 if pixels.dtype == torch.uint8 else 1  # features are not pixels
        mean = torch.tensor(self.mean, device=pixels.device).view(1, -1, 1, 1) * full
        std = torch.tensor(self.std, device=pixels.device).view(1, -1, 1, 1) * full
        # normalise first, change the layout last: broadcasting over channels-last took four times as long
        return pixels.float().sub_(mean).div_(std).contiguous(memory_format=torch.channels_last)


def shift_and_mirror(pixels: Tensor, pad: int, flip: bool, draws: Tensor, reflect: bool = False) -> Tensor:
    """Pad, cut each image out at its own random place, and mirror half of them: one gather for all."""
    count, channels, height, width = pixels.shape
    down, right = (draws[:, :2] * (2 * pad + 1)).long().clamp_(max=2 * pad).T[:, :, None]
    rows, columns = torch.arange(height).expand(count, -1), torch.arange(width).expand(count, -1)
    if flip:
        columns = torch.where(draws[:, 2:3] < 0.5, width - 1 - columns, columns)
    rows, columns = rows + down, columns + right
    if reflect:  # a place in the pad is one in the picture, so nothing is padded
        rows, columns = _reflected(rows - pad, height), _reflected(columns - pad, width)
        source, line = pixels, width
    else:
        source, line = F.pad(pixels, (pad,) * 4), width + 2 * pad
    places = rows[:, :, None] * line + columns[:, None, :]
    flat = places.view(count, 1, -1).expand(-1, channels, -1)
    return source.flatten(2).gather(2, flat).view(pixels.shape)


def _reflected(places: Tensor, size: int) -> Tensor:
    """Places beyond an edge, turned back at the edge: …, 2, 1, 0, 1, 2, …"""
    return (size - 1) - ((size - 1) - places.abs()).abs()


def relight(pixels: Tensor, brightness: float, contrast: float, draws: Tensor) -> Tensor:
    """Another light and another contrast for each image."""
    shift, factor = (draws * 2 - 1).T[:, :, None, None, None]
    values = pixels.float()
    mean = values.mean((1, 2, 3), keepdim=True)
    lit = (values - mean) * (1 + contrast * factor) + mean + 255 * brightness * shift
    relit: Tensor = lit.clamp(0, 255).to(torch.uint8)
    return relit


def shrink(pixels: Tensor, size: int) -> Tensor:
    """The same pictures with ``size`` rows, each pixel a mean of those it stands for."""
    height, width = pixels.shape[-2:]
    return F.interpolate(pixels, (size, max(round(width * size / height), 1)), mode="bilinear", antialias=True)
