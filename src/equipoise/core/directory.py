"""The one way to read, write and delete what equipoise owns inside a run or model directory.

Such a directory may be untrusted. No operation follows a link below its root, waits for a pipe or a device,
reads more than a limit, or writes or deletes anything outside. Writes are atomic and durable.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from equipoise.core.json_files import MAX_JSON_BYTES, check_json_size, format_json, parse_json, parse_json_lines
from equipoise.core.open_dir import Entry, Kind, OpenDir, Owned, check_path, lock_file, open_root, printable, split_name
from equipoise.errors import EquipoiseError, LockedError, RunError

MAX_FILE_BYTES = 256 << 20
"""Default limit for reading a file, also as text."""
LOCK = ".lock"
TEMPORARY = re.compile(r"\..+\.tmp", re.DOTALL)
"""Names of files that a killed writer may leave behind."""
Check = Callable[[BinaryIO, int], object]
RESTORE = "restore it from a copy"
_REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "check its permissions"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space"),
    errno.EROFS: "choose a place that is writable",
    errno.ENOTDIR: "choose another place",
    errno.EIO: "check the disk",
}

_WINDOWS, _MACOS = os.name == "nt", sys.platform == "darwin"
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(~*)(\..*)?", re.IGNORECASE | re.DOTALL)
"""Names that Windows reserves for devices, with any ending, and what they are called on disk instead."""
_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds between attempts to replace a file that another process has open, which fails on Windows."""


def _to_disk(part: str) -> str:
    """Return the name on disk of a component: on Windows, a class may have the name of a device."""
    found = _DEVICE.fullmatch(part) if _WINDOWS else None
    return f"{found[1]}{found[2]}~{found[3] or ''}" if found else part


def _from_disk(name: str) -> str:
    """Undo ``_to_disk``; some file systems of macOS return names with decomposed accents, and find them either way."""
    found = _DEVICE.fullmatch(name) if _WINDOWS else None
    if found and found[2]:
        return f"{found[1]}{found[2][1:]}{found[3] or ''}"
    return unicodedata.normalize("NFC", name) if _MACOS else name


def _parts(name: str) -> list[str]:
    return [_to_disk(part) for part in split_name(name)]


class Directory:
    """Files and directories below ``path``.

    Names are relative POSIX paths such as ``versions/0001-ab12cd34/config.json``; ``""`` is the directory itself.
    Unless stated otherwise, a method raises RunError if it fails, or if it meets a link or a wrong type of file.

    Parameters
    ----------
    path
        A directory, which need not exist yet. It may be reached through links, but nothing below it may be a link.
    remedy
        Advice for the user if a file is missing or damaged; empty if the caller gives the advice.
    """

    def __init__(self, path: Path, remedy: str = RESTORE) -> None:
        self.path, self._root, self.remedy = path, path, remedy
        self._below: list[str] = []

    def sub(self, name: str, remedy: str | None = None) -> Directory:
        """Return the directory ``name`` in this one, which need not exist yet; it may not be a link, unlike a root."""
        inner = Directory(self._root, self.remedy if remedy is None else remedy)
        inner._below = [*self._below, *_parts(name)]
        inner.path = self.path / name
        return inner

    # ---- looking

    def exists(self, name: str) -> bool:
        """Tell whether there is anything of this name, even a broken link; never raises."""
        return self._kind(name) is not None

    def is_file(self, name: str) -> bool:
        """Tell whether this is a regular file; never raises."""
        return self._kind(name) == "file"

    def is_dir(self, name: str = "") -> bool:
        """Tell whether this is a directory, not a link to one; never raises."""
        return self._kind(name) == "dir"

    def _kind(self, name: str) -> Kind | None:
        with suppress(EquipoiseError, OSError):
            if not name:
                with self._enter([]):
                    return "dir"
            with self._parent(name) as (here, last):
                return here.kind(last)
        return None

    def size(self, name: str) -> int:
        """Return the size of a regular file in bytes."""
        with self._reported("read", name), self._parent(name) as (here, last):
            return here.expect(last, "file").st_size

    def modified_ns(self, name: str) -> int | None:
        """Return when a regular file last changed, in nanoseconds, or None if there is none; never raises."""
        with suppress(EquipoiseError, OSError), self._parent(name) as (here, last):
            return here.expect(last, "file").st_mtime_ns
        return None

    def entries(self, name: str = "") -> list[Entry]:
        """List everything in a directory, sorted by name."""
        with self._reported("list", name), self._enter(_parts(name)) as here:
            return sorted(Entry(_from_disk(entry.name), entry.kind) for entry in here.entries())

    def walk(self, name: str = "") -> Iterator[Entry]:
        """Yield everything below a directory, with names relative to the root; links are listed, not followed."""
        for entry in self.entries(name):
            below = f"{name}/{entry.name}" if name else entry.name
            yield Entry(below, entry.kind)
            if entry.kind == "dir":
                try:
                    yield from self.walk(below)
                except RunError as error:
                    if not isinstance(error.__cause__, FileNotFoundError):  # deleted since it was listed
                        raise

    def check_owned(self, names: Mapping[str, Owned]) -> None:
        """Reject the first of these names that exists as a link, or as something else than it should be."""
        for name, wanted in names.items():
            with self._reported("read", name), suppress(FileNotFoundError), self._parent(name) as (here, last):
                here.expect(last, wanted)

    # ---- reading

    def read_bytes(self, name: str, limit: int = MAX_FILE_BYTES, check: Check | None = None) -> bytes:
        """Read a regular file of at most ``limit`` bytes; ``check`` may raise an error before it is read."""
        with self._reported("read", name), self._open_file(name) as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise self._damaged(name, f"has {size} bytes, more than the limit of {limit}")
            if check is not None:
                check(file, size)
                file.seek(0)
            try:
                data = file.read(size + 1)
            except MemoryError as error:
                what = f"{self._shown(name)} has {size} bytes, more than fit into memory"
                raise RunError(f"{what}: free some, or {self.remedy or RESTORE}") from error
        if len(data) != size:
            raise RunError(f"{self._shown(name)} changed while it was read: try again")
        return data

    def read_text(self, name: str) -> str:
        """Read a UTF-8 file."""
        try:
            return self.read_bytes(name).decode()
        except UnicodeDecodeError as error:
            raise self._damaged(name, f"is not UTF-8 ({error})") from error

    def read_json(self, name: str, parse: Callable[[bytes], Any] = parse_json) -> Any:
        """Read a JSON file; see ``parse_json``."""
        try:
            return parse(self.read_bytes(name, MAX_JSON_BYTES))
        except (ValueError, RecursionError) as error:
            raise self._damaged(name, f"is not valid JSON ({error})") from error

    def read_json_lines(self, name: str) -> list[Any]:
        """Read a file with one JSON value per line; blank lines are skipped."""
        return list(self.read_json(name, parse_json_lines))

    def _damaged(self, name: str, what: str) -> RunError:
        return RunError(f"{self._shown(name)} {what}" + (f": {self.remedy}" if self.remedy else ""))

    # ---- writing

    def make_dir(self, name: str = "") -> None:
        """Create a directory and its parents, including the root, where they are missing."""
        with self._reported("write to", name), ExitStack() as stack:
            parts = [*self._below, *_parts(name)]
            self._make_root()
            here = stack.enter_context(open_root(self._root))
            for part in parts:
                with suppress(FileExistsError):
                    os.mkdir(here.at(part), dir_fd=here.fd)
                    here.sync()
                here = stack.enter_context(here.enter(part))

    def _make_root(self) -> None:
        check_path(self._root)
        missing = itertools.takewhile(lambda path: not os.path.lexists(path), [self._root, *self._root.parents])
        for path in reversed(list(missing)):
            path.mkdir(exist_ok=True)
            with open_root(path.parent) as parent:
                parent.sync()

    def write_bytes(self, name: str, data: bytes, limit: int = MAX_FILE_BYTES) -> None:
        """Write a file atomically: after an interruption, it has either its old content or the new one.

        More than ``limit`` bytes are rejected, because they could not be read again.
        """
        if len(data) > limit:
            what = f"{len(data)} bytes, more than the limit of {limit}"
            raise RunError(f"cannot write {self._shown(name)} ({what}): store less in it")
        self.replace_with(name, lambda file: file.write(data))

    def write_text(self, name: str, text: str) -> None:
        """Write a UTF-8 file, as ``write_bytes`` does."""
        # names of files may hold bytes that are not UTF-8, which Python represents as lone surrogates
        self.write_bytes(name, text.encode(errors="backslashreplace"))

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file, as ``write_bytes`` does; every number must be finite."""
        try:
            text = format_json(value, indent=2)
        except ValueError as error:
            raise RunError(f"cannot write {self._shown(name)} ({error}): check whether training diverged") from error
        self.write_json_text(name, text + "\n")

    def write_json_text(self, name: str, text: str) -> None:
        """Write JSON, or one JSON value per line, as ``write_bytes`` does."""
        data = text.encode()
        try:
            check_json_size(data)
        except ValueError as error:
            raise RunError(f"cannot write {self._shown(name)} ({error}): store less in it") from error
        self.write_bytes(name, data)

    def replace_with(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        """Let ``write`` fill a temporary file, then rename it to ``name``; see ``write_bytes``."""
        with self._reported("write", name), self._parent(name) as (here, last):
            with suppress(FileNotFoundError):
                here.expect(last, "file")
            with here.temporary() as temporary:
                with os.fdopen(here.create(temporary, os.O_WRONLY), "wb") as file:
                    write(file)
                    file.flush()
                    os.fsync(file.fileno())
                _replace(here, temporary, last)

    def link(self, source: str, target: str) -> None:
        """Make ``target`` a hard link to the file ``source``, or a copy where hard links are not possible."""
        with (
            self._reported("write", target),
            self._parent(source) as (there, old),
            self._parent(target) as (here, new),
            here.temporary() as temporary,
        ):
            with suppress(FileNotFoundError):
                if os.path.samestat(there.expect(old, "file"), here.expect(new, "file")):
                    return
            try:
                fds = {"src_dir_fd": there.fd, "dst_dir_fd": here.fd}
                os.link(there.at(old), here.at(temporary), **fds, follow_symlinks=False)
            except (OSError, NotImplementedError):
                with self._open_file(source) as file:
                    self.replace_with(target, lambda copy: shutil.copyfileobj(file, copy))
                return
            here.expect(temporary, "file")  # the source may have been replaced since it was checked
            _replace(here, temporary, new)

    # ---- deleting

    def remove(self, name: str) -> None:
        """Delete a file, or a link but not its target; nothing happens if it is missing."""
        with self._reported("delete", name), suppress(FileNotFoundError), self._parent(name) as (here, last):
            if here.kind(last) == "dir":
                here.expect(last, "file")
            here.unlink(last)

    def remove_tree(self, name: str, pattern: re.Pattern[str] | None = None) -> bool:
        """Delete a directory and what is in it; nothing happens if it is missing.

        Parameters
        ----------
        name
            The directory. Links in it are deleted, not followed; if it is a link itself, nothing is deleted.
        pattern
            If given, an entry is deleted only if its own name matches as a whole. This holds on every level.

        Returns
        -------
        bool
            Whether the directory is gone; False if entries that do not match were left in it.
        """
        with self._reported("delete", name), suppress(FileNotFoundError), self._parent(name) as (here, last):
            gone = here.delete_tree(last, pattern)
            here.sync()
            return gone
        return True

    def remove_dir(self, name: str) -> bool:
        """Delete a directory if it is empty; return whether it is gone."""
        return self.remove_tree(name, re.compile("(?!)"))

    def remove_temporary(self, name: str = "", below: bool = True) -> None:
        """Delete files of killed writers in a directory and below. Hold the lock, or files of live writers are lost."""
        for entry in list(self.walk(name)) if below else self.entries(name):
            if entry.kind != "dir" and TEMPORARY.fullmatch(entry.name.rpartition("/")[2]):
                self.remove(entry.name)

    # ---- locking

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Allow one writer at a time; readers need no lock. Taking it updates ``modified_ns`` of the lock file."""
        with ExitStack() as stack:
            with self._reported("write to", ""), self._parent(LOCK) as (here, last):
                try:
                    fd = here.create(last, os.O_RDWR)
                except FileExistsError:
                    fd = here.open_file(last, os.O_RDWR)
                stack.callback(os.close, fd)
                if os.fstat(fd).st_nlink > 1:  # the other name may be a file elsewhere; some file systems report 0
                    what = f"{self._shown(LOCK)} is a hard link to another file, which locking it would change"
                    raise RunError(f"{what}: delete it while no other command uses the directory")
                self._take(fd)
                os.utime(fd if os.utime in os.supports_fd else here.at(last))
            yield

    def _take(self, fd: int) -> None:
        shown = printable(self.path)
        try:
            lock_file(fd)
        except BlockingIOError as error:
            raise LockedError(f"another process is writing to {shown}: wait, or choose another place") from error
        except OSError as error:
            what = f"{shown} cannot be locked ({error.strerror})"
            raise RunError(f"{what}: choose a place on a file system that supports locks") from error

    # ---- opening

    def _shown(self, name: str) -> str:
        return printable(self.path / name)

    @contextmanager
    def _enter(self, parts: list[str]) -> Iterator[OpenDir]:
        with ExitStack() as stack:
            here = stack.enter_context(open_root(self._root))
            for part in [*self._below, *parts]:
                here = stack.enter_context(here.enter(part))
            yield here

    @contextmanager
    def _parent(self, name: str) -> Iterator[tuple[OpenDir, str]]:
        """Open the directory that holds ``name``; yield it with the last component."""
        *parents, last = _parts(name) or [""]
        if not last:
            raise RunError(f"{printable(self.path)} is the directory itself: name something in it")
        with self._enter(parents) as here:
            yield here, last

    @contextmanager
    def _open_file(self, name: str) -> Iterator[BinaryIO]:
        with self._parent(name) as (here, last), os.fdopen(here.open_file(last), "rb") as file:
            yield file

    @contextmanager
    def _reported(self, action: str, name: str) -> Iterator[None]:
        """Turn a system error into a message with a remedy."""
        try:
            yield
        except OSError as error:
            remedy = ({errno.ENOENT: self.remedy} | _REMEDIES).get(error.errno or 0, "check the directory")
            what = f"cannot {action} {self._shown(name)} ({error.strerror or error})"
            raise RunError(f"{what}: {remedy}" if remedy else what) from error


def _replace(here: OpenDir, source: str, target: str) -> None:
    """Rename a file; on Windows, wait until those that are reading its target have closed it."""
    for pause in _PAUSES if _WINDOWS else ():
        try:
            here.rename(source, target)
        except PermissionError:
            time.sleep(pause)
        else:
            return
    here.rename(source, target)
