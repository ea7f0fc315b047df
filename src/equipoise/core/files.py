"""Atomic files at paths that the user named: a temporary file, fsync, rename. ``Directory`` is for our own directories.

Nothing here loads pickles.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from equipoise.core.open_dir import open_root
from equipoise.errors import RunError


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


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically."""
    # names of files may contain bytes that are not UTF-8, which Python represents as lone surrogates
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, remedy: str = "restore it from a copy") -> Any:
    """Read a JSON file; ``remedy`` is the advice to the user if it is not valid."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not valid JSON ({error}): {remedy}") from error
    except OSError as error:
        raise RunError(f"cannot read {path} ({error.strerror}): check that it exists and is readable") from error
