"""Measure how much of a step is not training in the paper's CIFAR-100 recipe, and extrapolate to its 250 epochs.

    python benchmarks/overhead.py [EPOCHS]

Two steps of 20 classes with 500 random images each: the content of images does not change how long they take.
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
from equipoise.engine.recipes import resolve
from equipoise.engine.results import StepResult
from equipoise.study.console import RunListener
from equipoise.study.experiment import execute

EPOCHS = 250
"""Epochs per step in the paper."""


def random_images(per_class: int) -> Images:
    labels = torch.arange(100).repeat_interleave(per_class)
    return Images.of(torch.randint(256, (len(labels), 3, 32, 32), dtype=torch.uint8), labels)


def measure(epochs: int, per_class: int = 500, **overrides: dict[str, Any]) -> list[dict[str, float]]:
    """Return the figures of two steps."""
    torch.manual_seed(0)
    classes = tuple(map(str, range(100)))
    data = Dataset("cifar100", random_images(per_class), random_images(per_class // 5), classes, AUGMENT)
    sections: dict[str, dict[str, Any]] = {
        "train": {"epochs": epochs, "milestones": []},
        "stream": {"classes": 40, "steps": 2},
        **overrides,
    }
    settings = resolve("cifar100", "wa", "cifar100-paper", 0, sections)
    with tempfile.TemporaryDirectory() as folder:
        result = execute(settings, Path(folder) / "run", lambda: data, RunListener())
    return [figures(step, epochs) for step in result.steps]


def figures(step: StepResult, epochs: int) -> dict[str, float]:
    """Return the seconds of each part, and what all but training would take of ``EPOCHS`` epochs."""
    parts = step.seconds_by_part
    epoch = (parts["train"] + parts["teacher"]) / epochs
    once = parts["herding"] + parts["evaluation"] + parts["other"]
    overhead = once + EPOCHS * parts["checkpoint"] / epochs
    return {
        "step": step.step,
        "epoch_s": round(epoch, 2),
        **{f"{part}_s": round(parts[part], 2) for part in ("herding", "evaluation", "other")},
        "checkpoint_s_per_epoch": round(parts["checkpoint"] / epochs, 4),
        f"overhead_of_{EPOCHS}_epochs_percent": round(100 * overhead / (overhead + EPOCHS * epoch), 2),
    }


if __name__ == "__main__":
    for line in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        print(json.dumps(line))
