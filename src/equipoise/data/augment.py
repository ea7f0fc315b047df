"""From uint8 batches to what a network takes: augmentation with a draw for every image, then normalisation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.data.images import Images
from equipoise.errors import UsageError


@dataclass(frozen=True)
class Augment:
    """How training images are varied, and how all images are normalised."""

    mean: tuple[float, ...] = (0.5,)
    """Mean of each channel, of values in 0–1."""
    std: tuple[float, ...] = (0.25,)
    """Standard deviation of each channel."""
    pad: int = 0
    """Pad by so many black pixels, then crop back to the size at a random place."""
    flip: bool = False
    """Mirror half of the images."""
    resized_crop: bool = False
    """Random resized crop (8–100 % of the area) when a file is decoded, as usual for ImageNet."""

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise UsageError(f"augment.pad is {self.pad}, but it cannot be negative")
        if not all(value > 0 for value in self.std):
            raise UsageError(f"augment.std is {list(self.std)}, but deviations must be above 0")

    def check(self, channels: int) -> None:
        if {len(self.mean), len(self.std)} - {1, channels}:
            raise UsageError(f"augment.mean and augment.std need a value for each of the {channels} channels")

    def batch(self, images: Images, where: Tensor, generator: torch.Generator) -> Tensor:
        """A training batch: read, varied, normalised."""
        crops = torch.rand((len(where), 4), generator=generator) if self.resized_crop else None
        pixels = images.read(where, crops)
        if self.pad or self.flip:
            pixels = shift_and_mirror(pixels, self.pad, self.flip, generator)
        return self.normalise(pixels)

    def plain_batch(self, images: Images, where: Tensor, generator: torch.Generator) -> Tensor:
        """A training batch without variation."""
        return self.plain(images, where)

    def plain(self, images: Images, where: Tensor) -> Tensor:
        """An evaluation batch: read and normalised, nothing else."""
        return self.normalise(images.read(where))

    def normalise(self, pixels: Tensor) -> Tensor:
        """Floats with the data's mean and deviation taken out, channels-last (the fast layout for convolutions)."""
        mean = torch.tensor(self.mean, device=pixels.device).view(1, -1, 1, 1) * 255
        std = torch.tensor(self.std, device=pixels.device).view(1, -1, 1, 1) * 255
        # normalise first, change the layout last: broadcasting over channels-last took four times as long
        return pixels.float().sub_(mean).div_(std).contiguous(memory_format=torch.channels_last)


def shift_and_mirror(pixels: Tensor, pad: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Zero-pad, cut each image out at its own random place, and mirror half of them: one gather for all."""
    count, channels, height, width = pixels.shape
    padded = F.pad(pixels, (pad,) * 4)
    down, right = torch.randint(2 * pad + 1, (2, count, 1), generator=generator)
    rows, columns = torch.arange(height).expand(count, -1), torch.arange(width).expand(count, -1)
    if flip:
        mirrored = torch.rand((count, 1), generator=generator) < 0.5
        columns = torch.where(mirrored, width - 1 - columns, columns)
    places = (rows + down)[:, :, None] * (width + 2 * pad) + (columns + right)[:, None, :]
    flat = places.view(count, 1, -1).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, flat).view(pixels.shape)
