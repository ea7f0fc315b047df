"""Weight Aligning on a checkpoint file of any library."""

from __future__ import annotations

import io
import os
import pickle
import struct
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from equipoise.core.files import atomic_write
from equipoise.core.open_dir import printable
from equipoise.core.tensors import check_header, check_values
from equipoise.errors import DataError, EquipoiseError, UsageError, unknown_name
from equipoise.learn.align import align_head, head_norms

MAX_DIRECTORY_BYTES = 16 << 20
"""Size of the directory of a zip file: 100,000 tensors."""
MAX_NAME = 200
"""Characters of a tensor's name that an error shows."""


@dataclass
class HeadRows:
    """The head inside a checkpoint."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class AlignReport:
    """γ, the number of old and new classes, and their mean norms before aligning."""

    gamma: float
    old: int
    new: int
    norm_old: float
    norm_new: float


def align_file(checkpoint: Path, head: str, old: int, out: Path, norm: int = 1, clamp: bool = True) -> AlignReport:
    """Align the rows of ``head`` in ``checkpoint`` and write the result to ``out`` in the same format."""
    if not checkpoint.is_file():
        raise UsageError(f"the checkpoint {checkpoint} does not exist")
    safe = checkpoint.suffix == ".safetensors"
    content, metadata = _read_safe(checkpoint) if safe else (_read_torch(checkpoint), None)
    tensors = _holder(content, head)
    bias = tensors.get(head.removesuffix("weight") + "bias") if head.endswith("weight") else None
    rows = HeadRows(tensors[head], bias)
    if rows.weight.dim() != 2 or not rows.weight.is_floating_point():
        raise UsageError(f"{head} has shape {tuple(rows.weight.shape)}, but a head has one row of floats per class")
    if bias is not None and not (isinstance(bias, Tensor) and bias.is_floating_point() and bias.dim() == 1):
        raise UsageError(f"the bias of {head} is not a vector of floats")
    named = {head: rows.weight} | ({} if bias is None else {f"the bias of {head}": bias})
    _check_stored(named)
    try:
        check_values(named)
        norms = head_norms(rows, norm)
        gamma = align_head(rows, old, norm, clamp)
    except EquipoiseError:
        raise
    except ValueError as error:
        raise DataError(f"cannot align {error}: check whether training diverged") from error
    except (RuntimeError, NotImplementedError) as error:  # torch cannot compute with every dtype it can store
        raise DataError(f"{head} is stored as {rows.weight.dtype}: convert it to float32 first") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types that torch will not support any more
        atomic_write(out, lambda file: save_file(content, file, metadata) if safe else torch.save(content, file))
    return AlignReport(gamma, old, len(norms) - old, norms[:old].mean().item(), norms[old:].mean().item())


def _check_stored(named: dict[str, Tensor]) -> None:
    """Raise an error for tensors whose values cannot be changed in place."""
    for name, tensor in named.items():
        if tensor.layout != torch.strided:
            raise DataError(f"{name} is a sparse tensor: save it as a dense one (with to_dense()) first")
        if tensor.is_meta:
            raise DataError(f"{name} is a meta tensor, which has no values: save the checkpoint with its weights")
        if any(side > 1 and step == 0 for side, step in zip(tensor.shape, tensor.stride(), strict=True)):
            raise DataError(
                f"{name} is an expanded tensor, whose values share memory: save a copy (clone()) of it first"
            )


def _read_safe(path: Path) -> tuple[dict[str, Any], dict[str, str] | None]:
    try:
        with path.open("rb") as file:
            check_header(file, path.stat().st_size, printable(path))
        with safe_open(path, "pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata()  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} is not a safetensors file ({error})") from error


class _Buffered(io.BufferedReader):
    """A file without a descriptor: torch tries to read others with tarfile, which can hang and take any memory."""

    def fileno(self) -> int:
        raise io.UnsupportedOperation("fileno")


def _read_torch(path: Path) -> dict[str, Any]:
    zipped = False
    try:
        with warnings.catch_warnings(), _Buffered(io.FileIO(path)) as file:
            warnings.simplefilter("ignore")  # of types that torch will not support any more
            zipped = file.peek(4)[:4] == b"PK\3\4"  # as torch decides
            if zipped:
                _check_zip(path)
            content = torch.load(path if zipped else file, map_location="cpu", weights_only=True)
        _remove_attributes(content)
    except DataError:
        raise
    except pickle.UnpicklingError as error:
        if "weights_only" not in str(error).lower() or not zipped:
            raise DataError(f"{path} is not a checkpoint that torch can read") from error
        raise DataError(
            f"cannot read {path} without running code from it: save its state_dict() as safetensors first"
        ) from error
    except Exception as error:  # a damaged pickle may raise anything; no code in it has run
        raise DataError(f"{path} is truncated or not a checkpoint that torch can read") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not a state dict")
    return content


def _check_zip(path: Path) -> None:
    """Raise an error for a zip file that takes more memory than it has bytes: torch does not compress.

    zipfile and torch agree on where its directory is only if it is right before the records that end the file.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 98, 0))
        tail = file.read().rjust(98, b"\0")
    mark64, length, start = struct.unpack_from("<4s36x2Q", tail)
    locator, place64 = struct.unpack_from("<4s4xQ", tail, 56)
    valid = tail[76:80] == b"PK\5\6" and tail[96:] == b"\0\0"  # no comment
    if locator == b"PK\6\7":  # ZIP64
        place = size - 98
        valid &= mark64 == b"PK\6\6" and place64 == place
    else:
        place = size - 22
        length, start = struct.unpack_from("<2L", tail, 88)
    if not valid or start + length != place:
        raise zipfile.BadZipFile("its directory is not at its end")
    if length > MAX_DIRECTORY_BYTES:
        raise DataError(f"{path} has a directory of more than {MAX_DIRECTORY_BYTES >> 20} MB: save fewer tensors in it")
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > size:
            raise DataError(f"{path} is compressed: save it again with torch.save")


def _remove_attributes(content: Any) -> None:
    """Delete the attributes of dicts and tensors in a checkpoint: any of them could replace a method, such as ``get``.

    What is kept is the ``_metadata`` of a state dict.
    """
    seen: set[int] = set()
    left = [content]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict | Tensor) and hasattr(value, "__dict__"):
            metadata = vars(value).get("_metadata")
            vars(value).clear()
            if isinstance(metadata, dict):
                vars(value)["_metadata"] = metadata
                left.append(metadata)
        if isinstance(value, dict):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            left += value


def _holder(content: dict[str, Any], head: str) -> dict[str, Tensor]:
    """Return the dict that contains ``head``: the checkpoint itself or a state dict inside it."""
    found: list[str] = []
    for table in (content, *(value for value in content.values() if isinstance(value, dict))):
        if isinstance(table.get(head), Tensor):
            return table
        matrices = (name for name, value in table.items() if isinstance(value, Tensor) and value.dim() == 2)
        found += [name[:MAX_NAME] for name in matrices if isinstance(name, str)]
    raise unknown_name("tensor", head, set(found) or {"none with two dimensions"})
