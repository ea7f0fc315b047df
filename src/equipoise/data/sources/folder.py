"""Any tree of class folders: ROOT/train/<class>/… and ROOT/test (or val), or ROOT/<class>/… split here."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from equipoise.data.augment import Augment
from equipoise.data.dataset import Dataset
from equipoise.data.images import FileStore, Images
from equipoise.errors import DataError, UsageError
from equipoise.seeding import generator

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
# ImageNet's channel statistics, the usual guess for photographs
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load(root: Path, size: int = 32, test_share: float = 0.2) -> Dataset:
    """Classes are folder names; without a test or val folder, ``test_share`` of each class is held out."""
    check_share(test_share)
    train, test = root / "train", next((root / n for n in ("test", "val") if (root / n).is_dir()), None)
    if train.is_dir() and test is not None:
        classes = class_folders(train)
        names = tuple(classes)
        parts = (files(train, classes, size), files(test, classes, size))
    elif train.is_dir() and class_folders(root) == ["train"]:
        raise DataError(
            f"{root} has a train folder but neither test nor val: add one, or name {train} as the data root"
        )
    else:
        classes = class_folders(root)
        names = tuple(classes)
        parts = _split(files(root, classes, size), names, test_share)
    return Dataset("folder", *parts, names, Augment(MEAN, STD, pad=max(size // 8, 1), flip=True))


def check_share(share: float) -> None:
    if not 0 < share < 1:
        raise UsageError(f"data.test_share is {share}, but it is a share, above 0 and below 1")


def class_folders(root: Path) -> list[str]:
    """The names of the class folders, sorted."""
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise DataError(f"{root} has no class folders: make one folder a class, with its images inside")
    return names


def files(root: Path, classes: list[str], size: int, margin: float = 1.0) -> Images:
    """All images of the classes, in the order of their names; labels are places in ``classes``."""
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        folder = root / name
        if not folder.is_dir():
            raise DataError(f"the class folder {folder} is missing: add it, or take the class away everywhere")
        mine = sorted(e.path for e in os.scandir(folder) if e.name.lower().endswith(ENDINGS) and e.is_file())
        if not mine:
            raise DataError(f"the class folder {folder} has no images ({', '.join(ENDINGS)}): add some or remove it")
        paths += mine
        labels += [label] * len(mine)
    return Images(FileStore(paths, size, margin), torch.arange(len(paths)), torch.tensor(labels))


def _split(everything: Images, names: tuple[str, ...], share: float) -> tuple[Images, Images]:
    is_test = torch.zeros(len(everything), dtype=torch.bool)
    for label, name in enumerate(names):
        mine = (everything.labels == label).nonzero().flatten()
        if len(mine) < 2:
            raise DataError(f"class '{name}' has {len(mine)} image, and one must be held out for testing: add more")
        shuffled = mine[torch.randperm(len(mine), generator=generator("folder", name))]
        is_test[shuffled[: max(1, round(share * len(mine)))]] = True
    return everything.select(~is_test), everything.select(is_test)
