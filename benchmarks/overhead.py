"""How much of a step is not training, in the paper's CIFAR recipe: measured with few epochs, extrapolated to 250.

    python benchmarks/overhead.py [EPOCHS]

Two steps of 20 classes, 500 random images each: what the pixels show does not change how long they take.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from equipoise.data.dataset import Dataset
from equipoise.data.images import Images
from equipoise.data.sources.cifar100 import AUGMENT
from equipoise.study.experiment import execute
from equipoise.engine.progress import ProgressListener
from equipoise.engine.recipes import resolve

PAPER = 250


def images(each: int) -> Images:
    labels = torch.arange(100).repeat_interleave(each)
    return Images.of(torch.randint(256, (len(labels), 3, 32, 32), dtype=torch.uint8), labels)


def main() -> None:
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    torch.manual_seed(0)
    data = Dataset("cifar100", images(500), images(100), tuple(map(str, range(100))), AUGMENT)
    overrides: dict[str, dict[str, Any]] = {
        "train": {"epochs": epochs, "milestones": []},
        "stream": {"classes": 40, "steps": 2},
    }
    settings = resolve("cifar100", "wa", "cifar100-paper", 0, overrides)
    with tempfile.TemporaryDirectory() as folder:
        rows = execute(settings, Path(folder) / "run", lambda: data, ProgressListener()).rows
    for row in rows:
        parts = row["seconds_by_part"]
        epoch = (parts["train"] + parts["teacher"]) / epochs
        once = parts["herding"] + parts["evaluation"] + parts["other"]
        beside = once + PAPER * parts["checkpoint"] / epochs
        figures = {
            "step": row["step"],
            "epoch_s": round(epoch, 2),
            **{f"{part}_s": round(parts[part], 2) for part in ("herding", "evaluation", "other")},
            "checkpoint_s_an_epoch": round(parts["checkpoint"] / epochs, 4),
            f"share_of_{PAPER}_epochs_percent": round(100 * beside / (beside + PAPER * epoch), 2),
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
