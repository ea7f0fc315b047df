"""A frozen backbone turns every image into a row of features, once; everything after that works on rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import torch
from torch import Tensor

from equipoise.core import distributed
from equipoise.core.extras import available
from equipoise.core.files import digest
from equipoise.data.augment import Augment
from equipoise.data.images import Images, read_ahead
from equipoise.errors import UsageError
from equipoise.learn.backbones.base import Backbone
from equipoise.learn.backbones.lite import EfficientNetLite
from equipoise.learn.backbones.lite_onnx import OnnxLite
from equipoise.learn.backbones.pretrained import PRETRAINED
from equipoise.learn.runtime import Runtime

Progress = Callable[[Iterable[Any], int], Iterable[Any]]
CHUNK = 64
"""Images to extract together: whole batches of every engine."""

Engine = Literal["torch", "onnxruntime", "openvino", "auto"]
ENGINES: dict[Engine, tuple[str, ...]] = {
    "torch": (),
    "onnxruntime": ("onnx", "onnxruntime"),
    "openvino": ("onnx", "openvino"),
}
"""What computes features, with the packages that it needs. They differ by less than 1e-5 before rounding."""


def best_engine(backbone: str) -> Engine:
    """Return the fastest engine that computes a frozen backbone in 32 bits and is installed."""
    return "onnxruntime" if backbone in PRETRAINED and all(map(available, ENGINES["onnxruntime"])) else "torch"


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

    def __init__(self, net: Backbone, augment: Augment, runtime: Runtime, engine: Engine = "torch") -> None:
        self.weights = net.state_dict()
        self.net = net.folded() if isinstance(net, EfficientNetLite) else net
        self.net.freeze()
        self.augment, self.runtime, self.width = augment, runtime, net.width
        runtime.place(self.net)
        usable = isinstance(self.net, EfficientNetLite) and runtime.device == "cpu"
        self.engine: Engine = engine if usable and not (engine == "onnxruntime" and net.bf16) else "torch"
        self._start()

    def _start(self) -> None:
        self._compute, self.batch, self._workers = self.net, 32, 1
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        if not isinstance(self.net, EfficientNetLite):
            return
        if self.engine == "onnxruntime":
            # One thread per batch is faster than all threads for one, and decoding disturbs it less.
            self._compute, self.batch, self._workers = OnnxLite(self.net, self.engine, 1), 8, self.runtime.cpu_threads
        elif self.engine == "openvino":
            self._compute = OnnxLite(self.net, self.engine, self.runtime.cpu_threads)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what cannot be pickled: a session of another library, and threads."""
        return {name: value for name, value in vars(self).items() if name not in ("_compute", "_pool")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a row, as an image of one pixel."""
        return self.width, 1, 1

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pool[0] != os.getpid():  # threads do not survive a fork
            self._pool = os.getpid(), ThreadPoolExecutor(self._workers, thread_name_prefix="extract")
        return self._pool[1]

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
        if not len(pixels):
            return torch.zeros(0, self.width)
        batches = pixels.split(self.batch)
        if self._workers == 1 or len(batches) == 1:
            return torch.cat([self._forward(batch, fill) for batch in batches])
        return torch.cat(list(self._threads().map(lambda batch: self._forward(batch, fill), batches)))

    def _forward(self, pixels: Tensor, fill: bool) -> Tensor:
        count = len(pixels)
        missing = self.batch - count if fill else int(count == 1)  # a batch of one takes another path in some engines
        if missing:
            pixels = torch.cat([pixels, pixels[-1:].expand(missing, -1, -1, -1)])
        rows = self.unrounded(pixels)[:count].half().float()
        if not rows.isfinite().all():
            raise UsageError("the backbone's features are too large for 16 bits, or not finite: check net.weights")
        return rows

    def unrounded(self, pixels: Tensor) -> Tensor:
        """Return the features of one batch of images in 32 bits."""
        with torch.no_grad():
            features: Tensor = self._compute(self.runtime.move(self.augment.normalise(self.runtime.move(pixels))))
        return features.cpu()

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
        where = torch.device(self.runtime.device).type, self.engine, self.batch
        return digest(repr((type(self.net).__name__, options, where)).encode() + weights)
