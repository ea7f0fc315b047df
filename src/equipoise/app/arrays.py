"""Arrays, tensors, paths and PIL images from Python as uint8 tensors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from equipoise.data.decoding import decode
from equipoise.data.prefetch import decoder_pool
from equipoise.engine.results import Label
from equipoise.errors import DataError, UsageError


def is_pixels(X: Any) -> bool:
    """Return whether ``X`` is an array or tensor of images rather than rows of features."""
    return isinstance(X, np.ndarray | Tensor) and X.ndim in (3, 4)


def is_images(X: Any) -> bool:
    """Return whether ``X`` is an array or tensor of images, or a list of paths or PIL images."""
    listed = isinstance(X, list | tuple) and len(X) > 0 and isinstance(X[0], str | os.PathLike | Image.Image)
    return listed or is_pixels(X)


def pixels_of(X: Any) -> Tensor:
    """Convert a NumPy array N × H × W (× C) or a torch tensor N × C × H × W to uint8, N × C × H × W."""
    channels_first = isinstance(X, Tensor)
    array = X.detach().cpu() if isinstance(X, Tensor) else torch.from_numpy(np.ascontiguousarray(X))
    if array.dtype != torch.uint8:
        raise DataError(f"images must be uint8 from 0 to 255, got {array.dtype}: scale to 255 and convert them")
    if array.dim() == 3:
        return array[:, None]
    if channels_first and (array.shape[1] in (1, 3, 4) or array.shape[3] not in (1, 3, 4)):
        return array
    return array.permute(0, 3, 1, 2)


def decode_all(X: Sequence[Any], size: int, bicubic: bool) -> Tensor:
    """Decode paths or PIL images to uint8, N × 3 × size × size."""

    def one(picture: Any) -> np.ndarray:
        if not isinstance(picture, str | os.PathLike | Image.Image):
            raise DataError(f"expected a path or a PIL image, got {picture!r}")
        return decode(picture if isinstance(picture, Image.Image) else os.fspath(picture), size, bicubic=bicubic)

    once = {id(picture): picture for picture in X}  # two threads must not load the same object
    with decoder_pool() as pool:
        decoded = dict(zip(once, pool.map(one, once.values()), strict=True))
    return torch.from_numpy(np.stack([decoded[id(picture)] for picture in X])).permute(0, 3, 1, 2)


def plain_label(label: Any) -> Label:
    """Return a label that JSON can store."""
    value = label.item() if isinstance(label, np.generic) else label
    if isinstance(value, str) and value.encode(errors="replace").decode() != value:
        raise UsageError(f"labels must be valid Unicode, got {value!r}")
    if isinstance(value, str | int | float | bool):
        return value
    raise UsageError(f"labels must be strings, numbers or booleans, got {label!r} ({type(value).__name__})")
