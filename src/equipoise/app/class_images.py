"""Show the images that a model keeps of one class, without reading those of other classes.

An image is named by the hash of its pixels. In a block of features, it can also be named by the block and its place in
it (``<block>-<place>``), which is known before the block is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from equipoise.app.model import Model, is_features
from equipoise.app.model_dir import ModelDir
from equipoise.app.model_files import ModelImages
from equipoise.app.stored_features import Block, read_block
from equipoise.app.stored_images import MODES, THUMBNAIL, ending, fetch, folder_name, thumbnail

FIRST = 4
"""Images that are shown of each class."""
LAST = 4
"""Blocks that stay in memory; browsers ask for pictures of several classes at a time."""


class ClassImages:
    """Stored images of a version, by class."""

    def __init__(self, place: ModelDir, model: Model, images: ModelImages) -> None:
        self.place, self.model, self.images = place, model, images
        # users look at several pictures of a block, and each block is read and hashed as a whole
        self._block = lru_cache(LAST)(self._read_block)

    @property
    def shown(self) -> bool:
        """Whether there are pictures: thumbnails next to features, or the images themselves."""
        if self.model.in_blocks:
            return self.model.keeps_thumbnails
        return not is_features(self.model.shape) and self.model.shape[0] in MODES

    def first(self, number: int) -> list[str]:
        """Name the first images of a class, without reading any."""
        names = self.images.memory[number] if self.shown else []
        if not self.model.in_blocks:
            return names[:FIRST]
        sizes = ((name, self.images.sizes.get(name, 0)) for name in names[:FIRST])
        return [f"{name}-{place}" for name, size in sizes for place in range(min(size, FIRST))][:FIRST]

    def names(self, number: int) -> list[str]:
        """Name all images of a class."""
        if not self.model.in_blocks:
            return list(self.images.memory[number])
        return [name for block in self.blocks(number) for name in block.ids]

    def picture(self, number: int, name: str) -> bytes | None:
        """Return a small JPEG of an image; None if there is no such image, or no picture of it."""
        block, _, place = name.partition("-")
        if not self.model.in_blocks:
            return self._read(number, name) if self.shown and name in self.images.memory[number] else None
        if not place:
            return next((_shown(found, name) for found in self.blocks(number) if name in found.ids), None)
        if block not in self.images.memory[number] or not place.isdecimal():
            return None
        found = self._block(number, block)
        return _shown(found, found.ids[int(place)]) if int(place) < len(found.ids) else None

    def blocks(self, number: int) -> Iterator[Block]:
        """Yield the blocks of features of a class."""
        yield from (self._block(number, name) for name in dict.fromkeys(self.images.memory[number]))

    def features(self, most: int) -> tuple[Tensor, Tensor]:
        """Return features of at most ``most`` images, about as many of each class, with their labels."""
        rows, labels = [torch.zeros(0, self.model.stored_shape[0])], [torch.zeros(0, dtype=torch.long)]
        per_class = max(2, most // len(self.model.classes))
        for number in range(min(len(self.model.classes), most // 2)) if self.model.in_blocks else ():
            block = next(self.blocks(number), None)  # the first one is enough to tell how much images differ
            if block is not None:
                rows.append(block.features[:per_class].float())
                labels.append(torch.full((len(rows[-1]),), number))
        return torch.cat(rows), torch.cat(labels)

    def _read_block(self, number: int, name: str) -> Block:
        file = f"memory/{folder_name(self.model.classes[number])}/{name}.safetensors"
        return read_block(self.place.directory, file, self.model.stored_shape[0])

    def _read(self, number: int, name: str) -> bytes:
        suffix = ending(self.model.shape, self.model.holdout.store.dtype)
        file = f"memory/{folder_name(self.model.classes[number])}/{name}{suffix}"
        return thumbnail(fetch(self.place.directory, [file], self.model.shape)[0])


def _shown(block: Block, name: str) -> bytes:
    """Return the thumbnail of an image, or a grey one: a model may have begun to keep them later."""
    return block.thumbnails.get(name) or thumbnail(torch.full((3, THUMBNAIL, THUMBNAIL), 200, dtype=torch.uint8))
