"""Labelled images as uint8: one tensor in memory, or files that are decoded when a batch needs them.

``Images`` is a view: rows of a store with their labels. Selecting, joining and relabelling copy no pixels.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from equipoise.core.files import digest
from equipoise.data.decoding import check_size, decode
from equipoise.data.index import Index
from equipoise.data.prefetch import decoder_pool, map_ahead
from equipoise.errors import DataError

T = TypeVar("T")
R = TypeVar("R")


class Store(Protocol):
    """Where pixels come from."""

    shape: tuple[int, int, int]
    """Channels, height, width of every image."""
    dtype: torch.dtype
    """uint8 for pixels; features are floats."""

    def __len__(self) -> int: ...

    def fingerprint(self) -> bytes:
        """Return a hash that is the same for the same images in any directory."""

    def read(self, rows: Tensor, crops: Tensor | None = None) -> Tensor:
        """Return the images as uint8, N × C × H × W; ``crops`` holds the draws of a random resized crop per image."""


class TensorStore:
    """All pixels in one uint8 tensor, N × C × H × W, or rows of features as floats, N × features × 1 × 1."""

    def __init__(self, pixels: Tensor) -> None:
        features = pixels.dtype in (torch.float32, torch.float16) and pixels.shape[2:] == (1, 1)
        if pixels.dim() != 4 or not (pixels.dtype == torch.uint8 or features):
            raise DataError(
                f"images must be uint8 of shape N × C × H × W, got {pixels.dtype} of shape {tuple(pixels.shape)}"
            )
        _, channels, height, width = pixels.shape
        self.pixels, self.dtype = pixels, pixels.dtype
        self.shape = channels, height, width
        self._copies: dict[str, Self] = {}

    def __len__(self) -> int:
        return len(self.pixels)

    def fingerprint(self) -> bytes:
        return digest(self.pixels.numpy().tobytes())

    def on(self, device: str) -> Self:
        """Return a copy in the memory of a device; it is made once."""
        if device not in self._copies:
            self._copies[device] = copy.copy(self)
            self._copies[device].pixels = self.pixels.to(device)
        return self._copies[device]

    def read(self, rows: Tensor, crops: Tensor | None = None) -> Tensor:
        if crops is not None:
            raise DataError("random resized crops need images in files: set augment.resized_crop=false")
        return self.pixels[rows.to(self.pixels.device, non_blocking=True)]


class FeatureStore(TensorStore):
    """Rows of features in place of images.

    Parameters
    ----------
    features
        One row per image, in 32 or 16 bits; read in 32.
    source
        The images that they were computed from, in the same order, where somebody may want to see them.
    ids
        Names of the images, in the same order, where they are known.
    """

    def __init__(self, features: Tensor, source: Images | None = None, ids: Sequence[str] = ()) -> None:
        super().__init__(features[:, :, None, None])
        self.source, self.ids, self.dtype = source, ids, torch.float32

    def read(self, rows: Tensor, crops: Tensor | None = None) -> Tensor:
        return super().read(rows, crops).float()


class FileStore:
    """Image files, decoded to RGB of one size when read."""

    bicubic = False
    """Resize as for pretrained networks."""

    def __init__(self, files: Index | Sequence[str | Path], size: int, margin: float = 1.0) -> None:
        check_size(size)
        self.index = files if isinstance(files, Index) else Index.of(files)
        self.size, self.margin = size, margin
        self.shape, self.dtype = (3, size, size), torch.uint8

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return decoder_pool()

    def __len__(self) -> int:
        return len(self.index)

    def fingerprint(self) -> bytes:
        # names of files and class folders only: sizes would need a stat of each of 1.28 million files
        return digest(self.index.text() + (b"bicubic" if self.bicubic else b""))

    def stamp(self, rows: Tensor) -> bytes:
        """Return a hash of the files' sizes and dates, which tells a changed file from the one that was read before."""
        found = ((file.st_size, file.st_mtime_ns) for file in map(os.stat, self.index.paths(rows.numpy())))
        return digest(np.array(list(found), dtype=np.int64).tobytes())

    def for_pretrained(self) -> FileStore:
        """Return the same images, resized as `learn` and `predict` do for a pretrained network."""
        store = FileStore(self.index, self.size, self.margin)
        store.bicubic = True
        return store

    def read(self, rows: Tensor, crops: Tensor | None = None) -> Tensor:
        paths = self.index.paths(rows.numpy())
        draws = [None] * len(paths) if crops is None else crops.tolist()
        images = list(self._pool.map(partial(self._decode, bicubic=self.bicubic and crops is None), paths, draws))
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)

    def _decode(self, path: str, draw: Sequence[float] | None, bicubic: bool) -> np.ndarray:
        return decode(path, self.size, draw, self.margin, bicubic)


class MovedStore:
    """Another store, whose images are moved to a device when they are read."""

    def __init__(self, store: Store, move: Callable[[Tensor], Tensor]) -> None:
        self.store, self.move, self.shape, self.dtype = store, move, store.shape, store.dtype

    def __len__(self) -> int:
        return len(self.store)

    def fingerprint(self) -> bytes:
        return self.store.fingerprint()

    def read(self, rows: Tensor, crops: Tensor | None = None) -> Tensor:
        return self.move(self.store.read(rows, crops))


class JoinedStore:
    """Several stores concatenated."""

    def __init__(self, stores: Sequence[Store]) -> None:
        shapes = {store.shape for store in stores}
        if len(shapes) != 1:
            raise DataError(f"cannot join images of different shapes: {sorted(shapes)}")
        self.stores, self.shape, self.dtype = list(stores), stores[0].shape, stores[0].dtype
        self.starts = np.cumsum([0] + [len(store) for store in stores])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def fingerprint(self) -> bytes:
        return digest(b"".join(store.fingerprint() for store in self.stores))

    def read(self, rows: Tensor, crops: Tensor | None = None) -> Tensor:
        out = torch.empty((len(rows), *self.shape), dtype=self.dtype)
        for store, start, stop in zip(self.stores, self.starts, self.starts[1:], strict=False):
            mine = (rows >= start) & (rows < stop)
            if mine.any():
                draws = crops[mine] if crops is not None and isinstance(store, FileStore) else None
                out[mine] = store.read(rows[mine] - start, draws)  # generated images have no file to crop
        return out


@dataclass(frozen=True)
class Images:
    """Rows of a store, each with its label."""

    store: Store
    rows: Tensor
    labels: Tensor

    @staticmethod
    def of(pixels: Tensor, labels: Tensor | None = None) -> Images:
        """Return all images of a uint8 tensor N × C × H × W; without labels, all of them are 0."""
        labels = torch.zeros(len(pixels)) if labels is None else labels
        if len(pixels) != len(labels):
            raise DataError(f"got {len(pixels)} images but {len(labels)} labels")
        return Images(TensorStore(pixels), torch.arange(len(labels)), labels.long())

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, where: Tensor | slice) -> Images:
        """Return the images at the given positions, or where a boolean mask is true."""
        return Images(self.store, self.rows[where], self.labels[where])

    def relabel(self, lookup: Tensor) -> Images:
        """Replace each label ``y`` by ``lookup[y]``, and drop the images for which that is negative."""
        labels = lookup[self.labels]
        return Images(self.store, self.rows[labels >= 0], labels[labels >= 0])

    def fingerprint(self) -> bytes:
        """Return a hash of images, order and labels."""
        return digest(self.store.fingerprint() + self.rows.numpy().tobytes() + self.labels.numpy().tobytes())

    def read(self, where: Tensor | slice = slice(None), crops: Tensor | None = None) -> Tensor:
        """Return the pixels of the images at the given positions (default: all) as uint8, N × C × H × W."""
        return self.store.read(self.rows[where], crops)


def pictures(images: Images) -> Images:
    """Return the images behind rows of features; other images are returned as they are."""
    store = images.store
    return store.source.select(images.rows) if isinstance(store, FeatureStore) and store.source else images


def read_ahead(images: Images, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield ``function(item)``; if the images must be decoded, the next item is prepared meanwhile."""
    in_memory = isinstance(images.store, TensorStore)
    return map(function, items) if in_memory else map_ahead(function, items, 1)


def join(parts: Sequence[Images]) -> Images:
    """Concatenate images; parts of the same store stay in it."""
    stores = list({id(part.store): part.store for part in parts}.values())
    labels = torch.cat([part.labels for part in parts])
    if len(stores) == 1:
        return Images(stores[0], torch.cat([part.rows for part in parts]), labels)
    joined = JoinedStore(stores)
    starts = {id(store): int(start) for store, start in zip(stores, joined.starts, strict=False)}
    return Images(joined, torch.cat([part.rows + starts[id(part.store)] for part in parts]), labels)
