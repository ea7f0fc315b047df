"""A tree as large in classes as ImageNet: decoding, memory, three steps of the protocol, and an index of 1.28 M names.

    python benchmarks/imagenet.py DIR

makes the tree in DIR (1,000 classes of 20 JPEGs, 500 × 375: 1.5 GB) unless it is there, prints a table and writes
DIR/imagenet.json. Ratios are of one run, in turns; the machine's own speed cancels out. Peak memory is each part's own:
it runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import re
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

import equipoise as eq
from equipoise.data.images import FileStore, decode
from equipoise.data.index import Index, list_images
from equipoise.data.sources.folder import class_folders
from equipoise.data.sources.imagenet import MARGIN

WIDTH, HEIGHT = 500, 375
NAMES = 1_281_000
ROUNDS = 5
app = App(help="Decoding, memory and the index at ImageNet's size.")


@app.default
def main(directory: Path, *, classes: int = 1000, images: int = 20, sample: int = 600, threads: int = 2) -> None:
    """All parts. With fewer classes the three steps are left out: the protocol is of 1,000."""
    tree = make_tree(directory / f"tree-{classes}x{images}", classes, images)
    found: dict[str, Any] = {"tree": f"{classes} classes of {images} images", "load": os.getloadavg()[0]}
    found["index"] = part("names")
    print(
        "index of {names:,} names: {seconds:.1f} s, peak {peak:.0f} MB ({before:.0f} before)".format(**found["index"])
    )
    print("  from the cache {cached:.2f} s, fingerprint {fingerprint:.2f} s".format(**found["index"]))
    found["decoding"] = decoding(tree, sample)
    total = classes * images
    found["memory"] = [part("stream", tree, count) for count in (total // 4, total)]
    for row in found["memory"]:
        print("{images:,} images through the store: peak {peak:.0f} MB, {rate:,.0f} images/s".format(**row))
    if classes == 1000:
        found["steps"] = part("steps", tree, directory / "run", threads)
        print("three steps: {seconds:.0f} s, peak {peak:.0f} MB, top-1 {top1}".format(**found["steps"]))
    (directory / "imagenet.json").write_text(json.dumps(found, indent=2) + "\n")


def part(*command: object) -> dict[str, Any]:
    """One of the commands below, in a process of its own."""
    done = subprocess.run([sys.executable, __file__, *map(str, command)], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def peak() -> float:
    """The most memory this process has had resident, MB; what getrusage tells counts the parent's too."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# ---- the tree


def make_tree(root: Path, classes: int, images: int) -> Path:
    done = root / "done"
    if done.exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    print(f"making {classes * images:,} pictures in {root}")
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(partial(make_class, root, images), range(classes), chunksize=8))
    done.touch()
    return root


def make_class(root: Path, images: int, number: int) -> None:
    """Training pictures of a class; for validation, five of them under other names."""
    synset, draws = f"n{number:08d}", np.random.default_rng(number)
    train, val = root / "train" / synset, root / "val" / synset
    train.mkdir(parents=True)
    val.mkdir(parents=True)
    for image in range(images):
        file = train / f"{synset}_{image}.JPEG"
        picture(draws).save(file, quality=90)
        if image < 5:
            os.link(file, val / f"ILSVRC2012_val_{number * 5 + image:08d}.JPEG")


def picture(draws: np.random.Generator) -> Image.Image:
    """Smooth colours, some shapes, and noise: as heavy as a photograph of that size and quality, some 75 kB."""
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
    """Images/s of a plain loop with Pillow, of ours in one thread, and of the store."""
    index = index_of(tree)
    rows = torch.arange(0, len(index), max(1, len(index) // sample))[:sample]
    crops = torch.rand((len(rows), 4), generator=torch.Generator().manual_seed(0))
    print(f"images/s: a plain loop, ours in one thread, and the store with {os.cpu_count()}")
    table = [
        {"size": size, "kind": kind} | race(FileStore(index, size, MARGIN), rows, draws)
        for size in (64, 224)
        for kind, draws in (("evaluation", None), ("random crop", crops))
    ]
    for row in table:
        told = "  {size:3} {kind:11} {plain:6.0f} {ours:6.0f} (× {ours ratio:.2f}) {store:6.0f} (× {store ratio:.2f})"
        print(told.format(**row))
    return table


def race(store: FileStore, rows: torch.Tensor, crops: torch.Tensor | None) -> dict[str, float]:
    files, size = store.index.paths(rows.numpy()), store.size
    draws: list[Any] = [None] * len(files) if crops is None else crops.tolist()
    batches = [(rows[at], None if crops is None else crops[at]) for at in torch.arange(len(rows)).split(128)]
    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: [plain(file, size, draw) for file, draw in zip(files, draws, strict=True)],
        "ours": lambda: [decode(file, size, draw, MARGIN) for file, draw in zip(files, draws, strict=True)],
        "store": lambda: [store.read(*batch) for batch in batches],
    }
    times = [{name: seconds(way) for name, way in ways.items()} for _ in range(ROUNDS + 1)][1:]  # the first warms up
    rates = {name: len(files) / median(took[name] for took in times) for name in ways}
    return rates | {f"{name} ratio": median(t["plain"] / t[name] for t in times) for name in ("ours", "store")}


def index_of(tree: Path) -> Index:
    root = tree / "train"
    return Index.of_tree(root, list_images(root, class_folders(root)))


def plain(file: str, size: int, draw: list[float] | None) -> np.ndarray:
    """What one writes first: open, decode all of it, cut, resize."""
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


# ---- parts that run in a process of their own


@app.command
def stream(tree: Path, count: int) -> None:
    """Every one of ``count`` images through the store, in batches."""
    store = FileStore(index_of(tree), 64)
    took = seconds(lambda: [int(store.read(rows).sum()) for rows in torch.arange(count).split(256)])
    print(json.dumps({"images": count, "peak": peak(), "rate": count / took}))


@app.command
def steps(tree: Path, out: Path, threads: int) -> None:
    """Three steps of ImageNet's protocol with a small net."""
    shutil.rmtree(out, ignore_errors=True)
    settings: dict[str, dict[str, Any]] = {
        "stream": {"steps": "400,300,300"},
        "memory": {"size": 2000},
        "data": {"size": 64},
        "net": {"backbone": "small"},
        "train": {"epochs": 1, "milestones": []},
        "runtime": {"threads": threads},
    }
    began = time.perf_counter()
    result = eq.run("imagenet1000", method="wa", out=out, data_root=tree, overrides=settings)
    top1 = [row["top1"] for row in result.rows]
    print(json.dumps({"seconds": time.perf_counter() - began, "peak": peak(), "top1": top1}))


@app.command
def names() -> None:
    """An index of 1.28 million names that exist only in a simulated listing; the 1,000 folders are real."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, EQUIPOISE_CACHE=f"{folder}/cache"):
        root, synsets = Path(folder) / "train", [f"n{number:08d}" for number in range(1000)]
        for synset in synsets:
            (root / synset).mkdir(parents=True)
            os.utime(root / synset, (10**9, 10**9))
        before = peak()
        with patch("os.scandir", simulated):
            took = seconds(lambda: Index.of_tree(root, list_images(root, synsets)))
        cached = seconds(lambda: Index.of_tree(root, list_images(root, synsets)))
        store = FileStore(Index.of_tree(root, list_images(root, synsets)), 224)
        fingerprint = seconds(store.fingerprint)
        found = {"names": len(store), "seconds": took, "cached": cached, "fingerprint": fingerprint}
        print(json.dumps(found | {"before": before, "peak": peak()}))


@contextmanager
def simulated(folder: Path) -> Iterator[Iterator[SimpleNamespace]]:
    """What os.scandir would tell, in no order."""
    numbers = (number * 7919 % 100_003 for number in range(NAMES // 1000))
    yield (SimpleNamespace(name=f"{folder.name}_{number}.JPEG", is_file=lambda: True) for number in numbers)


if __name__ == "__main__":
    app()
