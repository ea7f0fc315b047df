"""Atomic files at paths that the user named: a temporary file, fsync, rename. ``Directory`` is for our own directories.

Nothing here loads pickles.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from equipoise.core.open_dir import open_root
from equipoise.errors import RunError


def digest(data: bytes) -> bytes:
    """Return a 16-byte hash."""
    return hashlib.blake2b(data, digest_size=16).digest()


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file, then rename it to ``path``: the file is either complete or unchanged."""
    if not path.name or path.is_dir():
        raise RunError(f"cannot write {path} (it is a directory): choose another name")
    try:
        with open_root(path.parent) as parent, parent.temporary() as temporary:
            write(path.with_name(temporary))
            with path.with_name(temporary).open("rb+") as file:
                os.fsync(file.fileno())
            parent.rename(temporary, path.name)
    except (OSError, SafetensorError, RuntimeError) as error:  # torch.save raises RuntimeError if it cannot write
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise RunError(f"cannot write {path} ({reason}): choose another place") from error


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    atomic_write(path, lambda file: file.write_bytes(data))
