"""Compare how fast photos are decoded with plain Pillow: open, crop the centre, resize, in as many threads."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from extraction import decode_all, save_photos
from PIL import Image, ImageOps
from timing import Row, interleave, seconds, speedup

from equipoise.data.prefetch import decoder_pool

SIZE = 224


def plain(file: str) -> np.ndarray:
    with Image.open(file) as picture:
        upright = ImageOps.exif_transpose(picture).convert("RGB")
    return np.asarray(ImageOps.fit(upright, (SIZE, SIZE), Image.Resampling.BICUBIC))


def decode_plainly(files: list[str]) -> None:
    with decoder_pool() as pool:
        for _ in pool.map(plain, files):
            pass


def measure(count: int = 320, rounds: int = 5) -> Iterator[Row]:
    """Compare ordinary small photos, which are decoded at full size, and large ones, which are not."""
    for scale in (1, 6):
        with tempfile.TemporaryDirectory() as folder:
            files = save_photos(Path(folder) / "class", count // scale)
            for file in files if scale > 1 else ():
                with Image.open(file) as picture:
                    picture.resize((scale * picture.width, scale * picture.height)).save(file, quality=90)
            works = {
                "ours": lambda files=files: seconds(partial(decode_all, files, SIZE)),
                "plain": lambda files=files: seconds(partial(decode_plainly, files)),
            }
            times = interleave(works, rounds)
        yield Row(
            what=f"decoding JPEGs of {500 * scale:,} pixels to {SIZE}",
            ours=round(len(files) / median(times["ours"])),
            baseline=round(len(files) / median(times["plain"])),
            unit="images/s",
            ratio=speedup(times, "ours", "plain"),
            versus="plain Pillow in as many threads",
            goal=0.95,
        )


if __name__ == "__main__":
    for row in measure():
        print(row, flush=True)
