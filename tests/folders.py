"""Folders of images for tests: tidy ones of glyphs, and one as untidy as real ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from equipoise.data.dataset import Dataset
from equipoise.data.images import Images
from equipoise.data.sources import load

ONNX_EXAMPLE = Path(__file__).parent.parent / "examples" / "onnx_predict.py"


@cache
def glyphs() -> Dataset:
    return load("glyphs", train=16, test=8, difficulty=0.3)


def glyph_folder(root: Path, classes: Sequence[int], count: int = 16, start: int = 0, test: bool = False) -> Path:
    """Save ``count`` images of each class in folders named A, B, C, …"""
    images = glyphs().test if test else glyphs().train
    save_folder(root, images, {c: name(c) for c in classes}, count, start)
    return root


def name(number: int) -> str:
    return chr(ord("A") + number)


def save_folder(root: Path, images: Images, names: dict[int, str], count: int, start: int = 0) -> None:
    """Save ``count`` images of each class, from ``start`` on, in folders with the given names."""
    for label, called in names.items():
        rows = (images.labels == label).nonzero().flatten()[start : start + count]
        (root / called).mkdir(parents=True, exist_ok=True)
        for number, pixels in enumerate(images.read(rows), start):
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(root / called / f"{number:03d}.png")


def crops(photograph: str, count: int, seed: int) -> list[Image.Image]:
    """Return parts of a real photograph in many sizes."""
    picture = Image.fromarray(load_sample_image(photograph))
    draws = np.random.default_rng(seed)
    pieces = []
    for _ in range(count):
        width, height = (int(side) for side in draws.integers(40, 200, 2))
        left, top = int(draws.integers(picture.width - width)), int(draws.integers(picture.height - height))
        pieces.append(picture.crop((left, top, left + width, top + height)))
    return pieces


def save_variants(root: Path) -> list[str]:
    """Save parts of two photographs in many sizes, modes and orientations; return their paths."""
    root.mkdir()
    files = []
    kinds = ("L.jpg", "RGB.jpg", "RGBA.png", "P.png", "CMYK.jpg", "I;16.png", "LA.png", "1.png", "RGB.tif", "RGB.webp")
    pieces = [*crops("china.jpg", 20, seed=4), *crops("flower.jpg", 20, seed=5)]
    for number, picture in enumerate(pieces):
        mode, ending = kinds[number % len(kinds)].split(".")
        if number % 4 == 1:  # decoded at a fraction of its size, if it is a JPEG
            picture = picture.resize((picture.width * 7, picture.height * 7))
        if "A" in mode:
            picture.putalpha(Image.linear_gradient("L").resize(picture.size))
        if mode == "I;16":
            picture = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
        exif = Image.Exif()
        exif[0x0112] = 1 + number // 3 % 8
        files.append(str(root / f"{number}.{ending}"))
        (picture if mode == "I;16" else picture.convert(mode)).save(files[-1], exif=exif)
    return files


def messy_folder(root: Path) -> dict[str, str]:
    """Save real JPEGs of two photographs next to everything that can go wrong; return what must be skipped and why."""
    temple, flower = root / "old temple", root / "Blüte 花"
    for folder, photograph in ((temple, "china.jpg"), (flower, "flower.jpg")):
        folder.mkdir(parents=True)
        for number, piece in enumerate(crops(photograph, 14, seed=len(photograph))):
            piece.save(folder / f"piece {number}.jpg", quality=90)
    grey, print_, glass, palette, turned, deep = crops("china.jpg", 6, seed=1)
    grey.convert("L").save(temple / "grey.jpg")
    print_.convert("CMYK").save(temple / "print.jpg")
    glass.putalpha(128)
    glass.save(temple / "glass.PNG")
    palette.convert("P").save(temple / "table.gif")
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(temple / "turned.jpeg", exif=exif)
    Image.fromarray(np.asarray(deep.convert("L")).astype(np.uint16) << 8).save(temple / "deep.tif")
    crops("china.jpg", 1, seed=2)[0].save(temple / "web.webp")
    crops("china.jpg", 1, seed=3)[0].save(temple / "window.bmp")
    (root / "elsewhere.jpg").symlink_to(flower / "piece 0.jpg")
    (flower / "dangling.jpg").symlink_to("/nowhere/at/all.jpg")
    real = root.parent / "a folder elsewhere"
    real.mkdir()
    for number, piece in enumerate(crops("flower.jpg", 4, seed=9)):
        piece.rotate(90).save(real / f"{number}.png")
    (root / "linked class").symlink_to(real)
    (flower / "notes.txt").write_text("not an image")
    (flower / "empty.jpg").touch()
    (flower / "fake.jpg").write_text("I am not a JPEG")
    (flower / ".DS_Store").write_bytes(b"hidden")
    whole = (temple / "piece 1.jpg").read_bytes()
    (flower / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (flower / "inner").mkdir()
    (root / "empty class").mkdir()
    (root / "hollow").mkdir()
    (root / "hollow" / "readme.md").write_text("no images here")
    (root / "loose.png").write_bytes(b"")
    twin = temple / "piece 2.jpg"
    (flower / "also here.jpg").write_bytes(twin.read_bytes())
    (temple / "copy of piece 3.jpg").write_bytes((temple / "piece 3.jpg").read_bytes())
    return {
        "Blüte 花/notes.txt": "not an image",
        "Blüte 花/empty.jpg": "the file is empty",
        "Blüte 花/fake.jpg": "cannot identify image",
        "Blüte 花/cut.jpg": "truncated",
        "Blüte 花/dangling.jpg": "the link is broken",
        "Blüte 花/inner": "it is a folder inside a class folder",
        "Blüte 花/also here.jpg": "the same image is also in class 'old temple'",
        "old temple/piece 2.jpg": "the same image is also in class 'Blüte 花'",
        "old temple/piece 3.jpg": "duplicate of copy of piece 3.jpg",
        "empty class": "the class has no images",
        "hollow": "the class has no images",
        "hollow/readme.md": "not an image",
        "loose.png": "the file is empty",
        "elsewhere.jpg": "it is outside the class folders",
    }


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, except the lock."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != ".lock")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def unseen(classes: Sequence[int]) -> torch.Tensor:
    """Return the test images of some classes of glyphs."""
    images = glyphs().test
    return torch.cat([images.read((images.labels == c).nonzero().flatten()) for c in classes])
