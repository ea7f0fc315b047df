"""Check that the files of a data set are complete, and suggest how to fix each problem."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from equipoise.core.progress_line import track
from equipoise.data.decoding import decode
from equipoise.data.index import Listing, cache_dir, count, is_image_name, list_images, unpack
from equipoise.data.prefetch import decoder_pool, map_ahead
from equipoise.data.sources import cifar100, data_root, load, source, tiny_imagenet
from equipoise.data.sources.folder import by_class, class_folders, train_test_folders
from equipoise.data.sources.imagenet import select_synsets
from equipoise.errors import DataError

TRAIN_IMAGES = 1_281_167
COUNTS = {"train": (732, 1300), "val": (50, 50)}
"""The smallest and largest number of images per class in ImageNet."""
HUNDREDTH = "n01855672"
"""The last of ImageNet's first 100 synsets by name."""
ARCHIVES = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar"}

Trees = dict[str, tuple[Path, Listing]]
"""The directory of each part's class folders, and the images in them."""


@dataclass(frozen=True)
class Problem:
    """Something that is missing or wrong."""

    what: str
    remedy: str
    """Empty if ``what`` includes it."""
    where: tuple[str, ...] = ()
    """The classes or files concerned; empty if ``what`` names them."""

    def describe(self, limit: int = 8) -> str:
        """Return one sentence that names at most ``limit`` classes or files."""
        more = f" and {len(self.where) - limit:,} more" if len(self.where) > limit else ""
        places = f" ({', '.join(self.where[:limit])}{more})" if self.where else ""
        return f"{self.what}{places}" + (f": {self.remedy}" if self.remedy else "")


@dataclass
class CheckResult:
    """What a check found."""

    dataset: str
    root: str
    classes: int = 0
    images: dict[str, int] = field(default_factory=dict)
    """Number of images in each part."""
    problems: list[Problem] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return not self.problems

    def add(self, what: str, remedy: str = "", where: Sequence[str] | None = None) -> None:
        """Add a problem; if it concerns classes or files, only if there are any."""
        if where is None or where:
            self.problems.append(Problem(what, remedy, tuple(where or ())))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self) | {"complete": self.complete}


def check(name: str, root: str | Path | None = None, deep: bool = False) -> CheckResult:
    """Check the files of a data set.

    Parameters
    ----------
    name
        Name of the data set.
    root
        Directory of its files (default: EQUIPOISE_DATA, or the user's cache).
    deep
        Decode every image of a tree of class folders, to find damaged files.
    """
    place = data_root(name, root)
    result = CheckResult(name, "" if place is None else str(place))
    try:
        if source(name).root == "required" and name != tiny_imagenet.NAME and place is not None:
            trees = _check_folders(place, result) if name == "folder" else _check_imagenet(name, place, result)
            if deep:
                bad = _undecodable(trees, sum(result.images.values()))
                result.add("images that cannot be decoded", "replace or remove them", bad)
        else:
            _check_by_loading(name, place, result)
    except DataError as error:
        result.add(str(error))
    except OSError as error:
        result.add(f"cannot read {error.filename} ({error.strerror})", "check its permissions")
    return result


def _check_by_loading(name: str, root: Path | None, result: CheckResult) -> None:
    """Check a data set that is generated or comes in one archive: loading it verifies all of it."""
    home = root or cache_dir()
    if name == "cifar100" and cifar100.find_files(home) is None:
        remedy = f"put it into {home}, or download it with `equipoise run cifar100`"
        result.add(f"{cifar100.ARCHIVE} is missing", remedy)
        return
    data = load(name, root)
    result.classes = len(data.classes)
    result.images = {"train": len(data.train), "test": len(data.test)}


def _check_folders(root: Path, result: CheckResult) -> Trees:
    train, test = train_test_folders(root)
    classes = class_folders(train)
    result.classes = len(by_class(classes))
    parts = {"train": train} if test is None else {"train": train, test.name: test}
    trees = _list(parts, classes, result)
    if test is None:
        listing = trees["train"][1]
        groups = by_class(listing).items()
        single = [name for name, folders in groups if sum(count(listing[folder]) for folder in folders) == 1]
        what = "classes with a single image, although one per class is held out for testing"
        result.add(what, "add more images", single)
    else:
        _check_same_classes(test.name, list(by_class(classes)), list(by_class(class_folders(test))), result)
    return trees


def _check_imagenet(name: str, root: Path, result: CheckResult) -> Trees:
    folders = {part: _check_synsets(root / part, result) for part in ARCHIVES}
    try:
        chosen = select_synsets(name, root / "train") if folders["train"] else folders["val"]
    except DataError as error:
        result.add(str(error), f"unpack {ARCHIVES['train']}, which contains one archive per synset, again")
        chosen = folders["train"]
    if name == "imagenet100" and len(chosen) == 100 and chosen[-1] != HUNDREDTH:
        result.add(f"the 100th synset by name is {chosen[-1]} instead of {HUNDREDTH}", "add the missing synsets")
    result.classes = len(chosen)
    if all(folders.values()):
        known, used = set(folders["train"]), set(chosen)
        relevant = [synset for synset in folders["val"] if synset in used or synset not in known]
        _check_same_classes("val", chosen, relevant, result)
    trees = _list({part: root / part for part in ARCHIVES if folders[part]}, chosen, result)
    for part, (_, listing) in trees.items():
        fewest, most = COUNTS[part]
        official = f"{fewest} to {most:,}" if fewest < most else str(most)
        counts = {synset: count(names) for synset, names in listing.items() if names}
        wrong = [f"{synset}: {images:,}" for synset, images in counts.items() if not fewest <= images <= most]
        what = f"classes in {part}/ whose number of images is not {official}"
        result.add(what, f"unpack {ARCHIVES[part]} again", wrong)
    total = result.images.get("train", TRAIN_IMAGES)
    if name == "imagenet1000" and total != TRAIN_IMAGES:
        what = f"train/ has {total:,} images instead of ImageNet's {TRAIN_IMAGES:,}"
        result.add(what, f"unpack {ARCHIVES['train']} again")
    return trees


def _list(folders: dict[str, Path], classes: list[str], result: CheckResult) -> Trees:
    """List and count the images of each part, and report class folders without any."""
    trees = {part: (folder, list_images(folder, classes)) for part, folder in folders.items()}
    for part, (folder, listing) in trees.items():
        result.images[part] = sum(map(count, listing.values()))
        empty = [name for name, names in listing.items() if not names]
        result.add(f"class folders in {folder} without images", "add some or remove the folders", empty)
    return trees


def _check_synsets(folder: Path, result: CheckResult) -> list[str]:
    """Return the class folders of one part of ImageNet, and report everything else in it."""
    part = folder.name
    remedy = f"unpack {ARCHIVES[part]} into {folder}, with one folder per synset"
    if not folder.is_dir():
        result.add(f"{part}/ is missing", remedy)
        return []
    with os.scandir(folder) as entries:
        loose = sum(is_image_name(entry.name) for entry in entries)
    if loose:
        result.add(
            f"{part}/ has {loose:,} images outside of synset folders, as {ARCHIVES[part]} contains them",
            "move each into the folder of its synset; the development kit lists the synsets in "
            "ILSVRC2012_validation_ground_truth.txt",
        )
    try:
        names = class_folders(folder)
    except DataError:
        if not loose:
            result.add(f"{part}/ is empty", remedy)
        return []
    invalid = [name for name in names if not re.fullmatch(r"n\d{8}", name)]
    what = f"folders in {part}/ whose names are not synsets such as n01440764"
    result.add(what, "move them elsewhere", invalid)
    return names


def _check_same_classes(part: str, train: list[str], test: list[str], result: CheckResult) -> None:
    for here, there, names in (("train", part, set(train) - set(test)), (part, "train", set(test) - set(train))):
        result.add(f"classes in {here}/ that are not in {there}/", f"add them to {there}/", sorted(names))


def _undecodable(trees: Trees, total: int) -> list[str]:
    """Decode every image, and return the path and the reason of each one that fails."""
    folders = ((folder / name, names) for folder, listing in trees.values() for name, names in listing.items())
    paths = (f"{folder}{os.sep}{file}" for folder, names in folders for file in unpack(names))
    answers = map_ahead(_decode_error, paths, 256, decoder_pool())
    return [answer for answer in track(answers, total, "decoding", "images") if answer is not None]


def _decode_error(path: str) -> str | None:
    try:
        if Path(path).stat().st_size == 0:
            return f"{path} (the file is empty)"
        decode(path, 8)
    except DataError as error:
        return f"{path} ({error.__cause__})"
    except OSError as error:
        return f"{path} ({error.strerror})"
    return None
