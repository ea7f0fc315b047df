"""Herding against its definition; with --imagenet, at ImageNet's size.

There the memory asks for features of some classes at a time; here they are drawn at random instead of computed.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from turns import seconds

from equipoise.data.herding import herd
from equipoise.data.images import Images, TensorStore
from equipoise.data.memory import Memory

CLASSES, EACH, WIDTH, QUOTA = 1000, 1300, 512, 20


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def quadratic(features: np.ndarray, count: int) -> list[int]:
    """iCaRL's Alg. 4 as it stands: for every pick and every candidate, the mean of the picked and it; m² of them."""
    mean, picked = features.mean(0), list[int]()
    for _ in range(count):
        left = [row for row in range(len(features)) if row not in picked]
        distances = [np.linalg.norm(mean - features[[*picked, row]].mean(0)) for row in left]
        picked.append(left[int(np.argmin(distances))])
    return picked


def running(features: np.ndarray, count: int) -> list[int]:
    """The same with the sum of the picked carried along and all candidates at once, as toolkits have it."""
    mean, total, picked = features.mean(0), np.zeros_like(features[0]), list[int]()
    for k in range(1, count + 1):
        distances = np.sqrt(((mean - (features + total) / k) ** 2).sum(1))
        distances[picked] = np.inf
        picked.append(int(np.argmin(distances)))
        total = total + features[picked[-1]]
    return picked


def imagenet() -> dict[str, float]:
    """All of ImageNet's classes in one step, which is more than its protocol asks."""
    store = TensorStore(torch.zeros(1, 1, 1, 1, dtype=torch.uint8))
    count = CLASSES * EACH
    images = Images(store, torch.zeros(count, dtype=torch.long), torch.arange(CLASSES).repeat_interleave(EACH))
    spent = [0.0]

    def features(some: Images) -> Tensor:
        began = time.perf_counter()
        drawn = torch.randn(len(some), WIDTH).relu_()
        spent[0] += time.perf_counter() - began
        return drawn

    before, began = peak_mb(), time.perf_counter()
    memory = Memory(QUOTA, per="class")
    memory.update(images, CLASSES, features, (0,))
    took = time.perf_counter() - began
    assert len(memory) == CLASSES * QUOTA
    return {
        "seconds": round(took - spent[0], 2),
        "drawing_seconds": round(spent[0], 2),
        "mb": round(peak_mb() - before),
        "mb_with_torch": round(peak_mb()),
    }


def measure(count: int = 1300, width: int = 512, picks: int = 200) -> Iterator[dict[str, object]]:
    torch.manual_seed(0)
    features = torch.nn.functional.normalize(torch.randn(count, width).relu().double(), dim=1)
    ours = herd(features, picks).tolist()
    took = min(seconds(lambda: herd(features, picks)) for _ in range(5))
    for than, form in (("the quadratic form", quadratic), ("a running sum, NumPy", running)):
        began = time.perf_counter()
        order = form(features.numpy(), picks)
        theirs = time.perf_counter() - began
        assert order == ours, f"another order than {than}"
        yield {
            "what": f"herding {picks} of {count} × {width}",
            "ours": round(1000 * took, 1),
            "theirs": round(1000 * theirs, 1),
            "unit": "ms",
            "ratio": round(theirs / took, 1),
            "than": than,
            "goal": 10.0 if form is quadratic else None,
        }


if __name__ == "__main__":
    if "--imagenet" in sys.argv:
        print(json.dumps({f"{CLASSES}x{EACH}x{WIDTH}": imagenet()}))
    for row in measure():
        print(json.dumps(row))
