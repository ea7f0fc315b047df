"""Compare an epoch of training with a plain PyTorch loop, as most research code has it.

The plain loop changes each image as a PIL picture (crop, flip), makes it a float tensor in DataLoader workers, and
trains the same network with the same loss, batches and optimizer.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator

import numpy as np
import torch
from PIL import Image, ImageOps
from timing import Row, interleave, seconds, speedup
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from training_step import CLASSES, SHAPE, prepare

from equipoise.data.images import Images
from equipoise.learn.backbones import Architecture
from equipoise.learn.schedule import Schedule

MEAN, STD, PAD = 0.5, 0.25, 4


class PictureDataset(Dataset[tuple[Tensor, int]]):
    """Pictures that are augmented one by one."""

    def __init__(self, pixels: np.ndarray, labels: list[int]) -> None:
        self.pixels, self.labels = pixels, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = ImageOps.expand(Image.fromarray(self.pixels[index]), PAD)
        left, top, flip = torch.randint(2 * PAD + 1, (3,)).tolist()
        picture = picture.crop((left, top, left + SHAPE[2], top + SHAPE[1]))
        if flip > PAD:
            picture = ImageOps.mirror(picture)
        values = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float().div(255)
        return (values - MEAN) / STD, self.labels[index]


def plain_loop(images: Images, schedule: Schedule, workers: int) -> Callable[[], None]:
    """Return a function that trains one epoch."""
    torch.manual_seed(0)
    backbone = Architecture("resnet32", SHAPE)()
    net = nn.Sequential(backbone, nn.Linear(backbone.width, 2 * CLASSES))
    optimizer = torch.optim.SGD(net.parameters(), schedule.lr, momentum=0.9, weight_decay=schedule.weight_decay)
    pixels = images.read().permute(0, 2, 3, 1).numpy()
    loader = DataLoader(PictureDataset(pixels, images.labels.tolist()), schedule.batch_size, True, num_workers=workers)

    def epoch() -> None:
        net.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()

    return epoch


def measure(count: int = 1920, rounds: int = 3) -> Iterator[Row]:
    """Compare two batch sizes, with as many workers as cores, or none if that is faster."""
    pixels = torch.randint(256, (count, *SHAPE), dtype=torch.uint8)
    images = Images.of(pixels, torch.randint(2 * CLASSES, (count,)))
    for batch in (32, 128):
        schedule = Schedule(epochs=1, batch_size=batch, lr=0.01, lr_schedule="constant", weight_decay=1e-4)
        fit = prepare("replay", "resnet32", images, schedule)
        works = {"ours": lambda fit=fit: seconds(lambda: fit.train(images))}
        for workers in (0, os.cpu_count() or 1):
            epoch = plain_loop(images, schedule, workers)
            works[f"{workers} workers"] = lambda epoch=epoch: seconds(epoch)
        times = interleave(works, rounds)
        best = min(sorted(works.keys() - {"ours"}), key=lambda name: statistics.median(times[name]))
        yield Row(
            what=f"epoch of resnet32, batch {batch}",
            ours=round(count / statistics.median(times["ours"])),
            baseline=round(count / statistics.median(times[best])),
            unit="images/s",
            ratio=speedup(times, "ours", best),
            versus=f"a plain loop, PIL pictures, {best}",
            goal=1.0,
        )


if __name__ == "__main__":
    for row in measure():
        print(row, flush=True)
