"""Herding at ImageNet's size, and against the definition written out.

    make bench, or python benchmarks/herding.py

The memory asks for features of some classes at a time; here they are drawn at random instead of computed.
"""

from __future__ import annotations

import json
import resource
import time

import torch
from torch import Tensor

from equipoise.data.herding import herd
from equipoise.data.images import Images, TensorStore
from equipoise.data.memory import Memory

CLASSES, EACH, WIDTH, QUOTA = 1000, 1300, 512, 20


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def quadratic(features: Tensor, count: int) -> list[int]:
    """iCaRL's Alg. 4 as it stands: for every pick, the mean with each candidate added."""
    mean, total = features.mean(0), torch.zeros_like(features[0])
    picked: list[int] = []
    for k in range(1, count + 1):
        distances = (mean - (total + features) / k).norm(dim=1)
        distances[picked] = torch.inf
        picked.append(int(distances.argmin()))
        total += features[picked[-1]]
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


def against_the_definition(count: int = 1300, width: int = 512, picks: int = 200) -> dict[str, float]:
    features = torch.nn.functional.normalize(torch.randn(count, width).relu().double(), dim=1)
    began = time.perf_counter()
    ours = herd(features, picks).tolist()
    middle = time.perf_counter()
    theirs = quadratic(features, picks)
    ended = time.perf_counter()
    assert ours == theirs
    return {
        "ours_ms": round(1000 * (middle - began), 1),
        "definition_ms": round(1000 * (ended - middle), 1),
        "ratio": round((ended - middle) / (middle - began), 1),
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    herd(torch.randn(10, 4), 2)
    print(json.dumps({f"{CLASSES}x{EACH}x{WIDTH}": imagenet(), "1300x512, 200 picks": against_the_definition()}))
