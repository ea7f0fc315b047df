"""Write files atomically at paths given by the user: temporary file, fsync, rename. For our directories: ``Directory``.

Nothing here loads pickles.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError

from equipoise.core.open_dir import OpenDir, check_path, open_root
from equipoise.errors import RunError, UsageError

_OPEN = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)

_TEMPORARY = re.compile(r"\.equipoise-(\d{1,9})-[0-9a-f]{16}\.tmp")


def digest(data: bytes) -> bytes:
    """Return a 16-byte hash."""
    return hashlib.blake2b(data, digest_size=16).digest()


def read_file(path: Path, limit: int, what: str) -> bytes:
    """Read a regular file of at most ``limit`` bytes at a path given by the user; others could block, or never end.

    Parameters
    ----------
    path
        The file, or a link to it.
    limit
        Maximum number of bytes.
    what
        Description of the file for errors.
    """
    check_path(path)
    try:
        if not path.exists():
            raise UsageError(f"{what} {path} does not exist: check its name")
        regular = stat.S_ISREG(path.stat().st_mode)  # first, because opening a device may already have an effect
        if regular:
            with open(os.open(path, _OPEN), "rb") as file:  # noqa: PTH123 - a descriptor
                state = os.fstat(file.fileno())
                regular, size = stat.S_ISREG(state.st_mode), state.st_size
                data = file.read(limit + 1) if regular and size <= limit else b""
    except OSError as error:
        raise UsageError(f"cannot read {what} {path} ({error.strerror}): check its permissions") from error
    if not regular:
        raise UsageError(f"{what} {path} is not a regular file: choose another one")
    if max(size, len(data)) > limit:
        raise UsageError(f"{what} {path} has more than {limit:,} bytes, the limit for it: choose another one")
    return data


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file, then rename it to ``path``: the file is either complete or unchanged."""
    check_path(path)
    if not path.name or path.is_dir():
        raise RunError(f"cannot write {path} (it is a directory): choose another name")
    if path.exists() and not path.is_file():
        raise RunError(f"cannot write {path} (it is a device or pipe, not a file): choose another name")
    try:
        with open_root(path.parent) as parent, parent.temporary(f".equipoise-{os.getpid()}-") as temporary:
            _remove_left_behind(parent)
            write(path.with_name(temporary))
            with path.with_name(temporary).open("rb+") as file:
                os.fsync(file.fileno())
            parent.rename(temporary, path.name)
    except (OSError, SafetensorError, RuntimeError) as error:  # torch.save raises RuntimeError if it cannot write
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise RunError(f"cannot write {path} ({reason}): choose another place") from error


def _remove_left_behind(parent: OpenDir) -> None:
    """Delete temporary files of processes that were killed; the directory is the user's own, and has no lock."""
    with suppress(OSError, RunError):
        for entry in parent.entries():
            found = _TEMPORARY.fullmatch(entry.name)
            if found and entry.kind == "file" and not _is_running(int(found[1])):
                parent.unlink(entry.name)


def _is_running(process: int) -> bool:
    if sys.platform == "win32":  # signal 0 would end it there
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    atomic_write(path, lambda file: file.write_bytes(data))
