"""Tensors in safetensors files, inside and outside of directories that equipoise owns.

The header is read and checked before the rest, so that an unusable file takes no memory. Numbers must be finite, and
small enough to be multiplied.
"""

from __future__ import annotations

import io
import math
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from equipoise.core.directory import Directory
from equipoise.core.json_files import parse_json
from equipoise.core.open_dir import printable
from equipoise.errors import RunError

MAX_TENSOR_BYTES = 16 << 30
"""Size of a file."""
MAX_HEADER_BYTES = 8 << 20
"""Size of its header: 60,000 tensors."""
MAX_VALUE = 1e18
"""A float32 can hold the square of this. Weights and statistics are far smaller."""
SMALL = 64 << 10
"""Tensors of at most this many bytes are read with the header."""
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""Types that may be in a file; torch computes with all of them."""

Layout = Mapping[str, Tensor]
"""Tensors of the right types and shapes that take no memory: all values are 0 except in small tensors."""
LayoutCheck = Callable[[Layout], object]
"""Raises ValueError, TypeError or KeyError for tensors that are not wanted."""


class Entry(NamedTuple):
    """A tensor as the header describes it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class RawEntry(msgspec.Struct):
    """A tensor in the JSON of the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def serialize(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a safetensors file."""
    # safetensors needs contiguous tensors; channels-last ones get their layout back when they are copied into place
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        check_values(plain)
    except ValueError as error:
        raise RunError(f"cannot write weights ({error}): check whether training diverged") from error
    return safetensors.torch.save(plain, metadata)


def parse(data: bytes, where: str, remedy: str = "") -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; ``where`` names it in errors, which end with ``remedy``."""
    try:
        _entries(io.BytesIO(data), len(data))
        tensors = safetensors.torch.load(data)
        check_values(tensors)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise _damaged(where, error, remedy) from error
    return tensors


def write_tensors(directory: Directory, name: str, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file into a directory."""
    directory.write_bytes(name, serialize(tensors), MAX_TENSOR_BYTES)


def read_data(
    directory: Directory, name: str, check: LayoutCheck | None = None, limit: int = MAX_TENSOR_BYTES
) -> bytes:
    """Read the bytes of a safetensors file, for ``parse``.

    Parameters
    ----------
    directory
        Where it is.
    name
        Its name there.
    check
        Raises an error for tensors that are not wanted, before they are read.
    limit
        Bytes of the file, at most.
    """

    def look(file: BinaryIO, size: int) -> None:
        check_header(file, size, printable(directory.path / name), check, directory.remedy)

    return directory.read_bytes(name, limit, look)


def read_tensors(
    directory: Directory, name: str, check: LayoutCheck | None = None, limit: int = MAX_TENSOR_BYTES
) -> dict[str, Tensor]:
    """Read a safetensors file from a directory; see ``read_data``."""
    return parse(read_data(directory, name, check, limit), printable(directory.path / name), directory.remedy)


def read_file(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file that the user named; it may be reached through links, and raises OSError if it cannot."""
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(fd, "rb") as file:
        state, shown = os.fstat(fd), printable(path)
        if not stat.S_ISREG(state.st_mode) or state.st_size > MAX_TENSOR_BYTES:
            raise RunError(f"cannot read {shown} as safetensors (it is not a regular file of at most 16 GB)")
        check_header(file, state.st_size, shown)
        file.seek(0)
        return parse(file.read(state.st_size), shown)


def check_header(file: BinaryIO, size: int, where: str, check: LayoutCheck | None = None, remedy: str = "") -> None:
    """Raise RunError unless a file begins with a valid header for its size, and with the tensors that are wanted."""
    try:
        entries = _entries(file, size)
        if check is not None:
            check(_layout(file, entries))
    except (KeyError, ValueError, TypeError, RuntimeError) as error:  # RuntimeError: also of torch, and deep nesting
        raise _damaged(where, error, remedy) from error


def _damaged(where: str, error: Exception, remedy: str) -> RunError:
    what = f"{error} is missing" if isinstance(error, KeyError) else (str(error).splitlines() or ["?"])[0]
    return RunError(f"cannot read {where} as safetensors: it is damaged ({what})" + (f"; {remedy}" if remedy else ""))


def check_values(tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError for numbers that are not finite, or too large to be multiplied."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            low, high = (bound.item() for bound in tensor.aminmax())
            if not (low >= -MAX_VALUE and high <= MAX_VALUE):  # also for NaN
                raise ValueError(f"{printable(name)} has values that are not finite, or far too large")


def _entries(file: BinaryIO, size: int) -> dict[str, Entry]:
    """Read and check the header of a file."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
        raise ValueError(f"its header has an invalid length of {length} bytes")
    content: Any = parse_json(file.read(length))
    if not isinstance(content, dict):
        raise ValueError("its header is not a JSON object")
    content.pop("__metadata__", None)
    entries = {}
    for name, described in content.items():
        raw = msgspec.convert(described, RawEntry)
        if raw.dtype not in DTYPES:
            raise ValueError(f"{printable(name)} is stored as {printable(raw.dtype)}, which is not supported")
        dtype, (start, stop) = DTYPES[raw.dtype], raw.data_offsets
        if len(raw.shape) > 8 or not all(0 <= side < 2**48 for side in raw.shape):
            raise ValueError(f"{printable(name)} has an invalid shape")
        if not 0 <= start <= stop or stop - start != math.prod(raw.shape) * dtype.itemsize:
            raise ValueError(f"{printable(name)} has a size that does not match its shape")
        entries[name] = Entry(dtype, tuple(raw.shape), 8 + length + start, 8 + length + stop)
    place = 8 + length
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.stop)):
        if entry.start != place:
            raise ValueError("its tensors overlap, or there are gaps between them")
        place = entry.stop
    if place != size:
        raise ValueError(f"it has {size} bytes, but its tensors end after {place}")
    return entries


def _layout(file: BinaryIO, entries: Mapping[str, Entry]) -> Layout:
    """Return the tensors without the values of large ones."""
    layout = {}
    for name, (dtype, shape, start, stop) in entries.items():
        if 0 < stop - start <= SMALL:
            file.seek(start)
            layout[name] = torch.frombuffer(bytearray(file.read(stop - start)), dtype=dtype).reshape(shape)
        else:
            layout[name] = torch.zeros((), dtype=dtype).expand(shape)
    return layout
