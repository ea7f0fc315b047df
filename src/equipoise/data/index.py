"""An index of a tree of class folders: names only, packed, kept between runs and checked whenever it is used."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import numpy as np

from equipoise.data.waiting import counted
from equipoise.errors import RunError
from equipoise.files import write_atomically

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
VERSION = 2
WORTH_KEEPING = 10_000
"""Files; fewer are listed faster than a cache is found."""
SETTLED = 2 * 10**9
"""Nanoseconds after which a folder's time of change tells of every change: clocks of file systems tick coarsely."""

Listing = dict[str, bytes]
"""The packed names of the images in each class folder."""


def pack(names: Iterable[str]) -> bytes:
    """Names one behind another, each ended by a zero byte, the only one that no name can hold.

    >>> pack(["a.jpg", "b.jpg"])
    b'a.jpg\\x00b.jpg\\x00'
    """
    return os.fsencode("".join(f"{name}\0" for name in names))


def unpack(names: bytes) -> list[str]:
    return os.fsdecode(names).split("\0")[:-1]


def count(names: bytes) -> int:
    """How many names were packed."""
    return names.count(b"\0")


class Index:
    """Files by folder. A million names are one string of bytes here, not a million objects."""

    def __init__(self, folders: Sequence[str], names: Sequence[bytes]) -> None:
        """``folders`` are paths with a slash behind; ``names`` are the packed names in each."""
        self.folders = tuple(folders)
        self.names = b"".join(names)
        zeros = np.flatnonzero(np.frombuffer(self.names, np.uint8) == 0)
        self.ends = np.concatenate([[-1], zeros])
        """Where the name before each row ends."""
        self.starts = np.cumsum([0, *map(count, names)])
        """The first row of each folder."""

    @staticmethod
    def of_tree(root: Path, listing: Listing) -> Index:
        return Index([f"{root / name}{os.sep}" for name in listing], list(listing.values()))

    @staticmethod
    def of(paths: Sequence[str | Path]) -> Index:
        """Any files, in their order."""
        parts = (str(path).rpartition(os.sep) for path in paths)
        folders, names = [], []
        for folder, mine in groupby(parts, key=lambda part: part[0] + part[1]):
            folders.append(folder)
            names.append(pack(name for _, _, name in mine))
        return Index(folders, names)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def labels(self) -> np.ndarray:
        """The number of each row's folder."""
        return np.repeat(np.arange(len(self.folders)), np.diff(self.starts))

    def paths(self, rows: np.ndarray) -> list[str]:
        folders = (np.searchsorted(self.starts, rows, "right") - 1).tolist()
        spans = zip(folders, self.ends[rows].tolist(), self.ends[rows + 1].tolist(), strict=True)
        return [self.folders[folder] + os.fsdecode(self.names[end + 1 : stop]) for folder, end, stop in spans]

    def text(self) -> bytes:
        """A line a file, with the name of its class folder and its own: what two copies of a tree have in common."""
        lines = []
        for folder, first, stop in zip(self.folders, self.starts, self.starts[1:], strict=False):
            if first < stop:
                mine = self.names[self.ends[first] + 1 : self.ends[stop]]
                before = os.fsencode(folder[folder.rfind(os.sep, 0, -1) + 1 :])
                lines.append(before + mine.replace(b"\0", b"\n" + before))
        return b"\n".join(lines)


def list_images(root: Path, classes: Sequence[str]) -> Listing:
    """The images in each class folder that exists, sorted by name.

    Large trees are remembered: a folder that has not changed since costs one look at its time of change.
    """
    place = root.resolve()
    stamps = {name: stamp for name in classes if (stamp := _changed(place / name)) is not None}
    file = cache_home() / "index" / f"{hashlib.blake2b(os.fsencode(place), digest_size=16).hexdigest()}.npz"
    known = _recall(file, place)
    stale = [name for name, stamp in stamps.items() if name not in known or known[name][0] != stamp]
    now = time.time_ns()
    for name in counted(stale, len(stale), f"indexing {root}", "classes"):
        settled = now - stamps[name][0] > SETTLED
        known[name] = stamps[name] if settled else (-1, -1), _scan(place / name)
    if stale and sum(count(names) for _, names in known.values()) >= WORTH_KEEPING:
        with suppress(OSError, RunError):  # without it the next run takes seconds longer, nothing else
            _remember(file, place, known)
    return {name: known[name][1] for name in stamps}


def cache_home() -> Path:
    """Where equipoise keeps what it can make or fetch again: the user's cache, or what EQUIPOISE_CACHE names."""
    given = os.environ.get("EQUIPOISE_CACHE")
    if given:
        return Path(given)
    import pooch  # 0.14 s, which images in memory need not pay

    return Path(pooch.os_cache("equipoise"))


Stamp = tuple[int, int]
"""When names in a folder last changed, as told by two clocks: one can be set back, the other cannot."""


def _changed(folder: Path) -> Stamp | None:
    """None if there is no such folder."""
    try:
        state = folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (state.st_mtime_ns, state.st_ctime_ns) if stat.S_ISDIR(state.st_mode) else None


def _scan(folder: Path) -> bytes:
    with os.scandir(folder) as entries:
        return pack(sorted(e.name for e in entries if e.name.lower().endswith(ENDINGS) and e.is_file()))


Known = dict[str, tuple[Stamp, bytes]]
"""Of each class folder: when it last changed, and the packed names in it."""


def _remember(file: Path, root: Path, known: Known) -> None:
    stamps, names = zip(*known.values(), strict=True)
    arrays = {
        "version": np.array(VERSION),
        "root": _array(os.fsencode(root)),
        "folders": _array(pack(known)),
        "stamps": np.array(stamps, np.int64),
        "ends": np.cumsum([len(mine) for mine in names]),
        "names": _array(b"".join(names)),
    }

    def write(path: Path) -> None:
        with path.open("wb") as out:  # given a path, numpy would change its ending
            np.savez(out, allow_pickle=False, **arrays)

    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, write)


def _recall(file: Path, root: Path) -> Known:
    """What was remembered of ``root``; nothing if there is no such file, or no sense in it."""
    try:
        with file.open("rb") as data, np.load(data, allow_pickle=False) as saved:
            if saved["version"] != VERSION or saved["root"].tobytes() != os.fsencode(root):
                return {}
            folders, names = unpack(saved["folders"].tobytes()), saved["names"].tobytes()
            ends = saved["ends"].tolist()
            parts = [names[start:end] for start, end in zip([0, *ends], ends, strict=False)]
            stamps = [(changed, touched) for changed, touched in saved["stamps"].tolist()]
            return dict(zip(folders, zip(stamps, parts, strict=True), strict=True))
    except Exception:  # a damaged file may raise anything; nothing of it has run, and it is made again
        return {}


def _array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)
