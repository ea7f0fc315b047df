"""Compare building the memory of exemplars with computing the features that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import torch
from timing import Row, interleave, seconds, speedup
from training_step import CLASSES, SHAPE, prepare

from equipoise.data.images import Images
from equipoise.data.memory import Memory
from equipoise.learn.schedule import Schedule


def measure(count: int = 2000, rounds: int = 5) -> Iterator[Row]:
    """Select 50 exemplars for each of 20 classes of 100 images, by herding."""
    images = Images.of(torch.randint(256, (count, *SHAPE), dtype=torch.uint8), torch.arange(count) % CLASSES)
    fit = prepare("replay", "resnet32", images, Schedule(epochs=1))
    works = {
        "ours": lambda: seconds(lambda: Memory(50, per="class").update(images, CLASSES, fit.features, (0,))),
        "features": lambda: seconds(lambda: fit.features(images)),
    }
    times = interleave(works, rounds)
    yield Row(
        what=f"memory of 50 × {CLASSES} of {count:,} images",
        ours=round(count / median(times["ours"])),
        baseline=round(count / median(times["features"])),
        unit="images/s",
        ratio=speedup(times, "ours", "features"),
        versus="one forward pass over all images, resnet32",
        goal=0.95,
    )


if __name__ == "__main__":
    for row in measure():
        print(row, flush=True)
