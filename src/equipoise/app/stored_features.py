"""Features that a model keeps: one file per class and step, so that a million images do not need a million files.

A block holds ``features`` (one row per image; 16-bit floats if a backbone computed them) and ``ids`` (the hash of each
image's pixels), and is named by a hash of both. It may hold ``thumbnails``, JPEG files one after the other, and where
each ends (``ends``). Blocks never change; a version lists the blocks of each class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from equipoise.app.stored_images import identify
from equipoise.core.directory import Directory
from equipoise.core.files import digest
from equipoise.core.tensors import Layout, read_tensors, write_tensors
from equipoise.data.images import FeatureStore, Images, JoinedStore, TensorStore
from equipoise.errors import RunError

MOST_BESIDE = 64 << 10
"""Bytes of a thumbnail, at most; those of 96 pixels have a tenth of that."""


@dataclass(frozen=True)
class Block:
    """Features of some images of one class."""

    features: Tensor
    ids: tuple[str, ...]
    thumbnails: dict[str, bytes] = field(default_factory=dict)
    """JPEG files by id, where they are kept."""

    @property
    def name(self) -> str:
        return digest("".join(self.ids).encode() + self.features.contiguous().numpy().tobytes()).hex()


def ids_of(images: Images) -> list[str]:
    """Return the name of each image: the hash of its pixels."""
    ids = _store_ids(images.store)
    return [identify(pixels) for pixels in images.read()] if ids is None else [ids[r] for r in images.rows.tolist()]


def _store_ids(store: object) -> Sequence[str] | None:
    if isinstance(store, FeatureStore):
        return store.ids
    if isinstance(store, TensorStore) and not len(store):
        return []
    if isinstance(store, JoinedStore):
        parts = [_store_ids(part) for part in store.stores]
        if all(part is not None for part in parts):
            return [name for part in parts for name in part or ()]
    return None


def write_blocks(
    directory: Directory,
    folder: str,
    images: Images,
    known: Mapping[str, Sequence[str]],
    thumbnails: Mapping[str, bytes],
    half: bool,
) -> list[tuple[str, list[str]]]:
    """Write the images that are not yet in one of the ``known`` blocks; return all blocks with their ids, in order.

    A block whose images were learned twice is listed twice.
    """
    ids = ids_of(images)
    starts = {block[0]: name for name, block in known.items()}
    found: list[tuple[str, list[str]]] = []
    place = 0
    while place < len(ids) and (name := starts.get(ids[place])) is not None:
        block = list(known[name])
        if ids[place : place + len(block)] != block or not directory.is_file(f"{folder}/{name}.safetensors"):
            break
        found.append((name, block))
        place += len(block)
    if place < len(ids):
        features = images.read(torch.arange(place, len(ids))).flatten(1)
        rest = Block(features.half() if half else features, tuple(ids[place:]))
        directory.make_dir(folder)
        hashes = torch.from_numpy(np.frombuffer(bytes.fromhex("".join(rest.ids)), np.uint8).reshape(-1, 16).copy())
        pictures = _pack([thumbnails.get(name, b"") for name in rest.ids])
        content = {"features": rest.features, "ids": hashes} | pictures
        write_tensors(directory, f"{folder}/{rest.name}.safetensors", content)
        found.append((rest.name, list(rest.ids)))
    return found


def _pack(thumbnails: Sequence[bytes]) -> dict[str, Tensor]:
    """Return thumbnails as tensors; none if all are empty."""
    data = b"".join(thumbnails)
    if not data:
        return {}
    ends = torch.tensor([len(one) for one in thumbnails]).cumsum(0)
    return {"thumbnails": torch.frombuffer(bytearray(data), dtype=torch.uint8), "ends": ends}


def _unpack(found: Mapping[str, Tensor], ids: Sequence[str]) -> dict[str, bytes]:
    """Undo ``_pack``; thumbnails that do not fit the block are dropped, because nothing depends on them."""
    data, ends = found.get("thumbnails"), found.get("ends")
    if data is None or ends is None or data.dtype != torch.uint8 or ends.dtype != torch.int64:
        return {}
    joined, stops = bytes(data.flatten().numpy()), ends.flatten().tolist()
    # in ascending order, or a small file could take any amount of memory
    if len(stops) != len(ids) or [0, *stops, len(joined)] != sorted([0, *stops, len(joined)]):
        return {}
    parts = (joined[start:stop] for start, stop in pairwise([0, *stops]))
    return {name: part for name, part in zip(ids, parts, strict=True) if part}


def read_block(directory: Directory, file: str, width: int) -> Block:
    """Read a block and check it against its name."""
    what = f"the stored features {directory.path / file} are damaged"
    try:
        found = read_tensors(directory, file, lambda layout: _check_block(layout, width))
    except RunError as error:
        raise RunError(f"{what} ({error})") from error
    ids = tuple(bytes(row).hex() for row in found["ids"].numpy())
    block = Block(found["features"], ids, _unpack(found, ids))
    if not file.endswith(f"/{block.name}.safetensors"):
        raise RunError(f"{what}: restore them from a copy")
    return block


def _check_block(layout: Layout, width: int) -> None:
    """Raise an error unless these can be the tensors of a block."""
    features, hashes = layout["features"], layout["ids"]
    if features.dtype not in (torch.float16, torch.float32) or hashes.dtype != torch.uint8:
        raise TypeError("features or ids have the wrong type")
    if hashes.dim() != 2 or not len(hashes) or hashes.shape[1] != 16 or features.shape != (len(hashes), width):
        raise ValueError(f"it needs {width} features and an id of 16 bytes per image")
    others = sum(value.nbytes for name, value in layout.items() if name not in ("features", "ids"))
    if others > len(hashes) * MOST_BESIDE:
        raise ValueError("its thumbnails are too large")
