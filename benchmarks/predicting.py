"""Compare `equipoise predict` on 5,000 small JPEGs with decoding and forward passes alone; and measure a cold start."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from timing import Row, interleave, resident_mb, seconds, speedup

from equipoise.app.classifier import IncrementalClassifier
from equipoise.app.model import Model
from equipoise.app.model_dir import ModelDir
from equipoise.app.predict import BATCH, expand_paths, predict
from equipoise.data.decoding import decode
from equipoise.data.prefetch import decoder_pool


def measure(count: int = 5000, rounds: int = 5) -> Iterator[Row]:
    """Compare throughput, then the time to the first prediction."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = save_photos(root / "photos", count)
        train(root / "model", files[:40])
        yield throughput(ModelDir(root / "model").load(), files, rounds)
        yield cold_start(root / "model", files[0], rounds)


def throughput(model: Model, files: list[str], rounds: int) -> Row:
    resident: list[int] = []

    def ours() -> float:
        took = seconds(lambda: list(predict(model, expand_paths(files))))
        resident.append(round(resident_mb()))
        return took

    times = interleave({"ours": ours, "bare": lambda: seconds(lambda: bare(model, files))}, rounds)
    return Row(
        what=f"predict {len(files):,} JPEGs",
        ours=round(len(files) / median(times["ours"])),
        baseline=round(len(files) / median(times["bare"])),
        unit="images/s",
        ratio=speedup(times, "ours", "bare"),
        versus="decoding, then a bare forward pass",
        details={"resident_mb": resident},
    )


def cold_start(model: Path, file: str, rounds: int) -> Row:
    command = [sys.executable, "-m", "equipoise", "predict", str(model), file]
    only_torch = [sys.executable, "-c", "import torch"]
    works = {
        "ours": lambda: seconds(lambda: subprocess.run(command, check=True, capture_output=True)),
        "torch": lambda: seconds(lambda: subprocess.run(only_torch, check=True)),
    }
    times = interleave(works, rounds)
    return Row(
        what="first prediction from a cold start",
        ours=round(median(times["ours"]), 2),
        baseline=round(median(times["torch"]), 2),
        unit="s",
        ratio=speedup(times, "ours", "torch"),
        versus="import torch",
    )


def save_photos(folder: Path, count: int) -> list[str]:
    """Save small JPEGs, cropped from a real photograph."""
    folder.mkdir()
    picture, draws = Image.fromarray(load_sample_image("china.jpg")), np.random.default_rng(0)
    files = []
    for number in range(count):
        left, top = int(draws.integers(picture.width - 96)), int(draws.integers(picture.height - 72))
        files.append(str(folder / f"{number:04d}.jpg"))
        picture.crop((left, top, left + 96, top + 72)).save(files[-1], quality=85)
    return files


def train(place: Path, files: list[str]) -> None:
    """Save a model of four classes."""
    IncrementalClassifier(method="wa", backbone="resnet32", epochs=1, image_size=32).fit(
        files, [n % 4 for n in range(len(files))]
    ).save(place)


def bare(model: Model, files: list[str]) -> None:
    """Decode all files with as many threads, then pass all batches through the network."""
    with decoder_pool() as pool:
        pixels = torch.from_numpy(np.stack(list(pool.map(lambda file: decode(file, 32), files)))).permute(0, 3, 1, 2)
    model.method.eval()
    with torch.no_grad():
        for batch in pixels.split(BATCH):
            model.method.predict(model.augment.normalise(batch))


if __name__ == "__main__":
    for row in measure():
        print(row, flush=True)
