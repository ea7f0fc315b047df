"""Index a tree of class folders. File names are packed into bytes, cached between runs, and verified on every use."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import msgspec
import numpy as np

from equipoise.core.files import digest, write_bytes
from equipoise.core.progress_line import track
from equipoise.errors import RunError

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
"""Names of image files end with one of these, in upper or lower case."""
CACHE_VERSION = 3
MIN_CACHED_FILES = 10_000
"""Smaller trees are not cached: listing them is as fast as reading the cache."""
RECENT_NS = 2 * 10**9
"""A folder that changed within this time may change again without a new time stamp: file system clocks are coarse."""

Listing = dict[str, bytes]
"""The packed names of the images in each class folder."""
Stamp = tuple[int, int]
"""Modification and status change times of a folder. The first can be set back, the second cannot."""
Known = dict[str, tuple[Stamp, bytes]]
"""The time stamps of each class folder, and the packed names in it."""


def is_image_name(name: str) -> bool:
    """Return whether a file's name ends like an image's."""
    return name.lower().endswith(ENDINGS)


def is_dir(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a directory or a link to one; False if the system cannot tell."""
    try:
        return entry.is_dir()
    except OSError:  # a circular link, or a target that may not be accessed
        return False


def pack(names: Iterable[str]) -> bytes:
    """Concatenate names, each with a zero byte after it: the only byte besides the slash that no name contains.

    >>> pack(["a.jpg", "b.jpg"])
    b'a.jpg\\x00b.jpg\\x00'
    """
    return os.fsencode("".join(f"{name}\0" for name in names))


def unpack(names: bytes) -> list[str]:
    """Undo ``pack``."""
    return os.fsdecode(names).split("\0")[:-1]


def count(names: bytes) -> int:
    """Return the number of packed names."""
    return names.count(b"\0")


class Index:
    """Files by folder. A million names take one bytes object instead of a million strings.

    Parameters
    ----------
    folders
        Paths that end with a slash.
    names
        The packed file names in each folder.
    """

    def __init__(self, folders: Sequence[str], names: Sequence[bytes]) -> None:
        self.folders = tuple(folders)
        self.names = b"".join(names)
        zeros = np.flatnonzero(np.frombuffer(self.names, np.uint8) == 0)
        self.ends = np.concatenate([[-1], zeros])
        """Where the name before each row ends."""
        self.starts = np.cumsum([0, *map(count, names)])
        """The first row of each folder."""

    @staticmethod
    def of_tree(root: Path, listing: Listing) -> Index:
        """Index the class folders below ``root``."""
        return Index([f"{root / name}{os.sep}" for name in listing], list(listing.values()))

    @staticmethod
    def of(paths: Sequence[str | Path]) -> Index:
        """Index any files, in the given order."""
        parts = (str(path).rpartition(os.sep) for path in paths)
        folders, names = [], []
        for folder, mine in groupby(parts, key=lambda part: part[0] + part[1]):
            folders.append(folder)
            names.append(pack(name for _, _, name in mine))
        return Index(folders, names)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def labels(self) -> np.ndarray:
        """Return the position of each row's folder."""
        return np.repeat(np.arange(len(self.folders)), np.diff(self.starts))

    def paths(self, rows: np.ndarray) -> list[str]:
        """Return the paths of the given rows."""
        folders = (np.searchsorted(self.starts, rows, "right") - 1).tolist()
        spans = zip(folders, self.ends[rows].tolist(), self.ends[rows + 1].tolist(), strict=True)
        return [self.folders[folder] + os.fsdecode(self.names[end + 1 : stop]) for folder, end, stop in spans]

    def text(self) -> bytes:
        """Return a line ``class folder/file`` per file: the same for every copy of a tree, wherever it is."""
        lines = []
        for folder, first, stop in zip(self.folders, self.starts, self.starts[1:], strict=False):
            if first < stop:
                mine = self.names[self.ends[first] + 1 : self.ends[stop]]
                before = os.fsencode(folder[folder.rfind(os.sep, 0, -1) + 1 :])
                lines.append(before + mine.replace(b"\0", b"\n" + before))
        return b"\n".join(lines)


def list_images(root: Path, classes: Sequence[str]) -> Listing:
    """Return the images in each class folder, sorted by name; folders that do not exist are skipped.

    Listings of large trees are cached. A folder that has not changed since costs one ``stat``.
    """
    place = root.resolve()
    stamps = {name: stamp for name in classes if (stamp := _stamp(place / name)) is not None}
    file = cache_dir() / "index" / f"{digest(os.fsencode(place)).hex()}.msgpack"
    known = _read_cache(file, place)
    stale = [name for name, stamp in stamps.items() if name not in known or known[name][0] != stamp]
    now = time.time_ns()
    for name in track(stale, len(stale), f"indexing {root}", "classes"):
        reliable = now - stamps[name][0] > RECENT_NS
        known[name] = stamps[name] if reliable else (-1, -1), _scan(place / name)
    if stale and sum(count(names) for _, names in known.values()) >= MIN_CACHED_FILES:
        with suppress(OSError, RunError):  # without a cache, the next run only takes some seconds longer
            _write_cache(file, place, known)
    return {name: known[name][1] for name in stamps}


def cache_dir() -> Path:
    """Return the directory for files that can be created or downloaded again: EQUIPOISE_CACHE, or the user's cache."""
    given = os.environ.get("EQUIPOISE_CACHE")
    if given:
        return Path(given)
    import pooch  # takes 0.14 s, and data sets in memory do not need it

    return Path(pooch.os_cache("equipoise"))


def _stamp(folder: Path) -> Stamp | None:
    """Return a folder's time stamps, or None if there is no such folder."""
    try:
        state = folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (state.st_mtime_ns, state.st_ctime_ns) if stat.S_ISDIR(state.st_mode) else None


def _scan(folder: Path) -> bytes:
    with os.scandir(folder) as entries:
        return pack(sorted(entry.name for entry in entries if is_image_name(entry.name) and entry.is_file()))


def _write_cache(file: Path, root: Path, known: Known) -> None:
    content = msgspec.msgpack.encode({os.fsencode(name): value for name, value in known.items()})
    file.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(file, _checksum(root, content) + content)


def _read_cache(file: Path, root: Path) -> Known:
    """Return the cached listing of ``root``; nothing if the file is missing, damaged or outdated."""
    try:
        data = file.read_bytes()
        if data[:16] != _checksum(root, data[16:]):
            return {}
        found = msgspec.msgpack.decode(data[16:], type=dict[bytes, tuple[Stamp, bytes]])
        return {os.fsdecode(name): value for name, value in found.items()}
    except (OSError, msgspec.DecodeError):
        return {}


def _checksum(root: Path, content: bytes) -> bytes:
    return digest(b"%d %b\0%b" % (CACHE_VERSION, os.fsencode(root), content))
