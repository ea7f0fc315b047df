"""Features from JPEG files: the streaming pass against decoding and network alone, and every engine that is installed.

The bound for a pass on the same cores is 1 / (1 / decoding + 1 / network), with both measured alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from timing import Row, interleave, seconds

from equipoise.app.photo_folder import FolderScan, read_images
from equipoise.core.extras import available
from equipoise.data.augment import Augment
from equipoise.data.decoding import decode
from equipoise.data.prefetch import decoder_pool
from equipoise.learn.backbones import Architecture
from equipoise.learn.backbones.pretrained import PRETRAINED
from equipoise.learn.extractor import CHUNK, ENGINES, Engine, Extractor
from equipoise.learn.runtime import Runtime

SIZES = ((640, 427), (512, 340), (480, 320))
"""Of the photographs, in pixels."""


def measure(count: int = 320, rounds: int = 5) -> Iterator[Row]:
    """Compare the streaming pass with its bound for each engine, and each engine with torch."""
    size, engines = PRETRAINED["lite0"].size, [e for e in ENGINES if all(map(available, ENGINES[e]))]
    extractors: dict[str, Extractor] = {engine: make_extractor(engine, size) for engine in engines}
    for engine in set(engines) - {"onnxruntime"}:
        extractors[f"{engine}, bfloat16"] = make_extractor(engine, size, bf16=True)
    with tempfile.TemporaryDirectory() as folder:
        files = save_photos(Path(folder) / "class", count)
        batch = torch.from_numpy(np.stack([decode(file, size, bicubic=True) for file in files[:CHUNK]]))
        batch = batch.permute(0, 3, 1, 2)
        works = {"decode": lambda: seconds(partial(decode_all, files, size)) / count}
        for name, extractor in extractors.items():
            works[f"{name} alone"] = lambda e=extractor: seconds(lambda: e.rows(batch)) / len(batch)  # type: ignore[misc]
            works[f"{name} from files"] = lambda e=extractor: seconds(partial(stream, files, size, e)) / count  # type: ignore[misc]
        times = {name: median(took) for name, took in interleave(works, rounds).items()}
    exact = extractors["torch"].unrounded(batch)
    for name, extractor in extractors.items():
        network, streamed = times[f"{name} alone"], times[f"{name} from files"]
        bound = times["decode"] + network
        away = (extractor.unrounded(batch) - exact).norm(dim=1) / exact.norm(dim=1)
        differ = f"features differ by {float(away.max()):.0e}"
        yield Row(
            what=f"features of JPEGs, lite0, {name}",
            ours=round(1 / streamed, 1),
            baseline=round(1 / bound, 1),
            unit="images/s",
            ratio=round(bound / streamed, 3),
            versus=f"1 / (1 / {1 / times['decode']:.0f} decoded + 1 / {1 / network:.0f} by the network), {differ}",
            goal=0.9,
        )


def make_extractor(engine: Engine, size: int, bf16: bool = False) -> Extractor:
    net = Architecture("lite0", (3, size, size), weights="pretrained", bf16=bf16)()
    return Extractor(net, Augment((0.5,), (0.5,)), Runtime(), engine)


def save_photos(folder: Path, count: int, seed: int = 0) -> list[str]:
    """Save parts of two real photographs as JPEG files, enlarged to the sizes of ordinary small photos."""
    folder.mkdir(parents=True)
    draws, files = np.random.default_rng(seed), []
    pictures = [Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    for number in range(count):
        picture, size = pictures[number % 2], SIZES[number % len(SIZES)]
        width = int(draws.integers(300, 600))
        left, top = int(draws.integers(640 - width)), int(draws.integers(427 - width * 2 // 3))
        files.append(str(folder / f"{number:04d}.jpg"))
        picture.crop((left, top, left + width, top + width * 2 // 3)).resize(size).save(files[-1], quality=90)
    return files


def decode_all(files: list[str], size: int) -> None:
    with decoder_pool() as pool:
        for _ in pool.map(lambda file: decode(file, size, bicubic=True), files):
            pass


def stream(files: list[str], size: int, extractor: Extractor) -> None:
    """Read a folder as `equipoise learn` does."""
    read_images(FolderScan(Path(files[0]).parent.parent, {"class": list(files)}), size, extractor=extractor)


if __name__ == "__main__":
    for row in measure():
        print(row, flush=True)
