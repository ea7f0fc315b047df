"""A frozen backbone turns every image into a row of features, once; everything after that works on rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from equipoise.core import distributed
from equipoise.core.files import digest
from equipoise.data.augment import Augment
from equipoise.data.images import Images, read_ahead
from equipoise.learn.backbones.base import Backbone
from equipoise.learn.backbones.lite import EfficientNetLite
from equipoise.learn.runtime import Runtime

Progress = Callable[[Iterable[Any], int], Iterable[Any]]
BATCH = 32
"""Images per forward pass. Shorter batches are filled up: results of other sizes differ in the last bits."""


class Extractor:
    """Features of images.

    Parameters
    ----------
    net
        The backbone.
    augment
        Normalises the images.
    runtime
        Where to compute.
    """

    def __init__(self, net: Backbone, augment: Augment, runtime: Runtime) -> None:
        self.weights = net.state_dict()
        self.net = net.folded() if isinstance(net, EfficientNetLite) else net
        self.net.freeze()
        self.augment, self.runtime, self.width = augment, runtime, net.width
        runtime.place(self.net)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a row, as an image of one pixel."""
        return self.width, 1, 1

    def rows(self, pixels: Tensor, least: int = BATCH) -> Tensor:
        """Return the features of at most BATCH images (uint8, N × C × H × W): one row per image.

        Batches are filled up to ``least`` images. Features are rounded to 16 bits, which is how they are stored.
        """
        count = len(pixels)
        missing = max(0, min(least, BATCH) - count)
        if missing:
            pixels = torch.cat([pixels, pixels[-1:].expand(missing, -1, -1, -1)])
        with torch.no_grad():
            features: Tensor = self.net(self.runtime.move(self.augment.normalise(pixels)))
        return features[:count].cpu().half().float()

    def extract(self, images: Images, progress: Progress | None = None) -> Tensor:
        """Return the features of all images, one row per image; processes share whole batches.

        Parameters
        ----------
        images
            The images.
        progress
            Passes the batches on, and may show how many are done.
        """
        parts = torch.arange(len(images)).split(BATCH)
        numbers = range(distributed.rank(), len(parts), distributed.world_size())
        batches = zip(numbers, read_ahead(images, lambda n: images.read(parts[n]), numbers), strict=True)
        shown = batches if progress is None else progress(batches, len(numbers))
        mine = {number: self.rows(pixels) for number, pixels in shown}
        return distributed.gather_rows(mine, [len(part) for part in parts])

    def identity(self) -> bytes:
        """Return a hash of everything that features depend on, other than the machine."""
        weights = b"".join(value.numpy().tobytes() for value in self.weights.values())
        options = (self.augment.mean, self.augment.std, self.net.input_size, self.net.bf16, self.net.flip_tta)
        return digest(repr((type(self.net).__name__, options, BATCH)).encode() + weights)
