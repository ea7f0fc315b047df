"""Single images as a model keeps them: a file each, named by its pixels, so that the same image is stored once.

Images of one, three or four channels are PNG, which anybody can look at; anything else (rows of features) is NPY.
"""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from equipoise.data.images import decoders, digest
from equipoise.errors import RunError
from equipoise.files import write_bytes

MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def identify(pixels: Tensor) -> str:
    """The name of an image: the same pixels have the same, on every machine and in every year."""
    plain = pixels.contiguous().numpy()
    return digest(f"{plain.dtype} {plain.shape} ".encode() + plain.tobytes()).hex()


def ending(shape: Sequence[int], dtype: torch.dtype = torch.uint8) -> str:
    return ".png" if dtype == torch.uint8 and shape[0] in MODES else ".npy"


def encode(pixels: Tensor) -> bytes:
    """One image, C × H × W."""
    file = io.BytesIO()
    if ending(pixels.shape, pixels.dtype) == ".npy":
        np.save(file, pixels.numpy())
        return file.getvalue()
    plain = pixels.permute(1, 2, 0).contiguous().numpy()
    Image.fromarray(plain[:, :, 0] if len(pixels) == 1 else plain).save(file, "PNG", compress_level=1)
    return file.getvalue()


def decode_stored(data: bytes, name: str) -> Tensor:
    """The image back, C × H × W."""
    if name.endswith(".npy"):
        return torch.from_numpy(np.load(io.BytesIO(data), allow_pickle=False))
    with Image.open(io.BytesIO(data)) as picture:
        plain = np.array(picture)
    return torch.from_numpy(plain[:, :, None] if plain.ndim == 2 else plain).permute(2, 0, 1)


def store(folder: Path, pixels: Iterable[Tensor]) -> list[str]:
    """Write the images that ``folder`` does not hold yet; returns the names of all."""
    names = []
    for image in pixels:
        name = identify(image)
        names.append(name)
        file = folder / (name + ending(image.shape, image.dtype))
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_bytes(file, encode(image))
    return names


def fetch(files: Sequence[Path]) -> list[Tensor]:
    """The images in ``files``, each checked against its name."""

    def one(file: Path) -> Tensor:
        try:
            image = decode_stored(file.read_bytes(), file.name)
        except (OSError, ValueError, SyntaxError) as error:
            raise RunError(f"the stored image {file} cannot be read ({error}): restore it from a copy") from error
        if identify(image) != file.stem:
            raise RunError(f"the stored image {file} is damaged: restore it from a copy")
        return image

    with decoders() as pool:
        return list(pool.map(one, files))


def folder_name(name: object) -> str:
    """A name that any file system takes, for a class of any name; different classes have different ones.

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
