"""Avalanche's replay strategy with our network and images, in Avalanche's own environment (see replay.py).

Wait for a line on standard input before each epoch; print the epoch's seconds and number of images after it.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

warnings.filterwarnings("ignore")
library = torch.library.Library("torchvision", "DEF")  # torchvision next to a CPU torch lacks its own operators
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from avalanche.benchmarks.scenarios.deprecated.generators import nc_benchmark  # noqa: E402
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin, SupervisedPlugin  # noqa: E402
from avalanche.training.supervised import Naive  # noqa: E402
from PIL import Image  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402
from torchvision import transforms  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
from equipoise.learn.backbones import Architecture  # noqa: E402


class ImageDataset(Dataset):
    """Return PIL images and classes, as torchvision's CIFAR does."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray, transform: object) -> None:
        self.pixels, self.targets, self.transform = pixels, labels.tolist(), transform

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[object, int]:
        image = Image.fromarray(self.pixels[index])
        return self.transform(image), self.targets[index]


class EpochOnCommand(SupervisedPlugin):
    """Start each epoch when a line arrives, and time nothing but the epoch."""

    def before_training_epoch(self, strategy: object, **_: object) -> None:
        self.images = 0
        if strategy.experience.current_experience:
            sys.stdin.readline()
        self.started = time.perf_counter()

    def after_training_iteration(self, strategy: object, **_: object) -> None:
        self.images += len(strategy.mb_x)

    def after_training_epoch(self, strategy: object, **_: object) -> None:
        if strategy.experience.current_experience:
            print(json.dumps([time.perf_counter() - self.started, self.images]), flush=True)


class Classifier(nn.Module):
    """Our ResNet-32 with a linear head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = Architecture("resnet32", (3, 32, 32))()
        self.head = nn.Linear(self.backbone.width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def main(data: str, batch: int, memory: int, threads: int, epochs: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    arrays = np.load(data)
    pixels, labels = arrays["pixels"], arrays["labels"]  # the images of two steps, N × 32 × 32 × 3
    augment = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.5,) * 3, (0.25,) * 3),
        ]
    )
    dataset = ImageDataset(pixels, labels, augment)
    stream = nc_benchmark(dataset, dataset, 2, False, fixed_class_order=sorted(set(labels.tolist()))).train_stream
    net = Classifier(int(labels.max()) + 1)
    new = len(labels) // 2
    replayed = round(batch * memory / (memory + new))  # per batch, so that batches and epochs are as large as ours
    strategy = Naive(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=1e-4),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=batch - replayed,
        train_epochs=1,
        plugins=[ReplayPlugin(memory, batch_size=batch - replayed, batch_size_mem=replayed), EpochOnCommand()],
        evaluator=EvaluationPlugin(),
    )
    strategy.train(stream[0], num_workers=0)
    print("ready", flush=True)
    strategy.train_epochs = epochs
    strategy.train(stream[1], num_workers=0)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
