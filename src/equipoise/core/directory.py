"""The one way to read, write and delete what equipoise owns inside a run or model directory.

Such a directory may come from a stranger. No operation follows a link below its root, waits for a pipe or a device,
reads more than a limit, or writes or deletes anything outside. Writes are atomic and durable.
"""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from equipoise.core.open_dir import Entry, Kind, OpenDir, Owned, check_path, lock_file, open_root, printable, split_name
from equipoise.errors import EquipoiseError, RunError

MAX_FILE_BYTES = 256 << 20
"""Default limit for reading a file, also as text or JSON."""
MAX_TENSOR_BYTES = 16 << 30
"""Limit for a file of tensors."""
LOCK = ".lock"
TEMPORARY = re.compile(r"\..+\.tmp", re.DOTALL)
"""Names of files that a killed writer may leave behind."""
RESTORE = "restore it from a copy"
_REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "check its permissions"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space"),
    errno.EROFS: "choose a place that is writable",
    errno.ENOTDIR: "choose another place",
    errno.EIO: "check the disk",
}


class Directory:
    """Files and directories below ``path``.

    Names are relative POSIX paths such as ``versions/0001-ab12cd34/config.json``; ``""`` is the directory itself.
    Unless stated otherwise, a method raises RunError if it fails, or if it meets a link or a wrong type of file.

    Parameters
    ----------
    path
        A directory, which need not exist yet. It may be reached through links, and nothing below it may be one.
    remedy
        Advice to the user for a file that is missing or damaged; empty if the caller gives it.
    """

    def __init__(self, path: Path, remedy: str = RESTORE) -> None:
        self.path, self._root, self.remedy = path, path, remedy
        self._below: list[str] = []

    def sub(self, name: str, remedy: str | None = None) -> Directory:
        """Return the directory ``name`` in this one, which need not exist yet; it may not be a link, unlike a root."""
        inner = Directory(self._root, self.remedy if remedy is None else remedy)
        inner._below = [*self._below, *split_name(name)]
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
        with self._reported("list", name), self._enter(split_name(name)) as here:
            return here.entries()

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

    def read_bytes(self, name: str, limit: int = MAX_FILE_BYTES) -> bytes:
        """Read a regular file of at most ``limit`` bytes."""
        with self._reported("read", name), self._open_file(name) as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise self._damaged(name, f"has {size} bytes, and at most {limit} are read")
            try:
                data = file.read(size + 1)
            except MemoryError as error:
                what = f"{self._shown(name)} has {size} bytes, more than fit into memory"
                raise RunError(f"{what}: free some, or {self.remedy or RESTORE}") from error
        if len(data) != size:
            raise RunError(f"{self._shown(name)} changed while it was read: try again")
        return data

    def read_text(self, name: str, limit: int = MAX_FILE_BYTES) -> str:
        """Read a UTF-8 file of at most ``limit`` bytes."""
        try:
            return self.read_bytes(name, limit).decode()
        except UnicodeDecodeError as error:
            raise self._damaged(name, f"is not UTF-8 ({error})") from error

    def read_json(self, name: str, limit: int = MAX_FILE_BYTES) -> Any:
        """Read a JSON file whose numbers are all finite."""
        return self._parse(name, self.read_text(name, limit))

    def read_json_lines(self, name: str, limit: int = MAX_FILE_BYTES) -> list[Any]:
        """Read a file with one JSON value per line, like ``read_json``; blank lines are skipped."""
        return [self._parse(name, line) for line in self.read_text(name, limit).split("\n") if line.strip()]

    def _parse(self, name: str, text: str) -> Any:
        try:
            return json.loads(text, parse_float=_finite, parse_constant=_finite)
        except (ValueError, RecursionError) as error:
            raise self._damaged(name, f"is not valid JSON ({error})") from error

    def _damaged(self, name: str, what: str) -> RunError:
        return RunError(f"{self._shown(name)} {what}" + (f": {self.remedy}" if self.remedy else ""))

    # ---- writing

    def make_dir(self, name: str = "") -> None:
        """Create a directory and its parents, including the root, where they are missing."""
        with self._reported("write to", name), ExitStack() as stack:
            parts = [*self._below, *split_name(name)]
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
        """Write a file; whenever it is interrupted, the file has either its old content or the new one.

        More than ``limit`` bytes are refused, because they could not be read again.
        """
        if len(data) > limit:
            what = f"{len(data)} bytes, and at most {limit} can be read again"
            raise RunError(f"cannot write {self._shown(name)} ({what}): store less in it")
        self.replace_with(name, lambda file: file.write(data))

    def write_text(self, name: str, text: str) -> None:
        """Write a UTF-8 file, as ``write_bytes`` does."""
        # names of files may hold bytes that are not UTF-8, which Python represents as lone surrogates
        self.write_bytes(name, text.encode(errors="backslashreplace"))

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file, as ``write_bytes`` does; every number must be finite."""
        try:
            text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
        except ValueError as error:
            raise RunError(f"cannot write {self._shown(name)} ({error}): check whether training diverged") from error
        self.write_text(name, text + "\n")

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
                here.rename(temporary, last)

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
            here.rename(temporary, new)

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

    def remove_temporary(self, name: str = "") -> None:
        """Delete what killed writers left below a directory; hold the lock, or the files of others are lost."""
        for entry in list(self.walk(name)):
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
                self._take(fd)
                os.utime(fd if os.utime in os.supports_fd else here.at(last))
            yield

    def _take(self, fd: int) -> None:
        shown = printable(self.path)
        try:
            lock_file(fd)
        except BlockingIOError as error:
            raise RunError(f"another process is writing to {shown}: wait, or choose another place") from error
        except OSError as error:
            what = f"{shown} cannot be locked ({error.strerror})"
            raise RunError(f"{what}: choose a place on a file system that has locks") from error

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
        *parents, last = split_name(name) or [""]
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
        """Turn an error of the system into a message with a remedy."""
        try:
            yield
        except OSError as error:
            remedy = ({errno.ENOENT: self.remedy} | _REMEDIES).get(error.errno or 0, "check the directory")
            what = f"cannot {action} {self._shown(name)} ({error.strerror or error})"
            raise RunError(f"{what}: {remedy}" if remedy else what) from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number
