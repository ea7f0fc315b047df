"""What each part of a step costs, against classes and images: the figures of docs/scale.md.

    python benchmarks/scale.py

Prints JSON. ResNet-18 sees 64×64 here, so that two cores can; ratios are what to take away.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from equipoise.data.augment import Augment
from equipoise.data.dataset import Dataset
from equipoise.data.herding import herd
from equipoise.data.images import Images, TensorStore, join
from equipoise.data.stream import ClassStream
from equipoise.core.files import write_tensors
from equipoise.learn.align import align_head
from equipoise.learn.head import Head
from equipoise.learn.backbones.base import Architecture

BATCH, SIZE, WIDTH = 32, 64, 512


def fastest(work: Callable[[], object], times: int = 5) -> float:
    """Seconds of the quickest of some tries, after one to warm up."""
    work()
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)


def network() -> dict[str, float]:
    """An image's way through the network: trained, and only looked at (teacher, evaluation, herding)."""
    net = Architecture("resnet18", (3, SIZE, SIZE))(True)
    x = torch.randn(BATCH, 3, SIZE, SIZE).contiguous(memory_format=torch.channels_last)

    def train() -> None:
        net.train()
        net(x).sum().backward()

    def look() -> None:
        net.eval()
        with torch.no_grad():
            net(x)

    trained, looked = (1000 * fastest(work, 3) / BATCH for work in (train, look))
    return {"train_ms": trained, "forward_ms": looked, "share": looked / trained}


def head(classes: int) -> dict[str, float]:
    """A batch through a linear head: forward, backward, update."""
    layer = Head(WIDTH)
    layer.grow(classes)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9, fused=True)
    x, y = torch.randn(BATCH, WIDTH), torch.randint(classes, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(layer(x), y).backward()
        optimizer.step()

    return {
        "ms_an_image": 1000 * fastest(step) / BATCH,
        "mb": 3 * 4 * layer.weight.numel() / 2**20,
        "align_ms": 1000 * fastest(lambda: align_head(layer, classes // 2)),
    }


def herding(images: int, picks: int) -> float:
    """Milliseconds a class."""
    features = torch.randn(images, WIDTH).relu()
    return 1000 * fastest(lambda: herd(features, picks), 3)


def checkpoint(classes: int) -> dict[str, float]:
    """Network, head and their momenta: what is written after every epoch."""
    net, layer = Architecture("resnet18", (3, SIZE, SIZE))(True), Head(WIDTH)
    layer.grow(classes)
    state = {f"{part}.{name}": value.clone() for part in "wm" for name, value in net.state_dict().items()}
    state |= {f"{part}.head": layer.weight.detach().clone() for part in "wm"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.safetensors"
        seconds = fastest(lambda: write_tensors(file, state), 3)
        return {"ms": 1000 * seconds, "mb": file.stat().st_size / 2**20}


def bookkeeping(images: int, classes: int = 1000) -> dict[str, float]:
    """Streams, steps and epochs are rows and labels; no pixels are touched. In a process of its own, for its peak."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        store = TensorStore(torch.zeros(1, 1, 1, 1, dtype=torch.uint8))
        everything = Images(store, torch.zeros(images, dtype=torch.long), torch.arange(images) % classes)
        few = everything.select(torch.arange(classes))
        began = time.perf_counter()
        stream = ClassStream(Dataset("many", everything, few, tuple(map(str, range(classes))), Augment()), 10, 1993)
        made = time.perf_counter()
        step = stream[2]
        both = join([step.images, step.images.select(torch.arange(20_000))])
        stepped = time.perf_counter()
        list(torch.randperm(len(both)).split(256))
        ended = time.perf_counter()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        figures = {"stream_s": made - began, "step_s": stepped - made, "epoch_s": ended - stepped, "mb": peak / 1024}
        os.write(writer, json.dumps(figures).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    figures = json.loads(os.read(reader, 10_000))
    return {name: float(value) for name, value in figures.items()}


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return float(f"{value:.3g}") if isinstance(value, float) else value


def main() -> None:
    many = {f"{count:,} images": bookkeeping(count) for count in (10**6, 10**7, 10**8)}
    figures = {
        "machine": {"system": platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__},
        "network": network(),
        "head": {f"{classes:,} classes": head(classes) for classes in (100, 1_000, 10_000)},
        "herding_ms_a_class": {
            f"{n:,} images, {m} kept": herding(n, m) for n, m in ((500, 20), (1300, 20), (1300, 200))
        },
        "checkpoint": {f"{classes:,} classes": checkpoint(classes) for classes in (100, 1_000, 10_000)},
        "bookkeeping": many,
    }
    print(json.dumps(rounded(figures), indent=2))


if __name__ == "__main__":
    main()
