"""`equipoise predict` against decoding and forward passes alone, on 5,000 small JPEGs; and a cold start.

    python benchmarks/predicting.py

Ratios of one run; the machine's own speed cancels out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from equipoise.app.classifier import IncrementalClassifier
from equipoise.app.model import Model
from equipoise.app.modeldir import ModelDir
from equipoise.app.predict import BATCH, predict, sources
from equipoise.data.images import decode, decoders

COUNT, ROUNDS = 5000, 5


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = photographs(root / "pictures")
        teach(root / "model", files[:40])
        model = ModelDir(root / "model").load()
        list(predict(model, sources(files[:200])))  # warm up
        ours, bare, resident = [], [], [memory()]
        for _ in range(ROUNDS):
            bare.append(seconds(lambda: alone(model, files)))
            ours.append(seconds(lambda: list(predict(model, sources(files)))))
            resident.append(memory())
        rates = [COUNT / median(times) for times in (ours, bare)]
        ratio = median(b / o for b, o in zip(bare, ours, strict=True))
        print(f"predict {rates[0]:,.0f} images/s, decoding then forward alone {rates[1]:,.0f}: ratio {ratio:.2f}")
        print("resident memory after each 5,000, MB:", ", ".join(f"{mb:.0f}" for mb in resident))
        command = [sys.executable, "-m", "equipoise", "predict", str(root / "model"), files[0]]
        starts = [seconds(lambda: subprocess.run(command, check=True, capture_output=True)) for _ in range(ROUNDS)]
        bare_start = [
            seconds(lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True)) for _ in range(ROUNDS)
        ]
        print(f"a first answer takes {median(starts):.2f} s, `import torch` alone {median(bare_start):.2f} s")


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


def seconds(work: object) -> float:
    began = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - began


def memory() -> float:
    """Resident megabytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 / 1024


if __name__ == "__main__":
    main()
