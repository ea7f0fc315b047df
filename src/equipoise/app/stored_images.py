"""Images that a model keeps: one file each, named by a hash of its pixels, so that the same image is stored once.

Images of one, three or four channels are PNG, so that they can be viewed; others (rows of features) are NPY.
"""

from __future__ import annotations

import io
import re
import struct
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from equipoise.core.directory import Directory
from equipoise.core.files import digest
from equipoise.data.prefetch import decoder_pool
from equipoise.errors import RunError

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
THUMBNAIL = 96
"""Width and height of thumbnails, at most."""
IDENTITY = re.compile("[0-9a-f]{32}")
"""The name of a stored image, without its ending."""


def identify(pixels: Tensor) -> str:
    """Return the name of an image: a hash of its pixels that is the same on every machine."""
    plain = pixels.contiguous().numpy()
    return digest(f"{plain.dtype} {plain.shape} ".encode() + plain.tobytes()).hex()


def ending(shape: Sequence[int], dtype: torch.dtype = torch.uint8) -> str:
    """Return the file name extension for images of this shape."""
    return ".png" if dtype == torch.uint8 and shape[0] in MODES else ".npy"


def stem(file: str) -> str:
    """Return the name of a file without its folder and ending."""
    return file.rpartition("/")[2].partition(".")[0]


def encode(pixels: Tensor) -> bytes:
    """Encode one image, C × H × W."""
    file = io.BytesIO()
    if ending(pixels.shape, pixels.dtype) == ".npy":
        np.save(file, pixels.numpy())
    else:
        plain = pixels.permute(1, 2, 0).contiguous().numpy()
        Image.fromarray(plain[:, :, 0] if len(pixels) == 1 else plain).save(file, "PNG", compress_level=1)
    return file.getvalue()


def decode_stored(data: bytes, name: str, shape: tuple[int, ...]) -> Tensor:
    """Undo ``encode``; raise ValueError for an unexpected shape, before it takes any memory."""
    file = io.BytesIO(data)
    if name.endswith(".npy"):
        np.lib.format.read_magic(file)
        found = np.lib.format.read_array_header_1_0(file)[0]
        if found != shape:
            raise ValueError(f"it has shape {found}, expected {shape}")
        file.seek(0)
        return torch.from_numpy(np.load(file, allow_pickle=False))
    if data[16:24] != struct.pack(">2I", shape[2], shape[1]):  # Pillow would print a warning for a large picture
        raise ValueError(f"it does not have {shape[2]} × {shape[1]} pixels")
    with Image.open(file, formats=["PNG"]) as picture:
        if picture.size != (shape[2], shape[1]):  # a second header may change it
            raise ValueError(f"it does not have {shape[2]} × {shape[1]} pixels")
        plain = np.array(picture)
    return torch.from_numpy(plain[:, :, None] if plain.ndim == 2 else plain).permute(2, 0, 1)


def thumbnail(pixels: Tensor) -> bytes:
    """Return a small JPEG of an image, for display."""
    plain = pixels.permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(plain[:, :, 0] if len(pixels) == 1 else plain).convert("RGB")
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=80)
    return file.getvalue()


def store(directory: Directory, folder: str, pixels: Iterable[Tensor]) -> list[str]:
    """Write the images that ``folder`` does not contain yet; return the names of all."""
    names = []
    for image in pixels:
        name = identify(image)
        names.append(name)
        file = f"{folder}/{name}{ending(image.shape, image.dtype)}"
        if not directory.is_file(file):
            directory.make_dir(folder)
            directory.write_bytes(file, encode(image))
    return names


def fetch(directory: Directory, files: Sequence[str], shape: tuple[int, ...]) -> list[Tensor]:
    """Read images of one shape and check each against its name."""

    def read(file: str) -> Tensor:
        shown = directory.path / file
        try:
            image = decode_stored(directory.read_bytes(file), file, shape)
        except Exception as error:  # a decoder may raise anything, and NumPy parses the header of a file as Python
            raise RunError(f"cannot read the stored image {shown} ({error}): restore it from a copy") from error
        if tuple(image.shape) != shape or identify(image) != stem(file):
            raise RunError(f"the stored image {shown} is damaged: restore it from a copy")
        return image

    with decoder_pool() as pool:
        return list(pool.map(read, files))


def folder_name(name: object) -> str:
    """Return a folder name for a class that is valid on any file system and different for different classes.

    >>> folder_name("red fox"), folder_name("a/b"), folder_name("a_b")
    ('red fox', 'a_b-575aa622', 'a_b')
    """
    text = str(name)
    plain = unicodedata.normalize("NFC", text)
    safe = "".join("_" if c in '/\\:*?"<>|' or not c.isprintable() else c for c in plain).strip(" .")
    while len(safe.encode()) > 100:
        safe = safe[:-1]
    if safe and safe == text and not re.search("-[0-9a-f]{8}$", safe):
        return safe
    return f"{safe}-{digest(text.encode()).hex()[:8]}"
