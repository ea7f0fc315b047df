"""Open directories whose content cannot be trusted: names are resolved one by one, and links are never followed.

Every call is relative to an open directory, so no other process can lead it elsewhere. Where the system cannot do that
(Windows), each component is checked right before its path is used. That rejects the same directories, but a process
that replaces a directory with a link at the very same moment could win the race.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from equipoise.errors import RunError, UsageError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

MAX_ENTRIES = 1_000_000
"""Entries of one directory."""
MAX_DEPTH = 32
"""Components of a name, and levels of a tree that is deleted."""

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_RELATIVE = {os.open, os.mkdir, os.stat, os.unlink, os.rmdir, os.rename, os.link}
USE_DIR_FD = bool(NO_FOLLOW) and os.supports_dir_fd >= _RELATIVE and os.scandir in os.supports_fd
_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_SAFE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_INVALID = r"\.{0,2}"
_INVALID_ON_WINDOWS = r'\.{0,2}|.*[\\:*?"<>|].*|.*[. ]'
_JUNCTION = 0xA0000003
"""The reparse tag of a Windows junction, which otherwise looks like a directory."""

Kind = Literal["file", "dir", "link", "other"]
Owned = Literal["file", "dir"]
_KINDS: dict[int, tuple[Kind, str]] = {
    stat.S_IFREG: ("file", "a regular file"),
    stat.S_IFDIR: ("dir", "a directory"),
    stat.S_IFLNK: ("link", "a symbolic link"),
    stat.S_IFIFO: ("other", "a named pipe"),
    stat.S_IFSOCK: ("other", "a socket"),
}


class Entry(NamedTuple):
    """A name in a directory."""

    name: str
    kind: Kind


@dataclass(frozen=True)
class OpenDir:
    """An open directory. Without ``dir_fd`` there is only its path, and names become paths."""

    path: Path
    fd: int | None
    device: int

    def at(self, name: str) -> str:
        """Return the path to pass to a system call together with ``dir_fd=self.fd``."""
        return name if self.fd is not None else str(self.path / name)

    def stat(self, name: str) -> os.stat_result:
        return os.stat(self.at(name), dir_fd=self.fd, follow_symlinks=False)

    def kind(self, name: str) -> Kind:
        return _classify(self.stat(name))[0]

    def expect(self, name: str, wanted: Owned) -> os.stat_result:
        """Return the state of ``name`` if it is what is wanted."""
        state = self.stat(name)
        kind, seen = _classify(state)
        if kind != wanted:
            noun = "file" if wanted == "file" else "directory"
            rule = f" where a {noun} is expected: move it away"
            if kind == "link":
                rule = f", and equipoise follows no links in run and model directories: replace it with the real {noun}"
            raise RunError(f"{printable(self.path / name)} is {seen}{rule}")
        return state

    @contextmanager
    def enter(self, name: str) -> Iterator[OpenDir]:
        """Open a directory in this one."""
        state = self.expect(name, "dir")
        if self.fd is None:
            yield OpenDir(self.path / name, None, state.st_dev)
            return
        with _closing(os.open(name, os.O_RDONLY | _DIRECTORY | NO_FOLLOW | _SAFE, dir_fd=self.fd)) as fd:
            yield OpenDir(self.path / name, fd, os.fstat(fd).st_dev)

    def create(self, name: str, flags: int) -> int:
        """Open a new file; fails if there is anything of this name, even a broken link."""
        return os.open(self.at(name), flags | os.O_CREAT | os.O_EXCL | _SAFE, 0o666, dir_fd=self.fd)

    def open_file(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open an existing regular file."""
        for _ in range(50):
            before = self.expect(name, "file")  # first, because opening a device may already have an effect
            fd = os.open(self.at(name), flags | NO_FOLLOW | _SAFE, dir_fd=self.fd)
            after = os.fstat(fd)
            # a writer may have replaced the file in between; without O_NOFOLLOW it may also be the target of a link
            if stat.S_ISREG(after.st_mode) and (NO_FOLLOW or os.path.samestat(before, after)):
                return fd
            os.close(fd)
        raise RunError(f"{printable(self.path / name)} is replaced faster than it can be opened: try again")

    def entries(self) -> list[Entry]:
        """List all entries, sorted by name."""
        with os.scandir(self.path if self.fd is None else self.fd) as found:
            names = sorted(entry.name for entry in islice(found, MAX_ENTRIES + 1))
        if len(names) > MAX_ENTRIES:
            raise RunError(f"{printable(self.path)} has more than {MAX_ENTRIES} entries: move some away")
        listed = []
        for name in names:
            with suppress(FileNotFoundError):  # deleted since
                listed.append(Entry(name, self.kind(name)))
        return listed

    @contextmanager
    def temporary(self, prefix: str = ".") -> Iterator[str]:
        """Yield an unused name; at the end, delete the file of this name."""
        name = f"{prefix}{secrets.token_hex(8)}.tmp"
        try:
            yield name
        finally:
            with suppress(OSError):
                self.unlink(name)

    def rename(self, source: str, target: str) -> None:
        """Replace ``target`` by ``source`` for good."""
        os.replace(self.at(source), self.at(target), src_dir_fd=self.fd, dst_dir_fd=self.fd)
        self.sync()

    def sync(self) -> None:
        if self.fd is not None:
            os.fsync(self.fd)

    def unlink(self, name: str) -> None:
        os.unlink(self.at(name), dir_fd=self.fd)

    def delete_tree(self, name: str, pattern: re.Pattern[str] | None, depth: int = MAX_DEPTH) -> bool:
        """Delete a directory in this one; return False if entries that do not match ``pattern`` were left in it."""
        if not depth:
            raise RunError(f"{printable(self.path)} is nested deeper than {MAX_DEPTH} levels: delete it yourself")
        gone = True
        with suppress(FileNotFoundError):  # deleted already
            with self.enter(name) as inside:
                if inside.device != self.device:
                    raise RunError(f"{printable(inside.path)} is another file system: unmount it")
                for entry in inside.entries():
                    if pattern and not pattern.fullmatch(entry.name):
                        gone = False
                    elif entry.kind == "dir":
                        gone &= inside.delete_tree(entry.name, pattern, depth - 1)
                    else:
                        with suppress(FileNotFoundError):
                            inside.unlink(entry.name)
            if gone:
                os.rmdir(self.at(name), dir_fd=self.fd)
        return gone


@contextmanager
def open_root(path: Path) -> Iterator[OpenDir]:
    """Open a directory that the user has named, which may be reached through links."""
    check_path(path)
    if USE_DIR_FD:
        with _closing(os.open(path, os.O_RDONLY | _DIRECTORY)) as fd:
            yield OpenDir(path, fd, os.fstat(fd).st_dev)
        return
    state = path.stat()
    if not stat.S_ISDIR(state.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    yield OpenDir(path, None, state.st_dev)


def check_path(path: Path) -> None:
    """Reject a path that the system cannot express."""
    if not _encodable(str(path)):
        raise UsageError(f"{printable(path)} is not a valid path: choose another")


def split_name(name: str) -> list[str]:
    """Split a relative POSIX path into components that cannot lead out of the directory."""
    parts = name.split("/") if name else []
    invalid = re.compile(_INVALID_ON_WINDOWS if os.name == "nt" else _INVALID, re.DOTALL)
    if not _encodable(name) or any(invalid.fullmatch(part) for part in parts):
        raise RunError(f"'{printable(name)}' is not a valid name in a run or model directory: restore the directory")
    if len(parts) > MAX_DEPTH:
        raise RunError(f"'{printable(name)[:80]}…' has more than {MAX_DEPTH} levels: move it away")
    return parts


def lock_file(fd: int) -> None:
    """Lock an open file until it is closed; raise BlockingIOError if another process has locked it."""
    if sys.platform == "win32":
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError from error
    else:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def printable(text: str | Path) -> str:
    r"""Escape characters that could break a line, control a terminal, or cannot be encoded.

    >>> printable("two\nlines")
    'two\\nlines'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def _encodable(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _classify(state: os.stat_result) -> tuple[Kind, str]:
    junction = getattr(state, "st_reparse_tag", 0) == _JUNCTION
    return _KINDS.get(stat.S_IFLNK if junction else stat.S_IFMT(state.st_mode), ("other", "a device"))


@contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)
