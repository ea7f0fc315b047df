"""Files that are either whole or not there: a temporary name, fsync, rename. Nothing here loads pickles."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from equipoise.errors import RunError


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file, then give it its name in one move."""
    if not path.name or path.is_dir():
        raise RunError(f"cannot write {path} (it is a directory)")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except (OSError, SafetensorError, RuntimeError) as error:  # torch.save raises a RuntimeError where it cannot write
        raise RunError(f"cannot write {path} ({error})") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    write_atomically(path, lambda file: _write_bytes(file, data))


def _write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    # names of files may hold bytes that are not UTF-8, which Python passes on as lone surrogates
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, cure: str = "restore it, or remove its directory") -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path} is not JSON ({error}): {cure}") from error
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}): see that it is there, and who may") from error


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    # safetensors wants contiguous tensors; channels-last ones get their layout back when they are copied into place
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, lambda file: save_file(plain, file))


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} cannot be read as safetensors ({error})") from error


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One writer at a time; readers need no lock."""
    try:
        file = (directory / ".lock").open("w")
    except OSError as error:
        raise RunError(f"cannot write to {directory} ({error.strerror}): choose another place") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(f"another process is writing to {directory}: wait, or choose another place") from error
        except OSError as error:
            what = f"{directory} cannot be locked ({error.strerror})"
            raise RunError(f"{what}: choose a place on a file system that has locks") from error
        yield
