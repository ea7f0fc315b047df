"""Whether a data set is whole: what its files should be, what there is, and what to do about the difference."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.images import decode, in_order
from equipoise.data.index import ENDINGS, Index, Listing, cache_home, count, list_images
from equipoise.data.sources import cifar100, data_root, load, source
from equipoise.data.sources.folder import class_folders, layout
from equipoise.data.sources.imagenet import choose
from equipoise.data.waiting import counted
from equipoise.errors import DataError

TRAIN_IMAGES = 1_281_167
COUNTS = {"train": (732, 1300), "val": (50, 50)}
"""The fewest and most images of a class in ImageNet."""
HUNDREDTH = "n01855672"
"""The last of ImageNet's first 100 synsets by name."""
ARCHIVES = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar"}


@dataclass(frozen=True)
class Fault:
    """Something that is missing or wrong."""

    what: str
    cure: str
    """Empty where ``what`` names it already."""
    where: tuple[str, ...] = ()

    def sentence(self, most: int = 8) -> str:
        """For people: the first places, and how many more there are."""
        more = f" and {len(self.where) - most:,} more" if len(self.where) > most else ""
        places = f" ({', '.join(self.where[:most])}{more})" if self.where else ""
        return f"{self.what}{places}" + (f": {self.cure}" if self.cure else "")


@dataclass
class Finding:
    """What a check has found."""

    dataset: str
    root: str
    classes: int = 0
    images: dict[str, int] = field(default_factory=dict)
    """How many images each part has."""
    faults: list[Fault] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return not self.faults

    def blame(self, what: str, cure: str = "", where: Iterable[str] | None = None) -> None:
        """Note a fault; one that is to be found nowhere is none."""
        places = tuple(where or ())
        if places or where is None:
            self.faults.append(Fault(what, cure, places))

    def plain(self) -> dict[str, Any]:
        faults = [asdict(fault) for fault in self.faults]
        facts = {"dataset": self.dataset, "root": self.root, "complete": self.complete}
        return facts | {"classes": self.classes, "images": self.images, "faults": faults}


def check(name: str, root: str | Path | None = None, deep: bool = False) -> Finding:
    """Look at the files of the data set ``name``; ``deep`` decodes every image."""
    place = data_root(name, root)
    found = Finding(name, "" if place is None else str(place))
    try:
        if source(name).needs_root and place is not None:
            trees = _folder(place, found) if name == "folder" else _imagenet(name, place, found)
            found.images = _totals(trees)
            if deep:
                index = [Index.of_tree(folder, listing) for folder, listing in trees.values()]
                found.blame("images that cannot be decoded", "fetch them again, or remove them", _broken(index))
        else:
            _whole(name, place, found)
    except DataError as error:
        found.blame(str(error))
    except OSError as error:
        found.blame(f"{error.filename} cannot be read ({error.strerror})", "see who may")
    return found


Trees = dict[str, tuple[Path, Listing]]
"""Of each part: where its class folders lie, and the images in them."""


def _whole(name: str, root: Path | None, found: Finding) -> None:
    """A data set of one file, or of none: loading it is a check of all of it."""
    home = root or cache_home()
    if name == "cifar100" and cifar100.find(home) is None:
        found.blame(f"{cifar100.ARCHIVE} is missing", f"put it into {home}, or let `equipoise run cifar100` fetch it")
        return
    data = load(name, root)
    found.classes = len(data.classes)
    found.images = {"train": len(data.train), "test": len(data.test)}


def _folder(root: Path, found: Finding) -> Trees:
    train, test = layout(root)
    classes = class_folders(train)
    found.classes = len(classes)
    parts = {"train": train} if test is None else {"train": train, test.name: test}
    trees = {part: (folder, list_images(folder, classes)) for part, folder in parts.items()}
    if test is None:
        few = [name for name, names in trees["train"][1].items() if count(names) == 1]
        found.blame("classes of one image, and one must be held out for testing", "add more", few)
    else:
        _blame_differences("train", test.name, classes, class_folders(test), found)
    _blame_empty(trees, found)
    return trees


def _imagenet(name: str, root: Path, found: Finding) -> Trees:
    folders = {part: _synsets(root / part, found) for part in ARCHIVES}
    try:
        chosen = choose(name, root / "train") if folders["train"] else folders["val"]
    except DataError as error:
        found.blame(str(error), f"unpack {ARCHIVES['train']}, which holds an archive for each synset, again")
        chosen = folders["train"]
    if name == "imagenet100" and len(chosen) == 100 and chosen[-1] != HUNDREDTH:
        found.blame(f"the 100th synset by name is {chosen[-1]}, not {HUNDREDTH}", "add what is missing before it")
    found.classes = len(chosen)
    if all(folders.values()):
        known, used = set(folders["train"]), set(chosen)
        relevant = [synset for synset in folders["val"] if synset in used or synset not in known]
        _blame_differences("train", "val", chosen, relevant, found)
    trees = {part: (root / part, list_images(root / part, chosen)) for part in ARCHIVES if folders[part]}
    _blame_empty(trees, found)
    for part, (_, listing) in trees.items():
        _blame_counts(part, {synset: count(names) for synset, names in listing.items() if names}, found)
    total = _totals(trees).get("train", TRAIN_IMAGES)
    if name == "imagenet1000" and total != TRAIN_IMAGES:
        found.blame(f"train/ has {total:,} images, but ImageNet {TRAIN_IMAGES:,}", f"unpack {ARCHIVES['train']} again")
    return trees


def _synsets(folder: Path, found: Finding) -> list[str]:
    """The class folders of one part of ImageNet; whatever else lies there is told."""
    part = folder.name
    unpack = f"unpack {ARCHIVES[part]} into {folder}, one folder for each synset"
    if not folder.is_dir():
        found.blame(f"{part}/ is missing", unpack)
        return []
    with os.scandir(folder) as entries:
        loose = sum(entry.name.lower().endswith(ENDINGS) for entry in entries)
    if loose:
        found.blame(
            f"{part}/ holds {loose:,} images outside synset folders, as they come out of {ARCHIVES[part]}",
            "move each into a folder named after its synset, which ILSVRC2012_validation_ground_truth.txt of the "
            "development kit tells",
        )
    try:
        names = class_folders(folder)
    except DataError:
        if not loose:
            found.blame(f"{part}/ is empty", unpack)
        return []
    strange = [name for name in names if not re.fullmatch(r"n\d{8}", name)]
    found.blame(f"folders in {part}/ whose names are no synsets, n and eight digits", "move them elsewhere", strange)
    return names


def _blame_differences(one: str, other: str, ours: list[str], theirs: list[str], found: Finding) -> None:
    for here, there, names in ((one, other, set(ours) - set(theirs)), (other, one, set(theirs) - set(ours))):
        found.blame(f"classes in {here}/ that are not in {there}/", f"add them to {there}/", sorted(names))


def _blame_empty(trees: Trees, found: Finding) -> None:
    for folder, listing in trees.values():
        empty = [name for name, names in listing.items() if not names]
        found.blame(f"class folders in {folder} without images", "add some or remove them", empty)


def _blame_counts(part: str, counts: dict[str, int], found: Finding) -> None:
    fewest, most = COUNTS[part]
    official = f"{fewest} to {most:,}" if fewest < most else str(most)
    off = [f"{synset}: {count:,}" for synset, count in counts.items() if not fewest <= count <= most]
    found.blame(f"classes in {part}/ that have other than {official} images", f"unpack {ARCHIVES[part]} again", off)


def _totals(trees: Trees) -> dict[str, int]:
    return {part: sum(map(count, listing.values())) for part, (_, listing) in trees.items()}


def _broken(indices: list[Index]) -> list[str]:
    """Every image decoded: the paths of those that cannot be, and why."""
    total = sum(len(index) for index in indices)
    answers = in_order(_wrong, (path for index in indices for path in _paths(index)))
    return [answer for answer in counted(answers, total, "decoding", "images") if answer is not None]


def _paths(index: Index, chunk: int = 1000) -> Iterator[str]:
    for start in range(0, len(index), chunk):
        yield from index.paths(np.arange(start, min(start + chunk, len(index))))


def _wrong(path: str) -> str | None:
    try:
        if Path(path).stat().st_size == 0:
            return f"{path} (it is empty)"
        decode(path, 8)
    except DataError as error:
        return f"{path} ({error.__cause__})"
    except OSError as error:
        return f"{path} ({error.strerror})"
    return None
