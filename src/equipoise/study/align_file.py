"""Weight Aligning on a checkpoint file of any library."""

from __future__ import annotations

import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from equipoise.core.files import atomic_write
from equipoise.core.tensors import check_values
from equipoise.errors import DataError, UsageError, unknown_name
from equipoise.learn.align import align_head, head_norms


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
    _check_finite(head, rows)
    try:
        norms = head_norms(rows, norm)
        gamma = align_head(rows, old, norm, clamp)
    except (RuntimeError, NotImplementedError) as error:  # torch cannot compute with every dtype it can store
        raise DataError(f"{head} is stored as {rows.weight.dtype}: convert it to float32 first") from error
    atomic_write(out, lambda file: save_file(content, file, metadata) if safe else torch.save(content, file))
    return AlignReport(gamma, old, len(norms) - old, norms[:old].mean().item(), norms[old:].mean().item())


def _check_finite(head: str, rows: HeadRows) -> None:
    """Raise an error if γ would not be a number."""
    try:
        check_values({head: rows.weight} | ({} if rows.bias is None else {f"the bias of {head}": rows.bias}))
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise DataError(f"cannot align {error}: check whether training diverged") from error


def _read_safe(path: Path) -> tuple[dict[str, Any], dict[str, str] | None]:
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} is not a safetensors file ({error})") from error


def _read_torch(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "weights_only" not in str(error).lower() or not zipfile.is_zipfile(path):
            raise DataError(f"{path} is not a checkpoint that torch can read") from error
        raise DataError(
            f"cannot read {path} without running code from it: save its state_dict() as safetensors first"
        ) from error
    except Exception as error:  # a damaged pickle may raise anything; no code in it has run
        raise DataError(f"{path} is truncated or not a checkpoint that torch can read") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not a state dict")
    return content


def _holder(content: dict[str, Any], head: str) -> dict[str, Tensor]:
    """Return the dict that contains ``head``: the checkpoint itself or a state dict inside it."""
    found: list[str] = []
    for table in (content, *(value for value in content.values() if isinstance(value, dict))):
        if isinstance(table.get(head), Tensor):
            return table
        found += [str(name) for name, value in table.items() if isinstance(value, Tensor) and value.dim() == 2]
    raise unknown_name("tensor", head, set(found) or {"none with two dimensions"})
