"""Helpers for tests of launchers: small comparisons, processes on this machine, and what they have locked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from equipoise.study.compare import Cell, plan
from equipoise.study.launch import DataCache, Job
from equipoise.study.launch.remote import RemoteJob, RunResources
from tests.conftest import interruptible
from tests.runs import tensors_in

TINY: dict[str, dict[str, Any]] = {"train": {"epochs": 1}, "stream": {"steps": "5,5"}, "runtime": {"threads": 1}}
DIVERGING = '[net]\nbackbone = "tiny"\n[memory]\nsize = 50\n[methods.ce.train]\nlr = 1e6\n'
"""A recipe with which ce diverges and wa does not."""
LONG = ("--methods", "ce,wa", "--seeds", "0,1", "--steps", "5,5", "--epochs", "12", "--threads", "1")
"""A comparison that takes long enough to be interrupted."""


def cells(methods: str = "ce wa", seeds: str = "0 1", **more: Any) -> list[Cell]:
    more.setdefault("overrides", TINY)
    return plan("digits", methods.split(), [int(seed) for seed in seeds.split()], **more)


def remote_job(tmp_path: Path, resources: RunResources | None = None) -> RemoteJob:
    """Return the job of a tiny run."""
    (cell,) = cells("ce", "0")
    job = Job(cell.name, cell.settings, tmp_path / "run")
    return RemoteJob.of(job, DataCache(None), resources or RunResources())


def assert_same_runs(one: Path, two: Path) -> None:
    """Assert that two comparisons have the same figures, except for times, and the same weights."""
    table = json.loads((one / "compare.json").read_text())
    assert json.loads((two / "compare.json").read_text()) == table
    directories = [run["directory"] for entry in table["entries"] for run in entry["runs"]]
    assert directories
    for directory in directories:
        for file in sorted((one / directory).rglob("*.safetensors")):
            left, right = tensors_in(file), tensors_in(two / file.relative_to(one))
            assert left.keys() == right.keys()
            assert all(torch.equal(left[name], right[name]) for name in left), file


def descendants(pid: int) -> list[int]:
    """Return the processes below a process."""
    below: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
        below.setdefault(parent, []).append(int(stat.parent.name))
    found = list(below.get(pid, []))
    for child in found:
        found += below.get(child, [])
    return found


def locked_runs(pids: Sequence[int]) -> list[Path]:
    """Return the run directories that these processes have locked."""
    files = []
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                files.append(link.readlink())
            except OSError:
                continue
    return [file.parent for file in files if file.name == ".lock"]


def in_second_step(run: Path) -> bool:
    """Return whether one step is finished and an epoch of the next is saved."""
    try:
        stages: dict[str, Any] = json.loads((run / "checkpoint" / "step" / "stages.json").read_text())
    except FileNotFoundError:
        return False
    return bool(stages["of"] == "step 2")


def all_ended(pids: Sequence[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def wait_for(what: Callable[[], Any], process: subprocess.Popen[str] | None = None, seconds: float = 120) -> Any:
    """Return the first true value of ``what``; fail if the process ends before, or if it takes too long."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Start a command of equipoise."""
    return subprocess.Popen(
        [sys.executable, "-m", "equipoise", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )
