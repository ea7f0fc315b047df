"""ImageNet (ILSVRC 2012) as ROOT/train/<synset>/*.JPEG and ROOT/val/<synset>/*.JPEG: all classes, or 100 of them.

There are two versions of "ImageNet-100", and their results are not comparable: WA, BiC, PODNet and DER use the first
100 synsets by name; LUCIR and PyCIL use the first 100 of the 1,000 synsets after a shuffle with seed 1993.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from equipoise.core.ranges import IMAGE_SIDE
from equipoise.data.augment import Augment
from equipoise.data.dataset import Dataset
from equipoise.data.sources.folder import MEAN, STD, class_folders, open_images
from equipoise.data.stream import class_order
from equipoise.errors import DataError

MARGIN = 256 / 224
"""Test images are the central 224 pixels after resizing the short side to 256."""


def select_synsets(name: str, train: Path) -> list[str]:
    """Return the synsets in ``train`` that the data set ``name`` consists of."""
    synsets, at_least = class_folders(train), 100 if name == "imagenet100" else 1000
    if len(synsets) < at_least or (at_least == 1000 and len(synsets) != 1000):
        raise DataError(f"{train} has {len(synsets)} synset folders, but {name} needs {at_least}")
    if name == "imagenet100-lucir":
        return [synsets[c] for c in class_order(1993, 1000)[:100]]
    return synsets[:at_least]


def load(name: str, root: Path, size: Annotated[int, IMAGE_SIDE] = 224) -> Dataset:
    """Load the synsets of the data set ``name``, with images of ``size`` pixels per side."""
    for part in ("train", "val"):
        if not (root / part).is_dir():
            raise DataError(f"{root} has no '{part}' folder: it must contain train/ and val/, each with synset folders")
    synsets = select_synsets(name, root / "train")
    train, val = (open_images(root / part, synsets, size, MARGIN) for part in ("train", "val"))
    return Dataset(name, train, val, tuple(synsets), Augment(MEAN, STD, flip=True, resized_crop=True))
