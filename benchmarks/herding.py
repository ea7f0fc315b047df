"""Compare herding with its definition; with --imagenet, also herd as many images as ImageNet has.

The memory asks for the features of some classes at a time. Here they are random instead of computed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from timing import Row, fastest, peak_mb, seconds
from torch import Tensor

from equipoise.data.herding import herd
from equipoise.data.images import Images, TensorStore
from equipoise.data.memory import Memory

CLASSES, PER_CLASS, WIDTH, QUOTA = 1000, 1300, 512, 20


def quadratic(features: np.ndarray, count: int) -> list[int]:
    """Herd as Alg. 4 of iCaRL is written: compute the mean of the selected rows and every candidate from scratch."""
    mean, selected = features.mean(0), list[int]()
    for _ in range(count):
        left = [row for row in range(len(features)) if row not in selected]
        distances = [np.linalg.norm(mean - features[[*selected, row]].mean(0)) for row in left]
        selected.append(left[int(np.argmin(distances))])
    return selected


def running_sum(features: np.ndarray, count: int) -> list[int]:
    """Herd with a running sum of the selected rows and all candidates at once, as other libraries do."""
    mean, total, selected = features.mean(0), np.zeros_like(features[0]), list[int]()
    for k in range(1, count + 1):
        distances = np.sqrt(((mean - (features + total) / k) ** 2).sum(1))
        distances[selected] = np.inf
        selected.append(int(np.argmin(distances)))
        total = total + features[selected[-1]]
    return selected


def imagenet() -> dict[str, float]:
    """Herd all of ImageNet's classes in one step, which is more than its protocol needs."""
    store = TensorStore(torch.zeros(1, 1, 1, 1, dtype=torch.uint8))
    count = CLASSES * PER_CLASS
    images = Images(store, torch.zeros(count, dtype=torch.long), torch.arange(CLASSES).repeat_interleave(PER_CLASS))
    spent = [0.0]

    def features(some: Images) -> Tensor:
        started = time.perf_counter()
        drawn = torch.randn(len(some), WIDTH).relu_()
        spent[0] += time.perf_counter() - started
        return drawn

    before, memory = peak_mb(), Memory(QUOTA, per="class")
    took = seconds(lambda: memory.update(images, CLASSES, features, (0,)))
    assert len(memory) == CLASSES * QUOTA
    return {
        "seconds": round(took - spent[0], 2),
        "drawing_seconds": round(spent[0], 2),
        "mb": round(peak_mb() - before),
        "mb_with_torch": round(peak_mb()),
    }


def measure(count: int = 1300, width: int = 512, picks: int = 200) -> Iterator[Row]:
    """Compare with the quadratic form and with a running sum, and check that the order is the same."""
    torch.manual_seed(0)
    features = torch.nn.functional.normalize(torch.randn(count, width).relu().double(), dim=1)
    ours = herd(features, picks).tolist()
    took = fastest(lambda: herd(features, picks))
    for versus, form in (("the quadratic form", quadratic), ("a running sum, NumPy", running_sum)):
        started = time.perf_counter()
        order = form(features.numpy(), picks)
        baseline = time.perf_counter() - started
        assert order == ours, f"the order differs from {versus}"
        yield Row(
            what=f"herding {picks} of {count} × {width}",
            ours=round(1000 * took, 1),
            baseline=round(1000 * baseline, 1),
            unit="ms",
            ratio=round(baseline / took, 1),
            versus=versus,
            goal=10.0 if form is quadratic else None,
        )


if __name__ == "__main__":
    if "--imagenet" in sys.argv:
        print(json.dumps({f"{CLASSES}x{PER_CLASS}x{WIDTH}": imagenet()}))
    for row in measure():
        print(row)
