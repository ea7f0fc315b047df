"""Tiny-ImageNet-100: ImageNet pictures of 64×64 pixels as train/<synset>/*.JPEG and val/<synset>/*.JPEG, or packed.

These are 100 of the 200 classes of Tiny-ImageNet, with 250 training images each. All images are decoded once, when the
data set is loaded. The archive is read in memory: nothing in it is written to disk.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from equipoise.core.progress_line import track
from equipoise.core.ranges import IMAGE_SIDE
from equipoise.data.augment import Augment
from equipoise.data.dataset import Dataset
from equipoise.data.decoding import check_size, decode
from equipoise.data.images import Images
from equipoise.data.index import is_image_name
from equipoise.data.prefetch import decoder_pool, map_ahead
from equipoise.data.sources.folder import MEAN, STD
from equipoise.data.tar_archive import MAX_ARCHIVE_BYTES, SHOWN, read_archive
from equipoise.errors import DataError, UsageError

NAME = "tiny-imagenet-100"
ARCHIVE = f"{NAME}.tar.gz"
PARTS = ("train", "val")
CLASSES = 100
MAX_SIZE = 256
"""Maximum pixels per side: all images are kept in memory."""
MAX_FILE_BYTES = 2**20
MAX_FILES = 100_000
UNPACK_AGAIN = "unpack the archive again"
GET_AGAIN = "get the archive again"

Files = dict[str, dict[str, dict[str, Callable[[], bytes]]]]
"""Part, synset and name of each image file, with a function that reads it."""


def load(root: Path, size: Annotated[int, IMAGE_SIDE] = 64) -> Dataset:
    """Load all images.

    Parameters
    ----------
    root
        Directory of the archive, of the unpacked folder, or of train/ and val/.
    size
        Decode images to this many pixels per side.
    """
    check_size(size)
    if size > MAX_SIZE:
        raise UsageError(f"data.size must be at most {MAX_SIZE} pixels, got {size}")
    place = _find(root)
    try:
        files = _list_tree(place) if place.is_dir() else _read_archive(place)
        synsets = _check_synsets(files, place)
        train, val = (_decode_all(files[part], synsets, size, place / part) for part in PARTS)
    except PermissionError as error:
        raise DataError(f"cannot read {error.filename or place} ({error.strerror}): check its permissions") from error
    except OSError as error:
        raise DataError(f"cannot read {error.filename or place} ({error.strerror or error}): {GET_AGAIN}") from error
    return Dataset(NAME, train, val, tuple(synsets), Augment(MEAN, STD, pad=max(size // 8, 1), flip=True))


def _find(root: Path) -> Path:
    """Return the unpacked folder, the archive or the root itself, whichever is found first."""
    if (root / NAME).is_dir():
        return root / NAME
    if (root / ARCHIVE).is_file():
        return root / ARCHIVE
    if any((root / part).is_dir() for part in PARTS):
        return root
    raise DataError(f"{NAME} is not in {root}: put {ARCHIVE} or the unpacked folder {NAME} there")


def _check_synsets(files: Files, place: Path) -> list[str]:
    """Return the synsets, sorted; both parts must have the same ones, each with images."""
    for part in PARTS:
        if not files.get(part):
            raise DataError(f"{place} has no {part}/<synset>/ with images, and {NAME} has train/ and val/: {GET_AGAIN}")
        for synset, names in files[part].items():
            if not re.fullmatch(r"n\d{8}", synset):
                raise DataError(f"{place}/{part} has a folder {synset!r}, which is not a synset: move it elsewhere")
            if not names:
                raise DataError(f"{place}/{part}/{synset} has no images: {GET_AGAIN}")
    train, val = (set(files[part]) for part in PARTS)
    for here, there, missing in (("train", "val", train - val), ("val", "train", val - train)):
        if missing:
            some = f"{', '.join(sorted(missing)[:3])}{', …' if len(missing) > 3 else ''}"
            raise DataError(f"{place} has synsets in {here}/ that are not in {there}/ ({some}): {GET_AGAIN}")
    if len(train) != CLASSES:
        raise DataError(f"{place} has {len(train)} synsets, but {NAME} has {CLASSES}: {GET_AGAIN}")
    return sorted(train)


def _check_file(place: str, size: int, count: int) -> None:
    """Raise an error if a file is too large, or if there are too many files."""
    if not 0 <= size <= MAX_FILE_BYTES:
        raise DataError(f"{place} has {size:,} bytes, and {NAME} at most {MAX_FILE_BYTES:,} per file: {GET_AGAIN}")
    if count > MAX_FILES:
        raise DataError(f"{place} exceeds the limit of {MAX_FILES:,} files for {NAME}: {GET_AGAIN}")


# ---- a tree of folders


def _list_tree(root: Path) -> Files:
    """List the files of an unpacked archive; raise an error for links in it."""
    files: Files = {}
    count = 0
    for part in PARTS:
        for folder in _entries(root / part) if (root / part).is_dir() else []:
            if not folder.is_dir():
                continue
            names = files.setdefault(part, {}).setdefault(folder.name, {})
            for entry in _entries(folder.path):
                state = entry.stat(follow_symlinks=False)
                if not is_image_name(entry.name) or stat.S_ISDIR(state.st_mode):
                    continue
                if not stat.S_ISREG(state.st_mode):
                    raise DataError(f"{entry.path!r} is a pipe or a device, not a file: {UNPACK_AGAIN}")
                count += 1
                _check_file(repr(entry.path), state.st_size, count)
                names[entry.name] = Path(entry.path).read_bytes
    return files


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder, without hidden files."""
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if not entry.name.startswith(".")]
    for entry in found:
        if entry.is_symlink():
            raise DataError(f"{entry.path!r} is a link: replace it with its target, or {UNPACK_AGAIN}")
    return found


# ---- the archive


def _read_archive(path: Path) -> Files:
    """Read all images of the archive into memory."""
    files: Files = {}
    try:
        for count, file in enumerate(read_archive(path, NAME, GET_AGAIN, MAX_ARCHIVE_BYTES, MAX_FILES), start=1):
            shown = f"{path}: {file.name[:SHOWN]!r}"
            _check_file(shown, file.size, count)
            root, *parts, name = file.name.split("/")
            if root != NAME or len(parts) != 2 or parts[0] not in PARTS or name.startswith("."):
                continue
            names = files.setdefault(parts[0], {}).setdefault(parts[1], {})
            if name in names:
                raise DataError(f"{shown} is in the archive twice: {GET_AGAIN}")
            if is_image_name(name):
                names[name] = io.BytesIO(file.read(MAX_FILE_BYTES)).getvalue
    except (DataError, PermissionError):
        raise
    except Exception as error:  # a damaged header may raise anything
        raise DataError(f"{path} is truncated or not the archive of {NAME} ({error}): {GET_AGAIN}") from error
    return files


# ---- images


def _decode_all(files: dict[str, dict[str, Callable[[], bytes]]], synsets: list[str], size: int, place: Path) -> Images:
    """Decode the images of one part, sorted by synset and name."""

    def read(item: tuple[str, str]) -> np.ndarray:
        synset, name = item
        try:
            return decode(files[synset][name](), size)
        except DataError as error:
            where = str(place / synset / name)
            raise DataError(f"cannot read {where!r} as an image ({error.__cause__}): {GET_AGAIN}") from error

    items = [(synset, name) for synset in synsets for name in sorted(files[synset])]
    pixels = torch.empty((len(items), 3, size, size), dtype=torch.uint8)
    decoded = map_ahead(read, items, 256, decoder_pool())
    for row, image in enumerate(track(decoded, len(items), f"decoding {NAME}/{place.name}", "images")):
        pixels[row] = torch.from_numpy(image).permute(2, 0, 1)
    counts = torch.tensor([len(files[synset]) for synset in synsets])
    return Images.of(pixels, torch.arange(len(synsets)).repeat_interleave(counts))
