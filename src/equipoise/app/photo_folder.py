"""A folder of photos with one folder per class: which files can be used, which are skipped, and why."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from equipoise.app.stored_images import identify, thumbnail
from equipoise.data.decoding import decode
from equipoise.data.images import FeatureStore, FileStore, Images, Store, TensorStore
from equipoise.data.index import ENDINGS, is_dir, is_image_name
from equipoise.data.prefetch import decoder_pool, map_ahead
from equipoise.errors import DataError
from equipoise.learn.extractor import CHUNK, Extractor

IN_MEMORY = 2**30
"""Bytes of pixels to keep in memory; larger folders are decoded again whenever a batch needs them."""
Decoded = tuple[Tensor, str] | DataError
"""An image with its name, or why there is none."""
Progress = Callable[[Iterable[Decoded], int], Iterable[Decoded]]
UNNAMED = re.compile(r"unknown-\d+")
"""Names of the folders that `equipoise sort` creates for photos of unknown classes."""
PARTS = {"train", "test", "val", "valid", "validation"}


@dataclass(frozen=True)
class SkippedFile:
    """Something in the folder that is not used."""

    path: str
    reason: str


@dataclass
class FolderScan:
    """The content of a folder, by name only."""

    root: Path
    classes: dict[str, list[str]] = field(default_factory=dict)
    """Files of each class, sorted by name."""
    skipped: list[SkippedFile] = field(default_factory=list)

    def skip(self, path: str | os.PathLike[str], reason: str) -> None:
        """Record that a file is not used."""
        self.skipped.append(SkippedFile(printable(os.path.relpath(path, self.root)), reason))


def printable(name: str) -> str:
    """Return a file name as valid Unicode, even if its bytes are not UTF-8."""
    try:
        data = os.fsencode(name)
    except UnicodeEncodeError:  # no file can be called that
        data = name.encode(errors="backslashreplace")
    return unicodedata.normalize("NFC", data.decode("utf-8", "backslashreplace"))


def scan_folder(root: Path) -> FolderScan:
    """List the class folders and the files in them that look like images."""
    if not root.is_dir():
        raise DataError(f"{root} is not a directory: choose one with a folder of images per class")
    found = FolderScan(root)
    try:
        entries = _entries(root)
    except OSError as error:
        raise DataError(f"cannot read {root} ({error.strerror}): check its permissions") from error
    real = os.path.realpath(root)
    for entry in entries:
        if entry.is_symlink() and f"{real}/".startswith(f"{os.path.realpath(entry.path)}/"):
            found.skip(entry.path, "the link leads back to the folder itself")
        elif is_dir(entry) and UNNAMED.fullmatch(entry.name):
            found.skip(entry.path, "it has no name yet: rename the folders that `equipoise sort` created")
        elif is_dir(entry):
            _add_class(entry, found)
        else:
            found.skip(entry.path, _problem(entry) or "it is outside the class folders")
    for name in [name for name, files in found.classes.items() if not files]:
        del found.classes[name]
        found.skip(root / name, "the class has no images")
    _reject_splits(root)
    if not found.classes:
        raise DataError(
            f"no class folders with images found in {root}: create one per class, for example {root}/cat/tom.jpg"
        )
    return found


def _reject_splits(root: Path) -> None:
    """Raise an error for a data set with train and test folders. A class folder called train holds no folders."""
    inside = [entry for entry in _entries(root) if is_dir(entry)]
    if inside and {entry.name.lower() for entry in inside} <= PARTS and any(map(_holds_folders, inside)):
        part = min(inside, key=lambda entry: (entry.name.lower() != "train", entry.name))
        raise DataError(f"{root} holds splits such as {part.name}, not classes: use the folder {part.path}")


def _holds_folders(folder: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return any(map(is_dir, _entries(folder.path)))
    return False


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """List a folder by name, without hidden files."""
    with os.scandir(folder) as entries:
        return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)


def _add_class(folder: os.DirEntry[str], found: FolderScan) -> None:
    try:
        entries = _entries(folder.path)
    except OSError as error:
        found.skip(folder.path, f"cannot read the folder ({error.strerror})")
        return
    files = found.classes.setdefault(printable(folder.name), [])
    for entry in entries:
        if problem := _problem(entry):
            found.skip(entry.path, problem)
        else:
            files.append(entry.path)


def _problem(entry: os.DirEntry[str]) -> str | None:
    """Return why a file cannot be used, if that is known before it is opened."""
    if is_dir(entry):
        return "it is a folder inside a class folder"
    try:
        if not entry.is_file():
            return "the link is broken" if entry.is_symlink() else "it is not a regular file"
        if not is_image_name(entry.name):
            return f"not an image ({', '.join(ENDINGS)})"
        return "the file is empty" if entry.stat().st_size == 0 else None
    except OSError as error:
        return f"cannot read it ({error.strerror})"


def read_images(
    found: FolderScan,
    size: int,
    progress: Progress = lambda images, total: images,
    known: Mapping[str, str] | None = None,
    strict: bool = False,
    extractor: Extractor | None = None,
    thumbnails: dict[str, bytes] | None = None,
    bicubic: bool = True,
) -> dict[str, Images]:
    """Decode the images of each class; files that cannot be used are added to ``found.skipped``.

    Duplicates are used once. An image that is in two classes is not used, because its label is ambiguous.

    Parameters
    ----------
    found
        The folder.
    size
        Pixels per side.
    progress
        Wraps the images, and may show how many are decoded.
    known
        Images that the model already has, by the hash of their pixels, with their class.
    strict
        Raise an error if a file is skipped.
    extractor
        If given, return rows of its features instead of images.
    thumbnails
        If given, add a small JPEG of each image here, by its hash.
    bicubic
        See ``Model.bicubic``.
    """
    files = [(name, file) for name, mine in found.classes.items() for file in mine]
    ids: dict[int, str] = {}
    seen = set(known or ())

    def images() -> Iterator[tuple[int, Tensor]]:
        ahead = map_ahead(lambda named: decode_file(named[1], size, bicubic), files, 256, decoder_pool())
        for row, ((_, file), answer) in enumerate(zip(files, progress(ahead, len(files)), strict=True)):
            if isinstance(answer, DataError):
                found.skip(file, str(answer.__cause__ or answer))
            else:
                image, ids[row] = answer
                if extractor is not None and ids[row] in seen:
                    continue  # it will not be used
                seen.add(ids[row])
                if thumbnails is not None:
                    thumbnails[ids[row]] = thumbnail(image)
                yield row, image

    if extractor is None:
        store = _store_pixels(images(), files, size, bicubic)
    else:
        store = _store_features(images(), len(files), extractor)
        store.ids = [ids.get(row, "") for row in range(len(files))]
    rows = _without_duplicates(found, files, ids, known or {})
    for name in [name for name in found.classes if name not in rows]:
        found.skip(found.root / name, "none of its images can be used")
    if found.skipped and (strict or not rows):
        first = f"{found.skipped[0].path}: {found.skipped[0].reason}"
        if not strict:
            raise DataError(f"no image in {found.root} can be used (for example {first})")
        more = f" (and {len(found.skipped) - 1} more)" if len(found.skipped) > 1 else ""
        raise DataError(f"{first}{more}; nothing was learned because of --strict")
    return {
        name: Images(store, torch.tensor(mine), torch.zeros(len(mine), dtype=torch.long)) for name, mine in rows.items()
    }


def decode_file(file: str, size: int, bicubic: bool) -> Decoded:
    """Return the pixels of a file and their hash, or the reason why it cannot be decoded."""
    try:
        image = torch.from_numpy(decode(file, size, bicubic=bicubic)).permute(2, 0, 1).contiguous()
    except DataError as error:
        return error
    return image, identify(image)


def _store_pixels(
    images: Iterator[tuple[int, Tensor]], files: Sequence[tuple[str, str]], size: int, bicubic: bool
) -> Store:
    """Keep all pixels in memory, or read them again whenever a batch needs them."""
    keep = len(files) * 3 * size * size <= IN_MEMORY
    # rows of unreadable files stay zero: an interrupted step is recognised by all pixels
    pixels = torch.zeros((len(files) if keep else 0, 3, size, size), dtype=torch.uint8)
    for row, image in images:
        if keep:
            pixels[row] = image
    if keep:
        return TensorStore(pixels)
    store = FileStore([file for _, file in files], size)
    store.bicubic = bicubic
    return store


def _store_features(images: Iterator[tuple[int, Tensor]], count: int, extractor: Extractor) -> FeatureStore:
    """Pass every image through the network once; pixels are not kept."""
    features = torch.zeros(count, extractor.width, dtype=torch.float16)  # they are rounded already
    while batch := list(islice(images, CHUNK)):
        features[[row for row, _ in batch]] = extractor.rows(torch.stack([image for _, image in batch])).half()
    return FeatureStore(features)


def _without_duplicates(
    found: FolderScan, files: Sequence[tuple[str, str]], ids: Mapping[int, str], known: Mapping[str, str]
) -> dict[str, list[int]]:
    """Return the rows of the files to use, by class."""
    classes = defaultdict(set)
    for row, identity in ids.items():
        classes[identity].add(files[row][0])
    rows: dict[str, list[int]] = {}
    seen: dict[str, str] = {}
    for row, identity in ids.items():
        name, file = files[row]
        others = sorted(classes[identity] - {name})
        if others:
            found.skip(file, f"the same image is also in class '{others[0]}'")
        elif identity in seen:
            found.skip(file, f"duplicate of {printable(Path(seen[identity]).name)}")
        elif identity in known:
            reason = "the model already has this image"
            found.skip(file, reason if known[identity] == name else f"{reason} in class '{known[identity]}'")
        else:
            seen[identity] = file
            rows.setdefault(name, []).append(row)
    return rows
