"""What people hold in Python — arrays, tensors, paths, pictures, features — as images of a store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from equipoise.data.images import decode, decoders
from equipoise.errors import DataError, UsageError


def is_list_of_pictures(X: Any) -> bool:
    """Whether ``X`` is a list of paths or of PIL images."""
    return isinstance(X, list | tuple) and len(X) > 0 and isinstance(X[0], str | os.PathLike | Image.Image)


def is_pixels(X: Any) -> bool:
    """Whether ``X`` is an array or tensor of images rather than rows of features."""
    return isinstance(X, np.ndarray | Tensor) and X.ndim in (3, 4)


def pixels_of(X: Any) -> Tensor:
    """uint8, N × C × H × W, of a NumPy array N × H × W (× C) or of a torch tensor N × C × H × W."""
    channels_first = isinstance(X, Tensor)
    array = X.detach().cpu() if isinstance(X, Tensor) else torch.from_numpy(np.ascontiguousarray(X))
    if array.dtype != torch.uint8:
        raise DataError(f"images must be uint8, from 0 to 255, not {array.dtype}: multiply by 255 and convert them")
    if array.dim() == 3:
        return array[:, None]
    if channels_first and (array.shape[1] in (1, 3, 4) or array.shape[3] not in (1, 3, 4)):
        return array
    return array.permute(0, 3, 1, 2)


def decode_all(X: Sequence[Any], size: int) -> Tensor:
    """Paths or PIL images as uint8, N × 3 × size × size."""

    def one(picture: Any) -> np.ndarray:
        if isinstance(picture, Image.Image):
            return decode(picture, size)
        if isinstance(picture, str | os.PathLike):
            return decode(os.fspath(picture), size)
        raise DataError(f"{picture!r} is neither a path nor a PIL image")

    once = {id(picture): picture for picture in X}  # two threads must not load the same object
    with decoders() as pool:
        decoded = dict(zip(once, pool.map(one, once.values()), strict=True))
    return torch.from_numpy(np.stack([decoded[id(picture)] for picture in X])).permute(0, 3, 1, 2)


def short_side_of(X: Sequence[Any], sample: int = 100) -> int:
    """The usual length of the short side."""
    sides = []
    for picture in X[:: max(1, len(X) // sample)]:
        if isinstance(picture, Image.Image):
            sides.append(min(picture.size))
        else:
            try:
                with Image.open(os.fspath(picture)) as file:
                    sides.append(min(file.size))
            except (OSError, TypeError) as error:
                raise DataError(f"{picture} cannot be read as an image ({error}): mend or remove it") from error
    return int(np.median(sides))


def plain(label: Any) -> str | int | float | bool:
    """A label as JSON can keep it."""
    value = label.item() if isinstance(label, np.generic) else label
    if isinstance(value, str | int | float | bool):
        return value
    raise UsageError(f"the label {label!r} is a {type(value).__name__}: labels must be texts, numbers or truth values")
