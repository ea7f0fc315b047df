"""Arrays, tensors, paths and PIL images from Python as uint8 tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from equipoise.app.labels import check_labels
from equipoise.data.decoding import decode
from equipoise.data.prefetch import decoder_pool
from equipoise.engine.results import Label
from equipoise.errors import DataError


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


def label_array(y: Any) -> np.ndarray:
    """Return labels as an array, and raise an error where that would change them."""
    if isinstance(y, list | tuple) or (isinstance(y, np.ndarray) and y.dtype == object):
        flat = y.ravel().tolist() if isinstance(y, np.ndarray) else y
        if not any(isinstance(label, list | tuple | np.ndarray) for label in flat):  # a column is checked below
            check_labels(flat)  # before NumPy converts them
    labels = np.asarray(column_or_1d(y))
    if labels.dtype != object:
        check_labels(np.unique(labels))
    return labels


def unique_labels(labels: np.ndarray) -> tuple[list[Label], np.ndarray]:
    """Return the classes in an array of labels, sorted, and the position of each label among them."""
    found, positions = np.unique(labels, return_inverse=True)
    plain = check_labels(found)
    names, merged = np.unique(np.array(plain), return_inverse=True)  # two spellings may be one class
    return check_labels(names), merged.reshape(-1)[positions.reshape(-1)]


def sorted_labels(labels: Iterable[Label]) -> np.ndarray:
    """Return different labels of one type as a sorted array."""
    plain = list(labels)
    check_labels(plain)
    return np.unique(np.array(plain))
