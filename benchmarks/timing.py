"""What the benchmarks share: interleaved timing, memory use, and facts about the machine."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from equipoise.learn.runtime import processor


@dataclass(frozen=True)
class Row:
    """One comparison of equipoise with a baseline."""

    what: str
    ours: float
    baseline: float
    unit: str
    ratio: float
    """How many times as good ours is: above 1 is better."""
    versus: str
    """What the baseline is."""
    goal: float | None = None
    """The ratio to reach."""
    details: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        goal = "" if self.goal is None else f" (goal {self.goal:g})"
        numbers = f"{self.ours:>10,}{self.baseline:>10,} {self.unit:9}{self.ratio:>8,}"
        return f"{self.what:46}{numbers}  {self.versus}{goal}"


HEADER = f"{'what':46}{'ours':>10}{'baseline':>10} {'unit':9}{'ratio':>8}  versus"


def seconds(work: Callable[[], object]) -> float:
    """Return how long ``work`` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def fastest(work: Callable[[], object], times: int = 5) -> float:
    """Return the shortest time of several calls, after one to warm up."""
    work()
    return min(seconds(work) for _ in range(times))


def interleave(works: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Call all works in every round, so that changes in the machine's speed affect all of them.

    Parameters
    ----------
    works
        Functions that return their own time.
    rounds
        How often to call each of them, after a round to warm up that is not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name in sorted(works, reverse=bool(number % 2)):  # alternate the order
            took = works[name]()
            if number:
                times[name].append(took)
    return times


def speedup(times: Mapping[str, list[float]], ours: str, baseline: str) -> float:
    """Return how many times as fast ours is: the median over rounds."""
    pairs = zip(times[ours], times[baseline], strict=True)
    return round(statistics.median(theirs / mine for mine, theirs in pairs), 3)


def peak_mb() -> float:
    """Return the peak resident memory of this process; getrusage would include its parent's."""
    found = re.search(r"VmHWM:\s+(\d+)", _read("/proc/self/status"))
    return int(found[1]) / 1024 if found else float("nan")


def resident_mb() -> float:
    """Return the resident memory of this process."""
    found = re.search(r"VmRSS:\s+(\d+)", _read("/proc/self/status"))
    return int(found[1]) / 1024 if found else float("nan")


def machine() -> dict[str, object]:
    """Return facts about the machine and the software."""
    memory = re.search(r"MemTotal:\s+(\d+)", _read("/proc/meminfo"))
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory[1]) / 2**20, 1) if memory else None,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "commit": _commit(),
        "load_before": round(os.getloadavg()[0], 2),
        "at": time.strftime("%Y-%m-%d %H:%M"),
    }


def _read(file: str) -> str:
    try:
        return Path(file).read_text()
    except OSError:
        return ""


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
