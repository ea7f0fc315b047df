"""Image files to square uint8 arrays."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from equipoise.core.ranges import IMAGE_SIDE
from equipoise.data.picture_files import FORMATS, decoding, reading
from equipoise.errors import DataError

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def short_side(pictures: Sequence[Any], sample: int = 100) -> int:
    """Return the median short side of paths or PIL images, from a sample of those that can be read."""
    sides = []
    for picture in pictures[:: max(1, len(pictures) // sample)]:
        with suppress(Exception), ExitStack() as stack:  # what is wrong is reported when it is decoded
            if not isinstance(picture, Image.Image):
                data = stack.enter_context(reading(os.fspath(picture)))
                picture = stack.enter_context(Image.open(io.BytesIO(data), formats=FORMATS))
            sides.append(min(picture.size))
    return int(np.median(sides)) if sides else 0


def check_size(size: int) -> None:
    """Raise an error for images that are too small or too large."""
    IMAGE_SIDE.check(size, "data.size")


def decode(
    source: str | bytes | Image.Image,
    size: int,
    draw: Sequence[float] | None = None,
    margin: float = 1.0,
    bicubic: bool = False,
) -> np.ndarray:
    """Return an image as size × size × 3 uint8.

    Parameters
    ----------
    source
        A path, the content of a file, or a PIL image.
    size
        Pixels per side.
    draw
        Four uniform numbers for a random resized crop; None crops the centre.
    margin
        Divide the edge of the largest centred square by this (ImageNet: 256/224).
    bicubic
        Crop the centre at whole pixels and resize it with a bicubic filter, as for pretrained networks.
    """
    try:
        if isinstance(source, Image.Image):
            source.load()  # draft mode would shrink the caller's own image
            return np.array(to_square(source, size, draw, margin, bicubic))
        content = reading(source) if isinstance(source, str) else nullcontext(source)
        with content as data, Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            full = picture.size
            _draft(picture, size, draw, margin, bicubic)
            with decoding(picture, full, data):
                pixels = np.array(to_square(picture, size, draw, margin, bicubic, full))  # torch needs writable arrays
                picture.close()  # frees its memory before that of the next one is taken
                return pixels
    except Exception as error:  # a decoder may raise anything, and it must cost one file only
        name = source if isinstance(source, str) else "the image"
        why = f"it is not one of {', '.join(FORMATS)}" if isinstance(error, UnidentifiedImageError) else error
        raise DataError(f"cannot read {name} as an image ({why}): fix or remove it") from error


def to_square(
    picture: Image.Image,
    size: int,
    draw: Sequence[float] | None = None,
    margin: float = 1.0,
    bicubic: bool = False,
    full: tuple[int, int] | None = None,
) -> Image.Image:
    """Return an image of any mode as upright size × size RGB, with transparent parts replaced by white.

    ``full`` is its size in the file, if it is decoded at a fraction of that.
    """
    if picture.format == "TIFF":
        picture.load()  # turns it upright and removes the orientation
        full = picture.size
    if bicubic:
        return _centre_bicubic(picture, size, margin)
    full = full or picture.size
    box = _box(full, draw, margin)
    across, down = picture.size[0] / full[0], picture.size[1] / full[1]
    box = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
    # rounding may move an edge out of the image by the last bit, which Pillow rejects
    box = max(box[0], 0), max(box[1], 0), min(box[2], picture.size[0]), min(box[3], picture.size[1])
    return _upright(_to_rgb(picture).resize((size, size), Image.Resampling.BILINEAR, box), picture)


def _draft(picture: Image.Image, size: int, draw: Sequence[float] | None, margin: float, bicubic: bool) -> None:
    """Let a JPEG decode at a half, quarter or eighth of its size, if the crop stays at least as large as needed."""
    if picture.format not in ("JPEG", "MPO"):
        return
    if bicubic:
        needed = int(2 * size * margin)
        picture.draft("RGB", (needed, needed))
        return
    box = _box(picture.size, draw, margin)
    scale = min(box[2] - box[0], box[3] - box[1]) / size
    if scale >= 2:
        picture.draft("RGB", (int(picture.size[0] / scale), int(picture.size[1] / scale)))


def _centre_bicubic(picture: Image.Image, size: int, margin: float) -> Image.Image:
    """Return the centred square, cropped at whole pixels.

    An exported model crops and resizes upright images, so they are turned first.
    """
    upright = picture if _orientation(picture) == 1 else ImageOps.exif_transpose(picture)
    edge = round(min(upright.size) / margin)
    left, top = (upright.size[0] - edge) // 2, (upright.size[1] - edge) // 2
    square = upright.crop((left, top, left + edge, top + edge))
    square.info = picture.info  # transparency
    return _to_rgb(square).resize((size, size), Image.Resampling.BICUBIC)


def _upright(small: Image.Image, picture: Image.Image) -> Image.Image:
    """Rotate ``small`` according to the orientation of ``picture``."""
    small.info.clear()  # of all metadata, only the orientation matters
    small.getexif()[ExifTags.Base.Orientation] = _orientation(picture)
    ImageOps.exif_transpose(small, in_place=True)
    return small


def _orientation(picture: Image.Image) -> int:
    value: int = picture.getexif().get(ExifTags.Base.Orientation, 1)
    return value


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I;16"):  # convert() would clip 16 bits to white instead of scaling them
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if picture.mode in ("I", "F"):  # convert() would clip these too, and their white point is unknown
        raise ValueError("its pixels have 32 bits: save it with 8 or 16")
    if picture.has_transparency_data:  # the colour behind transparent pixels is arbitrary, often black
        rgba = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _box(size: tuple[int, int], draw: Sequence[float] | None, margin: float) -> Box:
    return _centre_box(size, margin) if draw is None else _random_box(size, draw)


def _centre_box(size: tuple[int, int], margin: float) -> Box:
    edge = min(size) / margin
    left, top = (size[0] - edge) / 2, (size[1] - edge) / 2
    return left, top, left + edge, top + edge


def _random_box(size: tuple[int, int], draw: Sequence[float]) -> Box:
    """Return a random resized crop from four uniform numbers: area 8–100 %, aspect 3/4–4/3, position.

    A shape that does not fit the image is shrunk to fit instead of being drawn again.
    """
    width, height = size
    area = width * height * (0.08 + 0.92 * draw[0])
    aspect = (3 / 4) ** (1 - 2 * draw[1])
    w, h = (area * aspect) ** 0.5, (area / aspect) ** 0.5
    shrink = min(1.0, width / w, height / h)
    w, h = w * shrink, h * shrink
    left, top = (width - w) * draw[2], (height - h) * draw[3]
    return left, top, left + w, top + h
