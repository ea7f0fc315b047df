"""An epoch of ResNet-32 with replay, ours against Avalanche's: the same network, images, batches and threads, in turns.

Avalanche lives in an environment of its own, which is made here: it wants packages that we do not.
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
from training_step import prepared
from turns import faster, in_turns, seconds

from equipoise.data.images import Images
from equipoise.learn.schedule import Schedule

HERE = Path(__file__).parent
VERSION = "avalanche-lib==0.6.0"
NEW, KEPT, ROUNDS, CLASSES = 1000, 200, 5, 20
"""A tenth of the second of five steps on CIFAR-100."""


def environment() -> Path:
    """The interpreter of Avalanche's environment, made at the first call."""
    place = Path(os.environ.get("EQUIPOISE_BENCH_VENV", HERE.parent / ".venv-avalanche"))
    python, stamp = place / "bin" / "python", place / ".done"
    if not stamp.exists():
        print(f"Setting up {place.name} with {VERSION} (once, some minutes)…", file=sys.stderr, flush=True)
        venv.create(place, with_pip=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
        subprocess.run([*pip, "-c", str(HERE.parent / "constraints.txt"), VERSION], check=True)
        stamp.touch()
    return python


def compare(batch: int, folder: Path) -> dict[str, object]:
    draws = np.random.default_rng(0)
    pixels = draws.integers(0, 256, (2 * NEW, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(2 * NEW) * 2 * CLASSES // (2 * NEW)
    np.savez(folder / "data.npz", pixels=pixels, labels=labels)
    numbers = map(str, (batch, KEPT, torch.get_num_threads(), ROUNDS + 1))
    script = [str(environment()), "-W", "ignore", str(HERE / "replay_avalanche.py")]
    side = [*script, str(folder / "data.npz"), *numbers]
    with subprocess.Popen(side, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        said = iter(other.stdout.readline, "")
        if not any(line.strip() == "ready" for line in said):
            raise SystemExit("Avalanche did not start: see its message above")
        track: list[int] = []

        def theirs() -> float:
            print("go", file=other.stdin, flush=True)
            took, images = json.loads(next(said))
            track.append(images)
            return float(took / images)

        kept = torch.randperm(NEW)[:KEPT]
        rows = torch.cat([torch.arange(NEW, 2 * NEW), kept])
        images = Images.of(torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(labels)).select(rows)
        schedule = Schedule(epochs=1, batch_size=batch, lr=0.01, shape="constant")
        _, fit = prepared("ce", "resnet32", images, schedule)
        times = in_turns({"ours": lambda: seconds(lambda: fit(images)) / len(images), "avalanche": theirs}, ROUNDS)
    return {
        "what": f"epoch of replay, resnet32, batch {batch}",
        "ours": round(1 / statistics.median(times["ours"])),
        "theirs": round(1 / statistics.median(times["avalanche"])),
        "unit": "images/s",
        "ratio": faster(times, "ours", "avalanche"),
        "than": VERSION,
        "goal": 1.0,
        "images": {"ours": len(images), "theirs": track[0]},
    }


def measure() -> Iterator[dict[str, object]]:
    for batch in (32, 128):
        with tempfile.TemporaryDirectory() as folder:
            yield compare(batch, Path(folder))


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row), flush=True)
