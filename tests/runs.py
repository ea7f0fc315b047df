"""Helpers for tests of runs and their directories."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from equipoise.core.directory import Directory
from equipoise.core.tensors import read_tensors
from equipoise.study.console import RunListener

COMMAND = [sys.executable, "-m", "equipoise", "run", "digits", "--threads", "1", "--quiet"]
"""A run in a process of its own; add ``--out DIRECTORY``."""
TIMES = ("seconds", "images_per_second", "seconds_by_part", "memory_peak_mb", "finished")


def timeless(directory: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl without times and memory, which differ between equal runs."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def tensors_in(file: Path) -> dict[str, torch.Tensor]:
    """Read a safetensors file."""
    return read_tensors(Directory(file.parent), file.name)


def final_state(directory: Path) -> dict[str, torch.Tensor]:
    """Return the state of the method after the last step."""
    (file,) = (directory / "checkpoint").glob("*.safetensors")
    return tensors_in(file)


def assert_same_run(one: Path, two: Path) -> None:
    """Assert that two runs have the same results and the same weights, to the last bit."""
    assert timeless(one) == timeless(two)
    left, right = final_state(one), final_state(two)
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


class Stop(RunListener):
    """Interrupts the run after a number of batches, as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        self.left = after

    def batch(self, images: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
