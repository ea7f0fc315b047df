"""Small pictures of a model's images for its page."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from PIL import Image

from equipoise.app.model import Model, is_features
from equipoise.app.stored_features import ids_of
from equipoise.app.stored_images import MODES, thumbnail
from equipoise.data.images import Images

LARGEST = 1024
"""Width and height of a thumbnail that is decoded; ours have 96 pixels, and a model may be untrusted."""
OF_CLASS, OF_SUSPECT = 64, 96
"""Width and height of pictures, at most."""
PER_CLASS = 4
MOST = 400
"""Pictures of classes on a page, at most."""


class Pictures:
    """Pictures of images whose thumbnails or pixels are kept, as data URLs."""

    def __init__(self, model: Model) -> None:
        self.model = model
        # rows of features that the user computed cannot be shown, nor can images of two channels
        self.pixels = not model.in_blocks and not is_features(model.shape) and model.shape[0] in MODES
        self.available = self.pixels or bool(model.thumbnails)

    def of_classes(self) -> list[list[str]]:
        """Return pictures of the first images of each class, fewer of each if there are many classes."""
        shown = [max(1, min(PER_CLASS, MOST // len(self.model.classes)))] * len(self.model.classes)
        parts = self.model.images_by_class().values()
        return [
            self.of(kept, count, OF_CLASS) if c < MOST else []
            for c, ((kept, _), count) in enumerate(zip(parts, shown, strict=True))
        ]

    def of(self, images: Images, count: int, size: int) -> list[str]:
        """Return pictures of the first images that have one."""
        if not self.available:
            return []
        urls = (self._url(images.select(torch.tensor([row])), size) for row in range(min(count, len(images))))
        return [url for url in urls if url]

    def by_name(self, names: set[str], size: int) -> dict[str, str]:
        """Return pictures of images by the names under which the model keeps them."""
        kept = self.model.memory.images()
        if not self.available or kept is None or not names:
            return {}
        rows = {name: row for row, name in enumerate(ids_of(kept)) if name in names}
        urls = {name: self._url(kept.select(torch.tensor([row])), size) for name, row in rows.items()}
        return {name: url for name, url in urls.items() if url}

    def _url(self, image: Images, size: int) -> str | None:
        if self.pixels:
            return data_url(thumbnail(image.read()[0]), size)
        data = self.model.thumbnails.get(ids_of(image)[0])
        return data_url(data, size) if data else None


def data_url(data: bytes, size: int) -> str | None:
    """Return a JPEG file as text for the page."""
    picture = jpeg(data, size)
    return None if picture is None else f"data:image/jpeg;base64,{base64.b64encode(picture).decode()}"


def jpeg(data: bytes, size: int) -> bytes | None:
    """Decode a JPEG file and encode its pixels again, so that nothing else in the file gets into a page."""
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as picture:
            if max(picture.size) > LARGEST:
                return None
            picture.thumbnail((size, size))
            pixels = np.asarray(picture.convert("RGB"))
    except Exception:  # a decoder may raise anything
        return None
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=75)  # a new picture: Pillow would keep comments and profiles
    return file.getvalue()
