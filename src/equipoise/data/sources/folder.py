"""Any tree of class folders: ROOT/train/<class>/… and ROOT/test (or val), or ROOT/<class>/… split here."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from equipoise.data.augment import Augment
from equipoise.data.dataset import Dataset
from equipoise.data.images import FileStore, Images
from equipoise.data.index import ENDINGS, Index, list_images
from equipoise.errors import DataError, UsageError
from equipoise.seeding import generator

# ImageNet's channel statistics, the usual guess for photographs
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load(root: Path, size: int = 32, test_share: float = 0.2) -> Dataset:
    """Classes are folder names; without a test or val folder, ``test_share`` of each class is held out."""
    check_share(test_share)
    train, test = layout(root)
    classes = class_folders(train)
    mine = files(train, classes, size)
    parts = _split(mine, classes, test_share) if test is None else (mine, files(test, classes, size))
    return Dataset("folder", *parts, tuple(classes), Augment(MEAN, STD, pad=max(size // 8, 1), flip=True))


def layout(root: Path) -> tuple[Path, Path | None]:
    """Where the class folders for training and for testing lie; None if the former are to be split."""
    train, test = root / "train", next((root / n for n in ("test", "val") if (root / n).is_dir()), None)
    if not train.is_dir():
        return root, None
    if test is None and class_folders(root) == ["train"]:
        raise DataError(
            f"{root} has a train folder but neither test nor val: add one, or name {train} as the data root"
        )
    return (root, None) if test is None else (train, test)


def check_share(share: float) -> None:
    if not 0 < share < 1:
        raise UsageError(f"data.test_share is {share}, but it is a share, above 0 and below 1")


def class_folders(root: Path) -> list[str]:
    """The names of the class folders, sorted."""
    names = sorted(entry.name for entry in os.scandir(root) if _is_dir(entry) and not entry.name.startswith("."))
    if not names:
        raise DataError(f"{root} has no class folders: make one folder a class, with its images inside")
    for name in names:
        readable = name.encode(errors="replace").decode()
        if readable != name:
            raise DataError(f"the class folder {root}/{readable} has a name that is not UTF-8: rename it")
    return names


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads in a circle
        return False


def files(root: Path, classes: list[str], size: int, margin: float = 1.0) -> Images:
    """All images of the classes, in the order of their names; labels are places in ``classes``."""
    listing = list_images(root, classes)
    for name in classes:
        folder = root / name
        if name not in listing:
            raise DataError(f"the class folder {folder} is missing: add it, or take the class away everywhere")
        if not listing[name]:
            raise DataError(f"the class folder {folder} has no images ({', '.join(ENDINGS)}): add some or remove it")
    index = Index.of_tree(root, listing)
    return Images(FileStore(index, size, margin), torch.arange(len(index)), torch.from_numpy(index.labels()))


def _split(everything: Images, names: list[str], share: float) -> tuple[Images, Images]:
    is_test = torch.zeros(len(everything), dtype=torch.bool)
    for label, name in enumerate(names):
        mine = (everything.labels == label).nonzero().flatten()
        if len(mine) < 2:
            raise DataError(f"class '{name}' has {len(mine)} image, and one must be held out for testing: add more")
        shuffled = mine[torch.randperm(len(mine), generator=generator("folder", name))]
        is_test[shuffled[: max(1, round(share * len(mine)))]] = True
    return everything.select(~is_test), everything.select(is_test)
