"""From uint8 batches to network inputs: augmentation with random numbers per image, then normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.data.images import Images
from equipoise.errors import UsageError

DRAWS = 9
"""Random numbers per image: four for the resized crop, two for the shift, one each for flip, brightness, contrast."""
FLIP = 6
MAX_PAD = 1024
"""Padding beyond this would only fill the memory."""


@dataclass(frozen=True)
class Augment:
    """How training images are augmented and all images are normalised."""

    mean: tuple[float, ...] = (0.5,)
    """Mean of each channel, for values in 0–1."""
    std: tuple[float, ...] = (0.25,)
    """Standard deviation of each channel."""
    pad: int = 0
    """Pad by this many pixels, then crop to the original size at a random position."""
    padding: Literal["black", "reflect"] = "black"
    """Pad with zeros (black) or by reflection."""
    flip: bool = False
    """Flip half of the images horizontally."""
    alternate_flip: bool = False
    """Flip each image in every other epoch instead of at random, so that it never repeats in the next epoch."""
    brightness: float = 0.0
    """Add a random value of up to ± this fraction of the range (EEIL: 63/255)."""
    contrast: float = 0.0
    """Scale the differences from an image's mean by 1 ± up to this (EEIL: 0.8)."""
    resized_crop: bool = False
    """Random resized crop (8–100 % of the area) of image files, as usual for ImageNet."""

    def __post_init__(self) -> None:
        if not 0 <= self.pad <= MAX_PAD:
            raise UsageError(f"augment.pad must be between 0 and {MAX_PAD}, got {self.pad}")
        if not (0 <= self.brightness <= 1 and 0 <= self.contrast <= 1):
            raise UsageError("augment.brightness and augment.contrast must be between 0 and 1")
        if not all(value > 0 for value in self.std):
            raise UsageError(f"augment.std must be positive, got {list(self.std)}")

    def check(self, channels: int) -> None:
        """Raise an error if mean and std do not fit the number of channels."""
        if {len(self.mean), len(self.std)} - {1, channels}:
            each = f", or one for each of the {channels} channels" if channels > 1 else ""
            raise UsageError(f"augment.mean and augment.std need one value{each}")

    def draw(self, count: int, generator: torch.Generator, flips: Tensor | None = None) -> Tensor:
        """Return uniform numbers for ``count`` images; an image's row decides everything about its augmentation.

        ``flips`` replaces the column that decides which images are flipped.
        """
        draws = torch.rand((count, DRAWS), generator=generator)
        if flips is not None:
            draws[:, FLIP] = flips
        return draws

    def flip_draws(self, count: int, epoch: int, generator: torch.Generator) -> Tensor | None:
        """Return the flip column of an epoch for ``alternate_flip``: adding a half each epoch inverts the decision."""
        return (torch.rand(count, generator=generator) + epoch / 2) % 1 if self.alternate_flip else None

    def batch(self, images: Images, where: Tensor, draws: Tensor, size: int | None = None) -> Tensor:
        """Return a training batch: read, augmented by ``draws``, resized to ``size`` and normalised."""
        pixels = images.read(where, draws[:, :4] if self.resized_crop else None)
        if self.pad or self.flip:
            pixels = shift_and_flip(pixels, self.pad, self.flip, draws[:, 4:7], self.padding == "reflect")
        if self.brightness or self.contrast:
            pixels = jitter(pixels, self.brightness, self.contrast, draws[:, 7:9])
        if size is not None and size != pixels.shape[2]:
            pixels = downscale(pixels, size)
        return self.normalise(pixels)

    def plain(self, images: Images, where: Tensor) -> Tensor:
        """Return an evaluation batch: read and normalised."""
        return self.normalise(images.read(where))

    def normalise(self, pixels: Tensor) -> Tensor:
        """Return standardised floats in channels-last format."""
        full = 255 if pixels.dtype == torch.uint8 else 1  # features are not pixels
        mean = torch.tensor(self.mean, device=pixels.device).view(1, -1, 1, 1) * full
        std = torch.tensor(self.std, device=pixels.device).view(1, -1, 1, 1) * full
        # change the layout last: broadcasting over channels-last took four times as long
        return pixels.float().sub_(mean).div_(std).contiguous(memory_format=torch.channels_last)


def shift_and_flip(pixels: Tensor, pad: int, flip: bool, draws: Tensor, reflect: bool = False) -> Tensor:
    """Pad, crop each image at its own random position, and flip half of them, with a single gather."""
    count, channels, height, width = pixels.shape
    down, right = (draws[:, :2] * (2 * pad + 1)).long().clamp_(max=2 * pad).T[:, :, None]
    rows, columns = torch.arange(height).expand(count, -1), torch.arange(width).expand(count, -1)
    if flip:
        columns = torch.where(draws[:, 2:3] < 0.5, width - 1 - columns, columns)
    rows, columns = rows + down, columns + right
    if reflect:  # every position maps into the image, so nothing is padded
        rows, columns = _reflected(rows - pad, height), _reflected(columns - pad, width)
        source, line = pixels, width
    else:
        source, line = F.pad(pixels, (pad,) * 4), width + 2 * pad
    places = rows[:, :, None] * line + columns[:, None, :]
    flat = places.view(count, 1, -1).expand(-1, channels, -1)
    return source.flatten(2).gather(2, flat).view(pixels.shape)


def _reflected(places: Tensor, size: int) -> Tensor:
    """Reflect positions at the edges: …, 2, 1, 0, 1, 2, …"""
    return (size - 1) - ((size - 1) - places.abs()).abs()


def jitter(pixels: Tensor, brightness: float, contrast: float, draws: Tensor) -> Tensor:
    """Change brightness and contrast of each image."""
    shift, factor = (draws * 2 - 1).T[:, :, None, None, None]
    values = pixels.float()
    mean = values.mean((1, 2, 3), keepdim=True)
    changed = (values - mean) * (1 + contrast * factor) + mean + 255 * brightness * shift
    result: Tensor = changed.clamp(0, 255).to(torch.uint8)
    return result


def downscale(pixels: Tensor, size: int) -> Tensor:
    """Resize images to ``size`` rows, with antialiasing."""
    height, width = pixels.shape[-2:]
    return F.interpolate(pixels, (size, max(round(width * size / height), 1)), mode="bilinear", antialias=True)
