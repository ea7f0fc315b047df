"""Your own class folders: ROOT/train/<class>/… with ROOT/test or ROOT/val, or ROOT/<class>/… without a test part."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from equipoise.core.ranges import HOLD_OUT, IMAGE_SIDE
from equipoise.core.seeding import generator
from equipoise.data.augment import Augment
from equipoise.data.dataset import Dataset
from equipoise.data.images import FileStore, Images
from equipoise.data.index import ENDINGS, Index, is_dir, list_images
from equipoise.data.split import hold_out
from equipoise.errors import DataError

# ImageNet's channel statistics, as usual for photographs
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load(root: Path, size: Annotated[int, IMAGE_SIDE] = 32, test_fraction: Annotated[float, HOLD_OUT] = 0.2) -> Dataset:
    """Load a tree of class folders.

    Parameters
    ----------
    root
        The tree.
    size
        Decode images to this many pixels per side.
    test_fraction
        Fraction of each class to hold out for testing if the tree has no test part.
    """
    check_test_fraction(test_fraction)
    train, test = train_test_folders(root)
    classes = list(by_class(class_folders(train)))
    images = open_images(train, classes, size)
    if test is None:
        for name, count in zip(classes, torch.bincount(images.labels).tolist(), strict=True):
            if count < 2:
                raise DataError(f"class '{name}' has only {count} image, and one is held out for testing: add more")
        parts = split_test(images, test_fraction, lambda label: generator("folder", classes[label]))
    else:
        parts = images, open_images(test, classes, size)
    return Dataset("folder", *parts, tuple(classes), Augment(MEAN, STD, pad=max(size // 8, 1), flip=True))


def train_test_folders(root: Path) -> tuple[Path, Path | None]:
    """Return where the class folders for training and testing are; without a test part, the second is None."""
    train, test = root / "train", next((root / n for n in ("test", "val") if (root / n).is_dir()), None)
    if not train.is_dir():
        return root, None
    if test is None and class_folders(root) == ["train"]:
        raise DataError(f"{root} has a train folder but neither test nor val: add one, or use {train} as the data root")
    return (root, None) if test is None else (train, test)


def check_test_fraction(fraction: float) -> None:
    """Raise an error unless the fraction leaves images for training and for testing."""
    HOLD_OUT.check(fraction, "data.test_fraction")


def class_folders(root: Path) -> list[str]:
    """Return the names of the class folders, sorted."""
    with os.scandir(root) as entries:
        names = sorted(entry.name for entry in entries if is_dir(entry) and not entry.name.startswith("."))
    if not names:
        raise DataError(f"{root} has no class folders: make one folder per class and put its images into it")
    for name in names:
        readable = name.encode(errors="replace").decode()
        if readable != name:
            raise DataError(f"the name of the class folder {root}/{readable} is not UTF-8: rename it")
    return names


def by_class(folders: Iterable[str]) -> dict[str, list[str]]:
    r"""Return the folders of each class, sorted; composed and decomposed accents are the same class.

    >>> print(ascii(by_class(["cafe\u0301", "caf\u00e9", "bar"])))
    {'bar': ['bar'], 'caf\xe9': ['cafe\u0301', 'caf\xe9']}
    """
    found: dict[str, list[str]] = {}
    for name in folders:
        found.setdefault(unicodedata.normalize("NFC", name), []).append(name)
    return {name: sorted(found[name]) for name in sorted(found)}


def open_images(root: Path, classes: list[str], size: int, margin: float = 1.0) -> Images:
    """Return all images of the classes, sorted by name and decoded when they are read.

    Parameters
    ----------
    root
        The directory of the class folders.
    classes
        Names of the classes, as ``by_class`` returns them; labels are positions in this list.
    size
        Pixels per side.
    margin
        What the centre crop leaves out; see ``decode``.
    """
    with os.scandir(root) as entries:
        there = by_class(entry.name for entry in entries)
    folders = [(label, folder) for label, name in enumerate(classes) for folder in there.get(name, [name])]
    listing = list_images(root, [folder for _, folder in folders])
    folders = [(label, folder) for label, folder in folders if folder in listing]
    names: dict[int, list[bytes]] = {}
    for label, folder in folders:
        names.setdefault(label, []).append(listing[folder])
    for label, name in enumerate(classes):
        place, mine = root / name, names.get(label, [])
        if not mine:
            raise DataError(f"the class folder {place} is missing: add it, or remove the class from all parts")
        if not any(mine):
            raise DataError(
                f"no images found in the class folder {place} ({', '.join(ENDINGS)}): add some or remove it"
            )
    index = Index.of_tree(root, {folder: listing[folder] for _, folder in folders})
    labels = np.array([label for label, _ in folders])[index.labels()]
    return Images(FileStore(index, size, margin), torch.arange(len(index)), torch.from_numpy(labels))


def split_test(images: Images, fraction: float, random: Callable[[int], torch.Generator]) -> tuple[Images, Images]:
    """Return training and test images: a fraction of each class is drawn for testing, and at least one image.

    Parameters
    ----------
    images
        All images.
    fraction
        Fraction of each class.
    random
        The generator for a label.
    """
    check_test_fraction(fraction)
    is_test = hold_out(images.labels, lambda count: max(1, round(fraction * count)), random)
    return images.select(~is_test), images.select(is_test)
