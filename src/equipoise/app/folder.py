"""A folder of pictures as people have them: what can be learned from, what was left out, and why."""

from __future__ import annotations

import os
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from equipoise.app.model import Label
from equipoise.app.pictures import identify
from equipoise.data.images import FileStore, Images, TensorStore, decode, in_order
from equipoise.data.index import ENDINGS
from equipoise.errors import DataError

IN_MEMORY = 2**30
"""Bytes of pixels that are kept in memory; more are decoded whenever a batch asks for them."""
PARTS = {"train", "test", "val", "valid", "validation"}


@dataclass(frozen=True)
class LeftOut:
    """Something in the folder that is not learned from."""

    path: str
    why: str


@dataclass
class Survey:
    """What a folder holds, by name only."""

    root: Path
    classes: dict[str, list[str]] = field(default_factory=dict)
    """Files of each class, sorted by name."""
    left_out: list[LeftOut] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(len(files) for files in self.classes.values())

    def leave_out(self, path: str | os.PathLike[str], why: str) -> None:
        self.left_out.append(LeftOut(printable(os.path.relpath(path, self.root)), why))


def printable(name: str) -> str:
    """A file's name as text that can be written anywhere, also where its bytes are not UTF-8."""
    return unicodedata.normalize("NFC", os.fsencode(name).decode("utf-8", "backslashreplace"))


def survey(root: Path) -> Survey:
    """Class folders and the files in them that look like images."""
    if not root.is_dir():
        raise DataError(f"{root} is not a directory: name one that holds a folder of images for each class")
    found = Survey(root)
    try:
        entries = _entries(root)
    except OSError as error:
        raise DataError(f"{root} cannot be read ({error.strerror}): see who may") from error
    for entry in entries:
        if _is_dir(entry):
            files = _files(entry, found)
            found.classes.setdefault(printable(entry.name), []).extend(files)
        else:
            found.leave_out(entry.path, _why_not(entry) or "it lies outside the class folders")
    for name in [name for name, files in found.classes.items() if not files]:
        del found.classes[name]
        found.leave_out(root / name, "the class has no images")
    _refuse_parts(root)
    if not found.classes:
        raise DataError(f"{root} has no folders with images in them: make one a class, as {root}/cat/tom.jpg")
    return found


def _refuse_parts(root: Path) -> None:
    """Refuse a data set's parts. A class may be called train, too: its folder holds pictures, not folders."""
    inside = [entry for entry in _entries(root) if _is_dir(entry)]
    if inside and {entry.name.lower() for entry in inside} <= PARTS and any(map(_holds_folders, inside)):
        part = min(inside, key=lambda entry: (entry.name.lower() != "train", entry.name))
        raise DataError(f"{root} holds {part.name} and the like, not classes: name the folder {part.path}")


def _holds_folders(folder: os.DirEntry[str]) -> bool:
    try:
        return any(map(_is_dir, _entries(folder.path)))
    except OSError:
        return False


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """What is in a folder, by name; hidden things are nobody's pictures."""
    with os.scandir(folder) as entries:
        return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that goes round in circles, or to where we may not look
        return False


def _files(folder: os.DirEntry[str], found: Survey) -> list[str]:
    files = []
    try:
        entries = _entries(folder.path)
    except OSError as error:
        found.leave_out(folder.path, f"the folder cannot be read ({error.strerror})")
        return []
    for entry in entries:
        why = _why_not(entry)
        if why:
            found.leave_out(entry.path, why)
        else:
            files.append(entry.path)
    return files


def _why_not(entry: os.DirEntry[str]) -> str | None:
    """What can be said against a file before it is opened."""
    if _is_dir(entry):
        return "it is a folder inside a class folder"
    try:
        if not entry.is_file():
            return "the link leads nowhere" if entry.is_symlink() else "it is not a file"
        if not entry.name.lower().endswith(ENDINGS):
            return f"it is not an image ({', '.join(ENDINGS)})"
        return "the file is empty" if entry.stat().st_size == 0 else None
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def short_side(found: Survey, sample: int = 100) -> int:
    """The usual length of the pictures' short side, from a sample of their headers."""
    files = [file for files in found.classes.values() for file in files]
    sides = []
    for file in files[:: max(1, len(files) // sample)]:
        try:
            with Image.open(file) as picture:
                sides.append(min(picture.size))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            continue
    return int(np.median(sides)) if sides else 0


Progress = Callable[[int], None]


def read(
    found: Survey, size: int, known: Mapping[str, str] | None = None, progress: Progress = lambda count: None
) -> dict[Label, Images]:
    """The good images of each class, decoded; ``found.left_out`` tells of the others.

    ``known`` maps images that the model has already to their class. No image is taken twice, and none that lies in
    two classes: nobody could say which of them is right.
    """
    files = [(name, file) for name, mine in found.classes.items() for file in mine]
    keep = len(files) * 3 * size * size <= IN_MEMORY
    # rows of files that cannot be decoded stay zero: a step that was stopped is known again by all pixels
    pixels = torch.zeros((len(files) if keep else 0, 3, size, size), dtype=torch.uint8)
    ids: list[str | None] = []
    for place, ((_, file), answer) in enumerate(zip(files, _decoded([f for _, f in files], size), strict=True)):
        if isinstance(answer, DataError):
            found.leave_out(file, str(answer.__cause__ or answer))
            ids.append(None)
        else:
            image = torch.from_numpy(answer).permute(2, 0, 1)
            ids.append(identify(image))
            if keep:
                pixels[place] = image
        progress(1)
    good = _without_doubles(found, files, ids, known or {})
    store = TensorStore(pixels) if keep else FileStore([file for _, file in files], size)
    places = defaultdict(list)
    for place in good:
        places[files[place][0]].append(place)
    for name in [name for name in found.classes if name not in places]:
        found.leave_out(found.root / name, "none of the class's images can be used")
    return {
        name: Images(store, torch.tensor(mine), torch.zeros(len(mine), dtype=torch.long))
        for name, mine in places.items()
    }


def _decoded(files: Sequence[str], size: int) -> Iterator[np.ndarray | DataError]:
    """Each file decoded, or the error it met, in order."""

    def one(file: str) -> np.ndarray | DataError:
        try:
            return decode(file, size)
        except DataError as error:
            return error

    return in_order(one, files)


def _without_doubles(
    found: Survey, files: Sequence[tuple[str, str]], ids: Sequence[str | None], known: Mapping[str, str]
) -> list[int]:
    """Places of the files to learn from."""
    classes = defaultdict(set)
    for (name, _), identity in zip(files, ids, strict=True):
        classes[identity].add(name)
    good: list[int] = []
    seen: dict[str, str] = {}
    for place, ((name, file), identity) in enumerate(zip(files, ids, strict=True)):
        if identity is None:
            continue
        others = sorted(classes[identity] - {name})
        if others:
            found.leave_out(file, f"the same image is in class '{others[0]}' too")
        elif identity in seen:
            found.leave_out(file, f"it is the same image as {printable(Path(seen[identity]).name)}")
        elif identity in known:
            of = "the model has this image already"
            found.leave_out(file, of if known[identity] == name else f"{of}, as '{known[identity]}'")
        else:
            seen[identity] = file
            good.append(place)
    return good
