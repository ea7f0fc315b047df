"""ImageNet (ILSVRC 2012) as ROOT/train/<synset>/*.JPEG and ROOT/val/<synset>/*.JPEG, whole or 100 of its classes.

"ImageNet-100" exists twice, and figures on one do not compare with figures on the other: WA, BiC, PODNet and DER take
the first 100 synsets by name; LUCIR and PyCIL take the first 100 of the 1,000 shuffled with seed 1993.
"""

from __future__ import annotations

from pathlib import Path

from equipoise.data.augment import Augment
from equipoise.data.dataset import Dataset
from equipoise.data.sources.folder import MEAN, STD, class_folders, files
from equipoise.data.stream import class_order
from equipoise.errors import DataError

MARGIN = 256 / 224
"""Test images are the middle 224 pixels of a short side of 256."""


def load1000(root: Path, size: int = 224) -> Dataset:
    return _load("imagenet1000", root, size)


def load100(root: Path, size: int = 224) -> Dataset:
    """The first 100 synsets by name: n01440764 … n01855672 in the real tree."""
    return _load("imagenet100", root, size)


def load100_lucir(root: Path, size: int = 224) -> Dataset:
    """The first 100 of all 1,000 synsets shuffled with seed 1993, in that order."""
    return _load("imagenet100-lucir", root, size)


def choose(name: str, train: Path) -> list[str]:
    """Which of the synsets in ``train`` make up the data set ``name``."""
    synsets, at_least = class_folders(train), 100 if name == "imagenet100" else 1000
    if len(synsets) < at_least or (at_least == 1000 and len(synsets) != 1000):
        raise DataError(f"{train} has {len(synsets)} synset folders, but {at_least} are needed")
    if name == "imagenet100-lucir":
        return [synsets[c] for c in class_order(1993, 1000)[:100]]
    return synsets[:at_least]


def _load(name: str, root: Path, size: int) -> Dataset:
    for part in ("train", "val"):
        if not (root / part).is_dir():
            raise DataError(f"{root} has no '{part}' folder: it must hold train/ and val/, each with synset folders")
    synsets = choose(name, root / "train")
    train, val = (files(root / part, synsets, size, MARGIN) for part in ("train", "val"))
    return Dataset(name, train, val, tuple(synsets), Augment(MEAN, STD, flip=True, resized_crop=True))
