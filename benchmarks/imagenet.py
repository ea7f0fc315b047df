"""Measure decoding, memory use, three steps and the index with as many classes as ImageNet has.

    python benchmarks/imagenet.py DIR

Create a tree in DIR (1,000 classes of 20 JPEGs, 500 × 375: 1.5 GB) unless it exists, print a table and write
DIR/imagenet.json. What is compared is timed in alternation, so that the machine's own speed cancels out. Each part runs
in its own process, which gives its own peak memory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from cyclopts import App
from PIL import Image, ImageDraw
from timing import interleave, peak_mb, seconds, speedup

import equipoise as eq
from equipoise.data.decoding import decode
from equipoise.data.images import FileStore
from equipoise.data.index import Index, list_images
from equipoise.data.sources.folder import class_folders
from equipoise.data.sources.imagenet import MARGIN

WIDTH, HEIGHT = 500, 375
NAMES = 1_281_000
ROUNDS = 5
app = App(help="Measure decoding, memory use and the index at ImageNet's size.")


@app.default
def main(directory: Path, *, classes: int = 1000, images: int = 20, sample: int = 600, threads: int = 2) -> None:
    """Run all parts; with fewer classes than 1,000, the three steps are left out."""
    tree = make_tree(directory / f"tree-{classes}x{images}", classes, images)
    found: dict[str, Any] = {"tree": f"{classes} classes of {images} images", "load": os.getloadavg()[0]}
    found["index"] = part("names")
    print(
        "index of {names:,} names: {seconds:.1f} s, peak {peak:.0f} MB ({before:.0f} before)".format(**found["index"]),
    )
    print("  from the cache {cached:.2f} s, fingerprint {fingerprint:.2f} s".format(**found["index"]))
    found["decoding"] = decoding(tree, sample)
    total = classes * images
    found["memory"] = [part("stream", tree, count) for count in (total // 4, total)]
    for row in found["memory"]:
        print("{images:,} images through the store: peak {peak:.0f} MB, {rate:,.0f} images/s".format(**row))
    if classes == 1000:
        found["steps"] = part("steps", tree, directory / "run", threads)
        print("three steps: {seconds:.0f} s, peak {peak:.0f} MB, accuracy {accuracy}".format(**found["steps"]))
    (directory / "imagenet.json").write_text(json.dumps(found, indent=2) + "\n")


def part(*command: object) -> dict[str, Any]:
    """Run one of the commands below in its own process."""
    done = subprocess.run([sys.executable, __file__, *map(str, command)], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# ---- the tree


def make_tree(root: Path, classes: int, images: int) -> Path:
    """Create the tree, unless it is complete."""
    done = root / "done"
    if done.exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    print(f"creating {classes * images:,} images in {root}")
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(partial(make_class, root, images), range(classes), chunksize=8))
    done.touch()
    return root


def make_class(root: Path, images: int, number: int) -> None:
    """Save the training images of a class; five of them under other names are for validation."""
    synset, draws = f"n{number:08d}", np.random.default_rng(number)
    train, val = root / "train" / synset, root / "val" / synset
    train.mkdir(parents=True)
    val.mkdir(parents=True)
    for image in range(images):
        file = train / f"{synset}_{image}.JPEG"
        random_image(draws).save(file, quality=90)
        if image < 5:
            os.link(file, val / f"ILSVRC2012_val_{number * 5 + image:08d}.JPEG")


def random_image(draws: np.random.Generator) -> Image.Image:
    """Return smooth colours, some shapes and noise: about 75 kB, as a photograph of that size and quality."""
    field = Image.fromarray(draws.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    canvas = field.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(canvas)
    for x, y, w, h, *colour in draws.integers(0, 256, (12, 7)).tolist():
        box = (x * 2 - w / 2, y * 1.5 - h / 2, x * 2 + w / 2, y * 1.5 + h / 2)
        (pen.ellipse if w % 2 else pen.rectangle)(box, fill=tuple(colour))
    noise = draws.normal(0, 10, (HEIGHT, WIDTH, 1))
    return Image.fromarray((np.asarray(canvas) + noise).clip(0, 255).astype(np.uint8))


# ---- decoding


def decoding(tree: Path, sample: int) -> list[dict[str, Any]]:
    """Measure images/s of a plain loop with Pillow, of our decoder in one thread, and of the store."""
    index = index_of(tree)
    rows = torch.arange(0, len(index), max(1, len(index) // sample))[:sample]
    crops = torch.rand((len(rows), 4), generator=torch.Generator().manual_seed(0))
    print(f"images/s: a plain loop, our decoder in one thread, the store with {os.cpu_count()}")
    table = [
        {"size": size, "kind": kind} | compare(FileStore(index, size, MARGIN), rows, draws)
        for size in (64, 224)
        for kind, draws in (("evaluation", None), ("random crop", crops))
    ]
    for row in table:
        line = "  {size:3} {kind:11} {plain:6.0f} {ours:6.0f} (× {ours ratio:.2f}) {store:6.0f} (× {store ratio:.2f})"
        print(line.format(**row))
    return table


def compare(store: FileStore, rows: torch.Tensor, crops: torch.Tensor | None) -> dict[str, float]:
    """Time three ways to decode the same images."""
    files, size = store.index.paths(rows.numpy()), store.size
    draws: list[Any] = [None] * len(files) if crops is None else crops.tolist()
    batches = [(rows[at], None if crops is None else crops[at]) for at in torch.arange(len(rows)).split(128)]
    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: [plain(file, size, draw) for file, draw in zip(files, draws, strict=True)],
        "ours": lambda: [decode(file, size, draw, MARGIN) for file, draw in zip(files, draws, strict=True)],
        "store": lambda: [store.read(*batch) for batch in batches],
    }
    times = interleave({name: partial(seconds, way) for name, way in ways.items()}, ROUNDS)
    rates = {name: len(files) / median(times[name]) for name in ways}
    return rates | {f"{name} ratio": speedup(times, name, "plain") for name in ("ours", "store")}


def index_of(tree: Path) -> Index:
    root = tree / "train"
    return Index.of_tree(root, list_images(root, class_folders(root)))


def plain(file: str, size: int, draw: list[float] | None) -> np.ndarray:
    """Decode in the obvious way: open, decode all of it, crop, resize."""
    with Image.open(file) as opened:
        whole = opened.convert("RGB")
    width, height = whole.size
    if draw is None:
        w = h = round(min(whole.size) / MARGIN)
        left, top = (width - w) // 2, (height - h) // 2
    else:
        area, aspect = width * height * (0.08 + 0.92 * draw[0]), (3 / 4) ** (1 - 2 * draw[1])
        w, h = min(width, round((area * aspect) ** 0.5)), min(height, round((area / aspect) ** 0.5))
        left, top = round((width - w) * draw[2]), round((height - h) * draw[3])
    return np.asarray(whole.crop((left, top, left + w, top + h)).resize((size, size), Image.Resampling.BILINEAR))


# ---- parts that run in their own process


@app.command
def stream(tree: Path, count: int) -> None:
    """Read ``count`` images through the store, in batches."""
    store = FileStore(index_of(tree), 64)
    took = seconds(lambda: [int(store.read(rows).sum()) for rows in torch.arange(count).split(256)])
    print(json.dumps({"images": count, "peak": peak_mb(), "rate": count / took}))


@app.command
def steps(tree: Path, out: Path, threads: int) -> None:
    """Run three steps of the ImageNet protocol with a small network."""
    shutil.rmtree(out, ignore_errors=True)
    settings: dict[str, dict[str, Any]] = {
        "stream": {"steps": "400,300,300"},
        "memory": {"size": 2000},
        "data": {"size": 64},
        "net": {"backbone": "small"},
        "train": {"epochs": 1, "milestones": []},
        "runtime": {"threads": threads},
    }
    started = time.perf_counter()
    result = eq.run("imagenet1000", method="wa", out=out, data_root=tree, overrides=settings)
    accuracy = [step.accuracy for step in result.steps]
    print(json.dumps({"seconds": time.perf_counter() - started, "peak": peak_mb(), "accuracy": accuracy}))


@app.command
def names() -> None:
    """Index 1.28 million names: the 1,000 folders are real, the files in them are simulated."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, EQUIPOISE_CACHE=f"{folder}/cache"):
        root, synsets = Path(folder) / "train", [f"n{number:08d}" for number in range(1000)]
        for synset in synsets:
            (root / synset).mkdir(parents=True)
            os.utime(root / synset, (10**9, 10**9))
        before = peak_mb()
        with patch("os.scandir", simulated):
            took = seconds(lambda: Index.of_tree(root, list_images(root, synsets)))
        cached = seconds(lambda: Index.of_tree(root, list_images(root, synsets)))
        store = FileStore(Index.of_tree(root, list_images(root, synsets)), 224)
        fingerprint = seconds(store.fingerprint)
        found = {"names": len(store), "seconds": took, "cached": cached, "fingerprint": fingerprint}
        print(json.dumps(found | {"before": before, "peak": peak_mb()}))


@contextmanager
def simulated(folder: Path) -> Iterator[Iterator[SimpleNamespace]]:
    """Return what os.scandir would, in no particular order."""
    numbers = (number * 7919 % 100_003 for number in range(NAMES // 1000))
    yield (SimpleNamespace(name=f"{folder.name}_{number}.JPEG", is_file=lambda: True) for number in numbers)


if __name__ == "__main__":
    app()
