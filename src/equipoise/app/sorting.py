"""Sort photos into folders by class, and group photos of unknown classes by similarity."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from equipoise.app.calibration import features_of
from equipoise.app.contact_sheet import write_sheet
from equipoise.app.model import ACCEPT, Model
from equipoise.app.photo_folder import printable
from equipoise.app.predict import BATCH, decode_source, images_below, is_ours
from equipoise.app.stored_images import folder_name, thumbnail
from equipoise.core.open_dir import check_path
from equipoise.core.signals import defer_signals
from equipoise.data.prefetch import decoder_pool, map_ahead
from equipoise.engine.results import Label
from equipoise.errors import DataError, UsageError
from equipoise.learn.clusters import cluster

How = Literal["copy", "link", "move"]
KNOWN = 5000
"""Images of known classes, at most, that are looked at when unknown ones are grouped."""
Progress = Callable[[Iterable[Any], int], Iterable[Any]]


@dataclass
class SortedPhoto:
    """Where a photo belongs."""

    path: str
    """As it can be shown."""
    source: str
    label: Label | None = None
    """The most probable class; None if the photo cannot be read."""
    probability: float = 0.0
    unknown: bool = False
    folder: str | None = None
    """The folder that it is sorted into; None if it is not moved."""
    to: str | None = None
    """The file that was made."""
    error: str | None = None
    picture: bytes = b""
    """A small JPEG."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        if self.error is not None:
            return {"path": self.path, "error": self.error}
        names = ("path", "to", "folder", "unknown", "probability")
        return {name: getattr(self, name) for name in names} | {"class": self.label}


def sort_photos(
    model: Model,
    folder: Path,
    out: Path,
    how: How = "copy",
    accept: float = ACCEPT,
    dry_run: bool = False,
    progress: Progress = lambda photos, total: photos,
) -> list[SortedPhoto]:
    """Predict all photos below a folder and sort them into ``out``. No file is overwritten.

    Parameters
    ----------
    model
        The model, with its images if it keeps any: they show how similar images of a class are.
    folder
        The folder with the photos; its subfolders are searched as well.
    out
        A new or empty directory.
    how
        Copy the photos, make symbolic links to them, or move them.
    accept
        Fraction of images of known classes to recognise as such.
    dry_run
        Only report what would be done.
    progress
        Wraps the photos, and may show how many are done.
    """
    model.check_takes_photos()
    _check_out(folder, out)
    sources = list(images_below(str(folder), links=False))
    photos, features = [], []
    for photo, row in progress(_predict(model, sources, accept), len(sources)):
        photos.append(photo)
        features += [row] if photo.unknown else []
    _name_folders(model, photos, features)
    if not dry_run:
        out.mkdir(parents=True, exist_ok=True)
        for photo in photos:
            if photo.folder is not None:
                with defer_signals():
                    _place(photo, out, how)
        write_sheet(out, photos)
    return photos


def _check_out(folder: Path, out: Path) -> None:
    check_path(folder)
    check_path(out)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a directory: choose the directory with the photos")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"{out} already exists: choose a new or empty directory")
    if f"{out.resolve()}/".startswith(f"{folder.resolve()}/"):
        raise UsageError(f"{out} is inside {folder}: choose a directory outside of it")
    if any(is_ours(str(parent)) for parent in (folder.resolve(), out.resolve(), *out.resolve().parents)):
        raise UsageError("photos are not sorted from or into the directory of a model or run: choose another place")


def _predict(
    model: Model, sources: list[tuple[str, str]], accept: float
) -> Iterator[tuple[SortedPhoto, Tensor | None]]:
    """Yield each photo with its class, and the features of those that are unknown."""
    least, predictor = model.least_familiar(accept), model.predictor()

    def read(source: tuple[str, str]) -> np.ndarray | str:
        return decode_source(source[1], model.shape[1], model.bicubic)

    decoded = zip(sources, map_ahead(read, sources, 2 * BATCH, decoder_pool()), strict=True)
    while batch := list(islice(decoded, BATCH)):
        pixels = [torch.from_numpy(image).permute(2, 0, 1) for _, image in batch if not isinstance(image, str)]
        found = model.inputs(torch.stack(pixels)) if pixels else None
        answers: Iterator[tuple[Any, ...]] = iter(())
        if found is not None:
            probabilities, familiar = predictor(found)
            best = probabilities.max(1)
            rows = features_of(model, found)
            answers = zip(pixels, rows, best.indices.tolist(), best.values.tolist(), familiar < least, strict=True)
        for (name, source), image in batch:
            if isinstance(image, str):
                yield SortedPhoto(name, source, error=image), None
                continue
            shown, row, index, probability, unknown = next(answers)
            label = model.classes[index]
            yield (
                SortedPhoto(name, source, label, round(probability, 6), bool(unknown), picture=thumbnail(shown)),
                row.clone() if unknown else None,
            )


def _name_folders(model: Model, photos: list[SortedPhoto], features: list[Tensor]) -> None:
    """Choose a folder for each photo: one per class, and unknown-1, unknown-2, … for groups of similar photos."""
    taken = {folder_name(label) for label in model.classes}
    unknown = [photo for photo in photos if photo.unknown]
    if unknown:
        kept = model.memory.images()
        known, labels = torch.zeros(0, len(features[0])), torch.zeros(0, dtype=torch.long)
        if kept is not None:
            some = kept.select(torch.arange(0, len(kept), max(1, -(-len(kept) // KNOWN))))
            known, labels = features_of(model, some), some.labels
        groups = cluster(torch.stack(features), known, labels).tolist()
        names = [
            name for number in range(1, len(taken) + max(groups) + 2) if (name := f"unknown-{number}") not in taken
        ]
        for photo, group in zip(unknown, groups, strict=True):
            photo.folder = names[group]
    for photo in photos:
        if photo.label is not None and not photo.unknown:
            photo.folder = folder_name(photo.label)


def _place(photo: SortedPhoto, out: Path, how: How) -> None:
    """Copy, link or move a photo into its folder under an unused name; record a failure."""
    folder, source, target = out / str(photo.folder), Path(photo.source), None
    try:
        folder.mkdir(exist_ok=True)
        target = _reserve(folder, source.name)
        if how == "link":
            target.unlink()
            target.symlink_to(source.absolute())
        elif how == "copy" or not _renamed(source, target):
            shutil.copy2(source, target)
            if how == "move":
                source.unlink()
        photo.to = printable(str(target))
    except OSError as error:
        if target is not None and os.path.lexists(source):  # leave no part of a copy
            target.unlink(missing_ok=True)
        photo.folder, photo.error = None, f"cannot {how} it ({error.strerror})"


def _renamed(source: Path, target: Path) -> bool:
    """Rename a file, which is possible on one file system; False if its content has to be copied."""
    if source.is_symlink():
        return False
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _reserve(folder: Path, name: str) -> Path:
    """Create an empty file of this name, or of this name with a number."""
    stem, suffix = os.path.splitext(name)  # noqa: PTH122 - the name may hold any bytes
    for number in range(1, 1_000_000):
        more = suffix if number == 1 else f"-{number}{suffix}"
        short = os.fsdecode(os.fsencode(stem)[: 255 - len(os.fsencode(more))])
        target = folder / (short + more)
        try:
            target.open("x").close()
        except FileExistsError:
            continue
        return target
    raise DataError(f"{folder} has too many files called {printable(name)}")


def sort_summary(photos: list[SortedPhoto]) -> dict[str, int]:
    """Return the number of photos in each folder, unknown ones last."""
    counts = Counter(photo.folder for photo in photos if photo.folder is not None and not photo.unknown)
    unknown = Counter(photo.folder for photo in photos if photo.folder is not None and photo.unknown)
    return dict(sorted(counts.items())) | dict(sorted(unknown.items(), key=lambda item: (len(item[0]), item[0])))
