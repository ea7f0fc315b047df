"""A frozen backbone turns every image into a row of features, once; everything after that works on rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equipoise.core import distributed
from equipoise.core.files import digest
from equipoise.data.augment import Augment
from equipoise.data.images import Images, read_ahead
from equipoise.learn.backbones.base import Backbone
from equipoise.learn.backbones.lite import EfficientNetLite
from equipoise.learn.backbones.lite_onnx import OnnxLite
from equipoise.learn.runtime import Runtime

Progress = Callable[[Iterable[Any], int], Iterable[Any]]
CHUNK = 64
"""Images to extract together: whole batches of every engine."""

ENGINES = {"torch": (), "onnxruntime": ("onnx", "onnxruntime"), "openvino": ("onnx", "openvino")}
"""What computes features, with the packages that it needs. They differ by less than 1e-5 before rounding."""


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
    engine
        "torch", "onnxruntime" or "openvino". The last two compute EfficientNet-Lite on a CPU, ONNX Runtime in 32 bits
        only; torch computes everything else.
    """

    def __init__(self, net: Backbone, augment: Augment, runtime: Runtime, engine: str = "torch") -> None:
        self.weights = net.state_dict()
        self.net = net.folded() if isinstance(net, EfficientNetLite) else net
        self.net.freeze()
        self.augment, self.runtime, self.width = augment, runtime, net.width
        self.engine, self._compute, self.batch, self._workers = engine, self.net, 32, 1
        if isinstance(self.net, EfficientNetLite) and runtime.device == "cpu":
            if engine == "onnxruntime" and not net.bf16:
                # One thread per batch is faster than all threads for one, and decoding disturbs it less.
                self._compute, self.batch, self._workers = OnnxLite(self.net, engine, 1), 8, runtime.cpu_threads
            elif engine == "openvino":
                self._compute = OnnxLite(self.net, engine, runtime.cpu_threads)
        runtime.place(self.net)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a row, as an image of one pixel."""
        return self.width, 1, 1

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._workers, thread_name_prefix="extract")

    def rows(self, pixels: Tensor, fill: bool = True) -> Tensor:
        """Return the features of images (uint8, N × C × H × W): one row per image.

        Features are rounded to 16 bits, which is how they are stored.

        Parameters
        ----------
        pixels
            The images.
        fill
            Fill up the last batch: features from a smaller one may differ in the last bits.
        """
        batches = pixels.split(self.batch)
        if self._workers == 1 or len(batches) == 1:
            return torch.cat([self._forward(batch, fill) for batch in batches])
        return torch.cat(list(self._pool.map(lambda batch: self._forward(batch, fill), batches)))

    def _forward(self, pixels: Tensor, fill: bool) -> Tensor:
        count = len(pixels)
        missing = self.batch - count if fill else count % 2  # a batch of one takes another path in some engines
        if missing:
            pixels = torch.cat([pixels, pixels[-1:].expand(missing, -1, -1, -1)])
        with torch.no_grad():
            features: Tensor = self._compute(self.runtime.move(self.augment.normalise(pixels)))
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
        parts = torch.arange(len(images)).split(CHUNK)
        numbers = range(distributed.rank(), len(parts), distributed.world_size())
        batches = zip(numbers, read_ahead(images, lambda n: images.read(parts[n]), numbers), strict=True)
        shown = batches if progress is None else progress(batches, len(numbers))
        mine = {number: self.rows(pixels) for number, pixels in shown}
        return distributed.gather_rows(mine, [len(part) for part in parts])

    def identity(self) -> bytes:
        """Return a hash of everything that features depend on, other than the machine."""
        weights = b"".join(value.numpy().tobytes() for value in self.weights.values())
        options = (self.augment.mean, self.augment.std, self.net.input_size, self.net.bf16, self.net.flip_tta)
        return digest(repr((type(self._compute).__name__, options, self.batch)).encode() + weights)
