"""Tensors in safetensors files, inside and outside of directories that equipoise owns."""

from __future__ import annotations

from collections.abc import Mapping

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from equipoise.core.directory import MAX_TENSOR_BYTES, Directory
from equipoise.errors import RunError


def serialize(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a safetensors file."""
    # safetensors needs contiguous tensors; channels-last ones get their layout back when they are copied into place
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(plain, metadata)


def parse(data: bytes, where: str) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; ``where`` names it in errors."""
    try:
        return safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise RunError(f"cannot read {where} as safetensors ({error})") from error


def write_tensors(directory: Directory, name: str, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file into a directory."""
    directory.write_bytes(name, serialize(tensors), MAX_TENSOR_BYTES)


def read_tensors(directory: Directory, name: str) -> dict[str, Tensor]:
    """Read a safetensors file from a directory."""
    return parse(directory.read_bytes(name, MAX_TENSOR_BYTES), str(directory.path / name))
