"""An overview of the backbones, for users who choose one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from equipoise.data.augment import Augment
from equipoise.learn.backbones import BACKBONES, ROWS, Architecture
from equipoise.learn.backbones.base import Backbone
from equipoise.learn.backbones.pretrained import PRETRAINED, weights_file
from equipoise.learn.extractor import CHUNK, Extractor, best_engine
from equipoise.learn.runtime import Runtime

SIZES = {"resnet18": 224}
"""Image size of backbones that do not use 32 pixels."""


def describe_backbones(measure: bool = False) -> list[dict[str, Any]]:
    """Return one row per backbone for images; ``measure`` adds the throughput on this machine."""
    rows = []
    for name in BACKBONES:
        if name in ROWS:
            continue
        known = PRETRAINED.get(name)
        size = known.size if known else SIZES.get(name, 32)
        net = Architecture(name, (3, size, size))()
        rows.append({
            "name": name,
            "parameters": sum(p.numel() for p in net.parameters()),
            "features": net.width,
            "size": size,
            "imagenet_accuracy": known.accuracy if known else None,
            "weights": None if known is None else weights_file(name) is not None,
            "images_per_second": _throughput(name, net, size) if measure else None,
        })  # fmt: skip
    return rows


def _throughput(name: str, net: Backbone, size: int) -> float:
    """Return the images per second of a frozen network, the best of three."""
    extractor = Extractor(net, Augment((0.5,), (0.5,)), Runtime(), best_engine(name))
    images = torch.zeros(CHUNK, 3, size, size, dtype=torch.uint8)
    times = []
    for _ in range(4):
        started = time.perf_counter()
        extractor.rows(images)
        times.append(time.perf_counter() - started)
    return round(len(images) / min(times[1:]), 1)


def overview_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a table."""
    lines = [f"{'name':10} {'parameters':>12} {'features':>8} {'pixels':>6} {'ImageNet':>8}  weights        images/s"]
    for row in rows:
        accuracy = f"{row['imagenet_accuracy']:.1f} %" if row["imagenet_accuracy"] else "–"
        weights = {None: "random", True: "installed", False: "not installed"}[row["weights"]]
        speed = f"{row['images_per_second']:,.0f}" if row["images_per_second"] else "–"
        cells = f"{row['name']:10} {row['parameters']:12,} {row['features']:8,} {row['size']:6} {accuracy:>8}"
        lines.append(f"{cells}  {weights:13} {speed:>9}")
    return lines
