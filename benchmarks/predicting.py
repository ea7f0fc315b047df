"""`equipoise predict` against decoding and forward passes alone, on 5,000 small JPEGs; and a cold start."""

from __future__ import annotations

import json
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
from turns import faster, in_turns, seconds

from equipoise.app.classifier import IncrementalClassifier
from equipoise.app.model import Model
from equipoise.app.model_dir import ModelDir
from equipoise.app.predict import BATCH, predict, sources
from equipoise.data.images import decode, decoders

COUNT, ROUNDS = 5000, 5


def measure() -> Iterator[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = photographs(root / "pictures")
        teach(root / "model", files[:40])
        model, resident = ModelDir(root / "model").load(), list[float]()

        def ours() -> float:
            took = seconds(lambda: list(predict(model, sources(files))))
            resident.append(round(memory()))
            return took

        times = in_turns({"ours": ours, "alone": lambda: seconds(lambda: alone(model, files))}, ROUNDS)
        yield {
            "what": f"predict {COUNT:,} JPEGs",
            "ours": round(COUNT / median(times["ours"])),
            "theirs": round(COUNT / median(times["alone"])),
            "unit": "images/s",
            "ratio": faster(times, "ours", "alone"),
            "than": "decoding, then a bare forward pass",
            "goal": None,
            "resident_mb": resident,
        }
        command = [sys.executable, "-m", "equipoise", "predict", str(root / "model"), files[0]]
        bare = [sys.executable, "-c", "import torch"]
        works = {
            "ours": lambda: seconds(lambda: subprocess.run(command, check=True, capture_output=True)),
            "torch": lambda: seconds(lambda: subprocess.run(bare, check=True)),
        }
        times = in_turns(works, ROUNDS)
        yield {
            "what": "a first prediction, from a cold start",
            "ours": round(median(times["ours"]), 2),
            "theirs": round(median(times["torch"]), 2),
            "unit": "s",
            "ratio": faster(times, "ours", "torch"),
            "than": "import torch",
            "goal": None,
        }


def photographs(folder: Path) -> list[str]:
    """Small JPEGs cut out of a real photograph."""
    folder.mkdir()
    picture, draws = Image.fromarray(load_sample_image("china.jpg")), np.random.default_rng(0)
    files = []
    for number in range(COUNT):
        left, top = int(draws.integers(picture.width - 96)), int(draws.integers(picture.height - 72))
        files.append(str(folder / f"{number:04d}.jpg"))
        picture.crop((left, top, left + 96, top + 72)).save(files[-1], quality=85)
    return files


def teach(place: Path, files: list[str]) -> None:
    IncrementalClassifier(epochs=1, image_size=32).fit(files, [n % 4 for n in range(len(files))]).save(place)


def alone(model: Model, files: list[str]) -> None:
    """All files decoded by as many threads, then all batches through the network: nothing else."""
    with decoders() as pool:
        pixels = torch.from_numpy(np.stack(list(pool.map(lambda file: decode(file, 32), files)))).permute(0, 3, 1, 2)
    model.method.eval()
    with torch.no_grad():
        for batch in pixels.split(BATCH):
            model.method.predict(model.augment.normalise(batch))


def memory() -> float:
    """Resident megabytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 / 1024


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row), flush=True)
