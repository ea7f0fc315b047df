"""Compare an epoch of ResNet-32 with replay with Avalanche's: same network, images, batches and threads.

Avalanche needs other packages than equipoise, so it gets its own environment, which is created here.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from timing import Row, interleave, seconds, speedup
from training_step import prepare

from equipoise.data.images import Images
from equipoise.learn.schedule import Schedule

HERE = Path(__file__).parent
VERSION = "avalanche-lib==0.6.0"
PACKAGES = (VERSION, "safetensors")
"""Our network is built there too, and its package needs safetensors."""
NEW, EXEMPLARS, ROUNDS, CLASSES = 1000, 200, 5, 20
"""A tenth of the second of five steps on CIFAR-100."""


def environment() -> Path:
    """Return the Python interpreter of Avalanche's environment, which is created by the first call."""
    place = Path(os.environ.get("EQUIPOISE_BENCH_VENV", HERE.parent / ".venv-avalanche"))
    python, ready = place / "bin" / "python", place / ".ready"
    if not ready.exists():
        print(f"Setting up {place.name} with {VERSION} (once, some minutes)…", file=sys.stderr, flush=True)
        venv.create(place, with_pip=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
        subprocess.run([*pip, "-c", str(HERE.parent / "constraints.txt"), *PACKAGES], check=True)
        ready.touch()
    return python


def compare(batch: int, folder: Path) -> Row:
    """Compare one batch size; Avalanche's process trains an epoch whenever it gets a line."""
    draws = np.random.default_rng(0)
    pixels = draws.integers(0, 256, (2 * NEW, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(2 * NEW) * 2 * CLASSES // (2 * NEW)
    np.savez(folder / "data.npz", pixels=pixels, labels=labels)
    numbers = map(str, (batch, EXEMPLARS, torch.get_num_threads(), ROUNDS + 1))
    script = [str(environment()), "-W", "ignore", str(HERE / "replay_avalanche.py")]
    command = [*script, str(folder / "data.npz"), *numbers]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        lines = iter(other.stdout.readline, "")
        if not any(line.strip() == "ready" for line in lines):
            raise SystemExit("Avalanche did not start: see its message above")
        image_counts: list[int] = []

        def avalanche() -> float:
            print("go", file=other.stdin, flush=True)
            took, images = json.loads(next(lines))
            image_counts.append(images)
            return float(took / images)

        exemplars = torch.randperm(NEW)[:EXEMPLARS]
        rows = torch.cat([torch.arange(NEW, 2 * NEW), exemplars])
        images = Images.of(torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(labels)).select(rows)
        fit = prepare("ce", "resnet32", images, Schedule(epochs=1, batch_size=batch, lr=0.01, lr_schedule="constant"))

        def ours() -> float:
            return seconds(lambda: fit.train(images)) / len(images)

        times = interleave({"ours": ours, "avalanche": avalanche}, ROUNDS)
    return Row(
        what=f"epoch of replay, resnet32, batch {batch}",
        ours=round(1 / statistics.median(times["ours"])),
        baseline=round(1 / statistics.median(times["avalanche"])),
        unit="images/s",
        ratio=speedup(times, "ours", "avalanche"),
        versus=VERSION,
        goal=1.0,
        details={"images": {"ours": len(images), "baseline": image_counts[0]}},
    )


def measure() -> Iterator[Row]:
    """Compare two batch sizes."""
    for batch in (32, 128):
        with tempfile.TemporaryDirectory() as folder:
            yield compare(batch, Path(folder))


if __name__ == "__main__":
    for row in measure():
        print(row, flush=True)
