"""Labelled images as uint8: one tensor in memory, or files that are decoded when a batch asks for them.

``Images`` is a view: which rows of a store, with which labels. Selecting, joining and relabelling copy no pixels.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import numpy as np
import torch
from PIL import ExifTags, Image
from torch import Tensor

from equipoise.data.index import Index
from equipoise.errors import DataError, UsageError

T = TypeVar("T")
R = TypeVar("R")
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


class Store(Protocol):
    """Where pixels come from."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width of every image."""

    @property
    def dtype(self) -> torch.dtype:
        """uint8 for pixels; features are floats."""

    def __len__(self) -> int: ...

    def fingerprint(self) -> bytes:
        """The same for the same images, whatever directory they lie in."""

    def read(self, rows: Tensor, crops: Tensor | None = None) -> Tensor:
        """The images of ``rows`` as uint8, N × C × H × W; ``crops`` are random-resized-crop draws, one row an image."""


class TensorStore:
    """All pixels in one uint8 tensor, N × C × H × W. Rows of features come as floats, N × features × 1 × 1."""

    def __init__(self, pixels: Tensor) -> None:
        features = pixels.dtype == torch.float32 and pixels.shape[2:] == (1, 1)
        if pixels.dim() != 4 or not (pixels.dtype == torch.uint8 or features):
            raise DataError(f"images must be uint8, N × C × H × W, not {pixels.dtype} {tuple(pixels.shape)}")
        self.pixels = pixels

    @property
    def shape(self) -> tuple[int, int, int]:
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    @property
    def dtype(self) -> torch.dtype:
        return self.pixels.dtype

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

    def __init__(self, files: Index | Sequence[str | Path], size: int, margin: float = 1.0) -> None:
        check_size(size)
        self.index = files if isinstance(files, Index) else Index.of(files)
        self.size, self.margin = size, margin

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return decoders()

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.size, self.size

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    def __len__(self) -> int:
        return len(self.index)

    def fingerprint(self) -> bytes:
        # names of file and class folder: sizes would cost a look at each of 1.28 million files
        return digest(self.index.text())

    def read(self, rows: Tensor, crops: Tensor | None = None) -> Tensor:
        paths = self.index.paths(rows.numpy())
        draws = [None] * len(paths) if crops is None else crops.tolist()
        images = list(self._pool.map(lambda path, draw: decode(path, self.size, draw, self.margin), paths, draws))
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


def check_size(size: int) -> None:
    if size < 8:
        raise UsageError(f"data.size is {size}, but images must be at least 8 pixels wide")


def decoders() -> ThreadPoolExecutor:
    """Threads that decode: as many as cores, for Pillow holds no lock while it works."""
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="decode")


def in_order(work: Callable[[T], R], things: Iterable[T], ahead: int = 256) -> Iterator[R]:
    """``work`` done on each thing by the decoding threads; no more than ``ahead`` answers wait to be asked for."""
    with decoders() as pool:
        waiting: deque[Future[R]] = deque()
        for thing in things:
            waiting.append(pool.submit(work, thing))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def decode(
    source: str | BinaryIO | Image.Image, size: int, draw: Sequence[float] | None = None, margin: float = 1.0
) -> np.ndarray:
    """One picture as size × size × 3 uint8: a random resized crop if ``draw`` is given, else the centre.

    The centre is the largest square in the middle, its edge divided by ``margin`` (ImageNet's custom: 256/224).
    """
    try:
        if isinstance(source, Image.Image):
            source.load()  # one that is not loaded would be made smaller, and it is its owner's
            return np.array(square(source, size, draw, margin))
        with Image.open(source) as file:
            return np.array(square(file, size, draw, margin))  # a copy: torch wants arrays it may write to
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        name = source if isinstance(source, str) else "the image"
        raise DataError(f"{name} cannot be read as an image ({error}): mend or remove it") from error


def square(picture: Image.Image, size: int, draw: Sequence[float] | None = None, margin: float = 1.0) -> Image.Image:
    """A picture of any mode as size × size RGB, upright, what is transparent made white."""
    if picture.format == "TIFF":
        picture.load()  # which sets it upright, and forgets how it was held
    box = _centre(picture.size, margin) if draw is None else _random_box(picture.size, draw)
    # JPEG decodes to a half, quarter or eighth when the crop stays at least as large as asked for
    scale = min(box[2] - box[0], box[3] - box[1]) / size
    if scale >= 2 and picture.format == "JPEG":
        full = picture.size
        picture.draft("RGB", (int(full[0] / scale), int(full[1] / scale)))
        across, down = picture.size[0] / full[0], picture.size[1] / full[1]
        box = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
    # rounding may have moved an edge out of the picture by the last bit, which Pillow refuses
    box = max(box[0], 0), max(box[1], 0), min(box[2], picture.size[0]), min(box[3], picture.size[1])
    turn = TURNS.get(picture.getexif().get(ExifTags.Base.Orientation, 1))
    small = _rgb(picture).resize((size, size), Image.Resampling.BILINEAR, box)
    return small if turn is None else small.transpose(turn)  # a square turns in its place


TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""How a camera was held (EXIF's orientation), and what sets its pictures upright."""


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I;16"):  # convert() would clip 16 bits to white instead of scaling them
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if picture.mode in ("I", "F"):  # convert() would clip them, too, and nobody knows which value is white
        raise ValueError("its pixels have 32 bits: save it with 8 or 16")
    if picture.has_transparency_data:  # what lies behind a transparent pixel is arbitrary, often black
        seen = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _centre(size: tuple[int, int], margin: float) -> Box:
    edge = min(size) / margin
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
    return left, top, left + w, top + h


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

    @property
    def dtype(self) -> torch.dtype:
        return self.stores[0].dtype

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
    stores = list({id(part.store): part.store for part in parts}.values())
    labels = torch.cat([part.labels for part in parts])
    if len(stores) == 1:
        return Images(stores[0], torch.cat([part.rows for part in parts]), labels)
    joined = JoinedStore(stores)
    starts = {id(store): int(start) for store, start in zip(stores, joined.starts, strict=False)}
    return Images(joined, torch.cat([part.rows + starts[id(part.store)] for part in parts]), labels)
