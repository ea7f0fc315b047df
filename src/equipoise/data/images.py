"""Labelled images as uint8: one tensor in memory, or files that are decoded when a batch asks for them.

``Images`` is a view: which rows of a store, with which labels. Selecting, joining and relabelling copy no pixels.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from equipoise.errors import DataError, UsageError

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


class Store(Protocol):
    """Where pixels come from."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width of every image."""

    def __len__(self) -> int: ...

    def fingerprint(self) -> bytes:
        """The same for the same images, whatever directory they lie in."""

    def read(self, rows: Tensor, crops: Tensor | None = None) -> Tensor:
        """The images of ``rows`` as uint8, N × C × H × W; ``crops`` are random-resized-crop draws, one row an image."""


class TensorStore:
    """All pixels in one uint8 tensor, N × C × H × W."""

    def __init__(self, pixels: Tensor) -> None:
        if pixels.dtype != torch.uint8 or pixels.dim() != 4:
            raise DataError(f"images must be uint8, N × C × H × W, not {pixels.dtype} {tuple(pixels.shape)}")
        self.pixels = pixels

    @property
    def shape(self) -> tuple[int, int, int]:
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    def __len__(self) -> int:
        return len(self.pixels)

    def fingerprint(self) -> bytes:
        return digest(self.pixels.numpy().tobytes())

    def read(self, rows: Tensor, crops: Tensor | None = None) -> Tensor:
        if crops is not None:
            raise DataError("random resized crops are for images in files: set augment.resized_crop = false")
        return self.pixels[rows]


class FileStore:
    """Image files, decoded to RGB of one size when read. Threads suffice: Pillow decodes without the GIL."""

    def __init__(self, paths: Sequence[str | Path], size: int, workers: int | None = None) -> None:
        if size < 8:
            raise UsageError(f"data.size is {size}, but images must be at least 8 pixels wide")
        self.paths = [str(path) for path in paths]
        self.size = size
        self.workers = workers or min(8, os.cpu_count() or 1)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers, thread_name_prefix="decode")

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.size, self.size

    def __len__(self) -> int:
        return len(self.paths)

    def fingerprint(self) -> bytes:
        # names of file and class folder: sizes would cost a look at each of 1.28 million files
        return digest("\n".join("/".join(path.rsplit(os.sep, 2)[-2:]) for path in self.paths).encode())

    def read(self, rows: Tensor, crops: Tensor | None = None) -> Tensor:
        paths = [self.paths[row] for row in rows.tolist()]
        draws = [None] * len(paths) if crops is None else crops.tolist()
        images = list(self._pool.map(lambda path, draw: decode(path, self.size, draw), paths, draws))
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


def decode(path: str, size: int, draw: Sequence[float] | None = None) -> np.ndarray:
    """One file as size × size × 3 uint8: a random resized crop if ``draw`` is given, else the centre.

    The centre is the usual one: short side to size·256/224, then the middle size × size.
    """
    try:
        with Image.open(path) as file:
            box = _centre(file.size) if draw is None else _random_box(file.size, draw)
            # JPEG decodes to a half, quarter or eighth when the crop stays at least as large as asked for
            scale = (box[2] - box[0]) / size
            if scale >= 2 and file.format == "JPEG":
                full = file.size
                file.draft("RGB", (int(full[0] / scale), int(full[1] / scale)))
                across, down = file.size[0] / full[0], file.size[1] / full[1]
                box = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
            picture: Image.Image = file
            if file.mode.startswith("I;16"):  # convert() would clip 16 bits to white instead of scaling them
                picture = Image.fromarray((np.asarray(file) >> 8).astype(np.uint8))
            return np.asarray(picture.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as an image ({error}): mend or remove it") from error


def _centre(size: tuple[int, int]) -> Box:
    edge = min(size) * 224 / 256
    left, top = (size[0] - edge) / 2, (size[1] - edge) / 2
    return left, top, left + edge, top + edge


def _random_box(size: tuple[int, int], draw: Sequence[float]) -> Box:
    """Random resized crop from four uniform draws: area 8–100 %, aspect 3/4–4/3, position.

    Where a drawn shape does not fit the image it is shrunk to fit, instead of being drawn again.
    """
    width, height = size
    area = width * height * (0.08 + 0.92 * draw[0])
    aspect = (3 / 4) ** (1 - 2 * draw[1])
    w, h = (area * aspect) ** 0.5, (area / aspect) ** 0.5
    shrink = min(1.0, width / w, height / h)
    w, h = w * shrink, h * shrink
    left, top = (width - w) * draw[2], (height - h) * draw[3]
    return left, top, min(left + w, width), min(top + h, height)


class JoinedStore:
    """Several stores behind one another."""

    def __init__(self, stores: Sequence[Store]) -> None:
        shapes = {store.shape for store in stores}
        if len(shapes) != 1:
            raise DataError(f"images of different shapes cannot be joined: {sorted(shapes)}")
        self.stores = list(stores)
        self.starts = np.cumsum([0] + [len(store) for store in stores])

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.stores[0].shape

    def __len__(self) -> int:
        return int(self.starts[-1])

    def fingerprint(self) -> bytes:
        return digest(b"".join(store.fingerprint() for store in self.stores))

    def read(self, rows: Tensor, crops: Tensor | None = None) -> Tensor:
        out = torch.empty((len(rows), *self.shape), dtype=torch.uint8)
        for store, start, stop in zip(self.stores, self.starts, self.starts[1:], strict=False):
            mine = (rows >= start) & (rows < stop)
            if mine.any():
                draws = crops[mine] if crops is not None and isinstance(store, FileStore) else None
                out[mine] = store.read(rows[mine] - start, draws)  # generated images have no file to crop
        return out


@dataclass(frozen=True)
class Images:
    """Some rows of a store, each with its label."""

    store: Store
    rows: Tensor
    labels: Tensor

    @staticmethod
    def of(pixels: Tensor, labels: Tensor) -> Images:
        """All of a uint8 tensor N × C × H × W."""
        if len(pixels) != len(labels):
            raise DataError(f"{len(pixels)} images came with {len(labels)} labels")
        return Images(TensorStore(pixels), torch.arange(len(labels)), labels.long())

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, where: Tensor) -> Images:
        """The images at positions ``where``, or those for which a boolean ``where`` is true."""
        return Images(self.store, self.rows[where], self.labels[where])

    def relabel(self, lookup: Tensor) -> Images:
        """The same images, label ``y`` turned into ``lookup[y]``."""
        return Images(self.store, self.rows, lookup[self.labels])

    def fingerprint(self) -> bytes:
        return digest(self.store.fingerprint() + self.rows.numpy().tobytes() + self.labels.numpy().tobytes())

    def read(self, where: Tensor, crops: Tensor | None = None) -> Tensor:
        """Pixels of the images at positions ``where``, uint8, N × C × H × W."""
        return self.store.read(self.rows[where], crops)


def join(parts: Sequence[Images]) -> Images:
    """Images behind one another; parts of one store stay in it."""
    if all(part.store is parts[0].store for part in parts):
        store, rows = parts[0].store, [part.rows for part in parts]
    else:
        store = JoinedStore([part.store for part in parts])
        rows = [part.rows + int(start) for part, start in zip(parts, store.starts, strict=False)]
    return Images(store, torch.cat(rows), torch.cat([part.labels for part in parts]))
