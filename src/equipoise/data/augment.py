"""From uint8 batches to network inputs: augmentation with random numbers per image, then normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.core.ranges import Fraction, Range, check_values
from equipoise.data import autoaugment
from equipoise.data.images import Images
from equipoise.errors import UsageError

DRAWS = 9
"""Random numbers per image: four for the resized crop, two for the shift, one each for flip, brightness, contrast."""
SHIFT, FLIP, BRIGHTNESS, CONTRAST = slice(4, 6), 6, 7, 8
"""Columns of these random numbers."""
MIDDLE = 0.5
"""The number that changes nothing: no shift, the same brightness and contrast, no flip."""
MAX_SIDE = 2**16
"""No image is larger."""


@dataclass(frozen=True)
class Augment:
    """How training images are augmented and all images are normalised."""

    mean: tuple[Annotated[float, Range(-1e36, 1e36)], ...] = (0.5,)
    """Mean of each channel, for values in 0–1."""
    std: tuple[Annotated[float, Range(1e-36, 1e36)], ...] = (0.25,)
    """Standard deviation of each channel."""
    pad: Annotated[int, Range(0, MAX_SIDE)] = 0
    """Pad by this many pixels, then crop to the original size at a random position."""
    padding: Literal["black", "reflect"] = "black"
    """Pad with zeros (black) or by reflection."""
    flip: bool = False
    """Flip half of the images horizontally."""
    alternate_flip: bool = False
    """Flip each image in every other epoch instead of at random, so that it never repeats in the next epoch."""
    brightness: Fraction = 0.0
    """Add a random value of up to ± this fraction of the range (EEIL: 63/255)."""
    contrast: Fraction = 0.0
    """Scale the differences from each channel's mean by 1 ± up to this (EEIL: 0.8)."""
    brightness_factor: Fraction = 0.0
    """Multiply all values by 1 ± up to this (DER, PODNet, FOSTER, MEMO: 63/255)."""
    rotation: Annotated[float, Range(0, 180)] = 0.0
    """Rotate by up to ± this many degrees (RPS-Net: 10)."""
    versions: Literal[1, 2, 12] = 1
    """Choose from this many versions of an image instead of augmenting it at random (EEIL). 12: the image, one with
    another brightness and one with another contrast, each also cropped, and all of them also flipped. 2: not flipped
    and flipped, each with another brightness or contrast half of the time."""
    resized_crop: bool = False
    """Random resized crop (8–100 % of the area) of image files, as usual for ImageNet."""
    auto: Literal["none", "cifar10", "imagenet"] = "none"
    """Policy of AutoAugment, after all of the above."""
    cutout: Annotated[int, Range(0, MAX_SIDE)] = 0
    """Side of a square that is made black, with its centre anywhere in the image; 0: none."""

    def __post_init__(self) -> None:
        check_values(self, "augment")

    def check(self, shape: tuple[int, int, int]) -> None:
        """Raise an error if the settings do not fit images of this shape (channels, height and width)."""
        channels, side = shape[0], max(shape[1:])
        if self.pad > side:  # would only fill the memory with black images
            raise UsageError(f"augment.pad must be at most {side}, the side of the images, got {self.pad}: lower it")
        if {len(self.mean), len(self.std)} - {1, channels}:
            each = f", or one for each of the {channels} channels" if channels > 1 else ""
            raise UsageError(f"augment.mean and augment.std need one value{each}")
        if self.auto != "none" and channels not in (1, 3):
            raise UsageError(f"augment.auto is for grey or RGB images, not for {channels} channels: set it to none")

    def draw(
        self, count: int, generator: torch.Generator, flips: Tensor | None = None, versions: Tensor | None = None
    ) -> Tensor:
        """Return uniform numbers for ``count`` images; an image's row decides everything about its augmentation.

        ``flips`` replaces the column that decides which images are flipped, and ``versions`` are numbers of versions.
        """
        draws = torch.rand((count, DRAWS), generator=generator)
        if flips is not None:
            draws[:, FLIP] = flips
        if versions is not None:
            self._fix(draws, versions)
        # further columns at the end, so that the others stay the same
        further = (1 if self.rotation else 0) + (autoaugment.DRAWS if self.auto != "none" or self.cutout else 0)
        return torch.cat([draws, torch.rand((count, further), generator=generator)], 1) if further else draws

    def _fix(self, draws: Tensor, versions: Tensor) -> None:
        """Replace the numbers that an image's version does not leave to chance."""
        half = self.versions // 2
        draws[:, FLIP] = torch.where(versions >= half, 0.0, MIDDLE)
        if half > 1:
            draws[versions % half < half // 2, SHIFT] = MIDDLE
            draws[versions % 3 != 1, BRIGHTNESS] = MIDDLE
            draws[versions % 3 != 2, CONTRAST] = MIDDLE
            return
        for column in (BRIGHTNESS, CONTRAST):  # one half of the numbers changes nothing, the other is spread out
            draws[:, column] = torch.where(draws[:, column] < 0.5, MIDDLE, 2 * draws[:, column] - 1)

    def choose_versions(self, count: int, shown: int, generator: torch.Generator) -> Tensor | None:
        """Return the number of a version for each of ``count`` images, which are ``shown`` times the same images.

        Each of them is shown in different versions. None if images are augmented at random.
        """
        if self.versions == 1:
            return None
        images = count // shown
        first = torch.randint(self.versions, (images,), generator=generator)
        return (first.repeat(shown) + torch.arange(count) // max(images, 1)) % self.versions

    def flip_draws(self, count: int, epoch: int, generator: torch.Generator) -> Tensor | None:
        """Return the flip column of an epoch for ``alternate_flip``: adding a half each epoch inverts the decision."""
        return (torch.rand(count, generator=generator) + epoch / 2) % 1 if self.alternate_flip else None

    def batch(self, images: Images, where: Tensor, draws: Tensor, size: int | None = None) -> Tensor:
        """Return a training batch: read, augmented by ``draws``, resized to ``size`` and normalised."""
        pixels = images.read(where, draws[:, :4] if self.resized_crop else None)
        draws = draws.to(pixels.device, non_blocking=True)
        before_crop = self.versions == 12  # EEIL crops what was changed; DER and PODNet change what was cropped
        if before_crop:
            pixels = self._jitter(pixels, draws)
        if self.pad or self.flip:
            pixels = shift_and_flip(pixels, self.pad, self.flip, draws[:, 4:7], self.padding == "reflect")
        if not before_crop:
            pixels = self._jitter(pixels, draws)
        if self.rotation:
            pixels = rotate(pixels, self.rotation * (2 * draws[:, DRAWS] - 1))
        if self.auto != "none":
            pixels = autoaugment.auto_augment(pixels, self.auto, draws[:, -autoaugment.DRAWS :])
        if self.cutout:
            pixels = autoaugment.cut_out(pixels, self.cutout, draws[:, -autoaugment.DRAWS :])
        if size is not None and size != pixels.shape[2]:
            pixels = downscale(pixels, size)
        return self.normalise(pixels)

    def _jitter(self, pixels: Tensor, draws: Tensor) -> Tensor:
        if self.brightness or self.contrast:
            pixels = jitter(pixels, self.brightness, self.contrast, draws[:, 7:9])
        if self.brightness_factor:
            factor = 1 + self.brightness_factor * (2 * draws[:, BRIGHTNESS, None, None, None] - 1)
            pixels = (pixels * factor).clamp(0, 255).to(pixels.dtype)
        return pixels

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
    rows, columns = (torch.arange(side, device=pixels.device).expand(count, -1) for side in (height, width))
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
    mean = values.mean((2, 3), keepdim=True)
    changed = (values - mean) * (1 + contrast * factor) + mean + 255 * brightness * shift
    result: Tensor = changed.clamp(0, 255).to(torch.uint8)
    return result


def rotate(pixels: Tensor, degrees: Tensor) -> Tensor:
    """Rotate each image by its own angle around its centre: nearest pixels, black corners."""
    angle, (height, width) = degrees.deg2rad(), pixels.shape[-2:]
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    rows = [cos, -sin * height / width, zero, sin * width / height, cos, zero]
    grid = F.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(pixels.shape), align_corners=False)
    turned = F.grid_sample(pixels.float(), grid, mode="nearest", align_corners=False)
    return turned.to(pixels.dtype)


def downscale(pixels: Tensor, size: int) -> Tensor:
    """Resize images to ``size`` rows, with antialiasing."""
    height, width = pixels.shape[-2:]
    return F.interpolate(pixels, (size, max(round(width * size / height), 1)), mode="bilinear", antialias=True)
