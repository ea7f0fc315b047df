"""Measure how the cost of each part of a step grows with classes and images, for docs/scale.md.

    python benchmarks/scale.py

Print JSON. ResNet-18 gets images of 64×64 here, to suit two cores: only the ratios are meaningful.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from timing import fastest, peak_mb
from torch.nn import functional as F

from equipoise.core.directory import Directory
from equipoise.core.tensors import write_tensors
from equipoise.data.augment import Augment
from equipoise.data.dataset import Dataset
from equipoise.data.herding import herd
from equipoise.data.images import Images, TensorStore, join
from equipoise.data.stream import ClassStream
from equipoise.learn.align import align_head
from equipoise.learn.backbones import Architecture
from equipoise.learn.head import Head

BATCH, SIZE, WIDTH = 32, 64, 512


def network() -> dict[str, float]:
    """Time training and a mere forward pass (teacher, evaluation, herding) of one image."""
    net = Architecture("resnet18", (3, SIZE, SIZE))(True)
    x = torch.randn(BATCH, 3, SIZE, SIZE).contiguous(memory_format=torch.channels_last)

    def train() -> None:
        net.train()
        net(x).sum().backward()

    def forward() -> None:
        net.eval()
        with torch.no_grad():
            net(x)

    trained, forwarded = (1000 * fastest(work, 3) / BATCH for work in (train, forward))
    return {"train_ms": trained, "forward_ms": forwarded, "fraction": forwarded / trained}


def head(classes: int) -> dict[str, float]:
    """Time forward, backward and update of a linear head, and Weight Aligning."""
    layer = Head(WIDTH)
    layer.grow(classes)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9, fused=True)
    x, y = torch.randn(BATCH, WIDTH), torch.randint(classes, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(layer(x), y).backward()
        optimizer.step()

    return {
        "ms_per_image": 1000 * fastest(step) / BATCH,
        "mb": 3 * 4 * layer.weight.numel() / 2**20,
        "align_ms": 1000 * fastest(lambda: align_head(layer, classes // 2)),
    }


def herding(images: int, exemplars: int) -> float:
    """Return milliseconds per class."""
    features = torch.randn(images, WIDTH).relu()
    return 1000 * fastest(lambda: herd(features, exemplars), 3)


def checkpoint(classes: int) -> dict[str, float]:
    """Write network, head and their momenta, as after every epoch."""
    net, layer = Architecture("resnet18", (3, SIZE, SIZE))(True), Head(WIDTH)
    layer.grow(classes)
    state = {f"{part}.{name}": value.clone() for part in "wm" for name, value in net.state_dict().items()}
    state |= {f"{part}.head": layer.weight.detach().clone() for part in "wm"}
    with tempfile.TemporaryDirectory() as folder:
        directory, file = Directory(Path(folder)), "state.safetensors"
        seconds = fastest(lambda: write_tensors(directory, file, state), 3)
        return {"ms": 1000 * seconds, "mb": directory.size(file) / 2**20}


def bookkeeping(images: int, classes: int = 1000) -> dict[str, float]:
    """Time streams, steps and epochs: rows and labels only, no pixels."""
    before = peak_mb()
    store = TensorStore(torch.zeros(1, 1, 1, 1, dtype=torch.uint8))
    everything = Images(store, torch.zeros(images, dtype=torch.long), torch.arange(images) % classes)
    few = everything.select(torch.arange(classes))
    created = time.perf_counter()
    stream = ClassStream(Dataset("many", everything, few, tuple(map(str, range(classes))), Augment()), 10, 1993)
    made = time.perf_counter()
    step = stream[2]
    both = join([step.images, step.images.select(torch.arange(min(20_000, len(step.images))))])
    stepped = time.perf_counter()
    list(torch.randperm(len(both)).split(256))
    ended = time.perf_counter()
    return {
        "stream_s": made - created,
        "step_s": stepped - made,
        "epoch_s": ended - stepped,
        "mb": peak_mb() - before,
    }


def in_new_process(function: Callable[[int], dict[str, float]], argument: int) -> dict[str, float]:
    """Call a function in a process that has used no memory yet."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, argument).result()


def rounded(value: Any) -> Any:
    """Round all numbers to three significant digits."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return float(f"{value:.3g}") if isinstance(value, float) else value


def main() -> None:
    many = {f"{count:,} images": in_new_process(bookkeeping, count) for count in (10**6, 10**7, 10**8)}
    figures = {
        "machine": {"system": platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__},
        "network": network(),
        "head": {f"{classes:,} classes": head(classes) for classes in (100, 1_000, 10_000)},
        "herding_ms_per_class": {
            f"{n:,} images, {m} exemplars": herding(n, m) for n, m in ((500, 20), (1300, 20), (1300, 200))
        },
        "checkpoint": {f"{classes:,} classes": checkpoint(classes) for classes in (100, 1_000, 10_000)},
        "bookkeeping": many,
    }
    print(json.dumps(rounded(figures), indent=2))


if __name__ == "__main__":
    main()
