"""What benchmarks share: works done in turns, so that the machine's moods hit all alike; the machine's facts."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from equipoise.learn.runtime import processor


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turns(works: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each work returns (its seconds), ``rounds`` times; the first round warms up and is not track."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name in sorted(works, reverse=bool(number % 2)):  # nobody always follows the same neighbour
            took = works[name]()
            if number:
                times[name].append(took)
    return times


def faster(times: Mapping[str, list[float]], ours: str, than: str) -> float:
    """How many times as fast ours is: the median over rounds."""
    pairs = zip(times[ours], times[than], strict=True)
    return round(statistics.median(theirs / mine for mine, theirs in pairs), 3)


def machine() -> dict[str, object]:
    memory = [line for line in _read("/proc/meminfo").splitlines() if line.startswith("MemTotal")]
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory[0].split()[1]) / 2**20, 1) if memory else None,
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
