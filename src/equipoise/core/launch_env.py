"""How this process was started: by the user, torchrun or SLURM's srun. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from equipoise.core.open_dir import printable
from equipoise.errors import EquipoiseError, ReportedError, UsageError


@dataclass(frozen=True)
class LaunchEnv:
    """The process group that this process was started in."""

    by: Literal["user", "torchrun", "srun"] = "user"
    devices: int = 1
    """Processes per node."""
    nodes: int = 1
    rank: int = 0


def launch_env() -> LaunchEnv:
    """Read the environment variables of torchrun and SLURM."""
    env = os.environ
    if "TORCHELASTIC_RUN_ID" in env:
        hint = "start the command with torchrun, or unset TORCHELASTIC_RUN_ID"
        per_node, total = _number("LOCAL_WORLD_SIZE", 1, hint), _number("WORLD_SIZE", 1, hint)
        if total % per_node:
            raise UsageError(f"WORLD_SIZE is {total}, not a multiple of LOCAL_WORLD_SIZE, which is {per_node}: {hint}")
        return LaunchEnv("torchrun", per_node, total // per_node, _number("RANK", 0, hint))
    hint = "start the command with srun, or unset SLURM_STEP_NUM_TASKS"
    tasks = _number("SLURM_STEP_NUM_TASKS", 0, hint, default=1)
    if tasks > 1:  # of the job step; 1 in a shell that srun or salloc opened
        nodes = _number("SLURM_STEP_NUM_NODES", 1, hint, default=1)
        if tasks % nodes:
            raise UsageError(
                f"srun started {tasks} tasks on {nodes} nodes: use --ntasks-per-node so that every node has as many"
            )
        return LaunchEnv("srun", tasks // nodes, nodes, _number("SLURM_PROCID", 0, hint))
    if _number("WORLD_SIZE", 0, "use torchrun, or unset it", default=1) > 1:
        raise UsageError("WORLD_SIZE is set, but torchrun did not start this process: use torchrun, or unset it")
    if "MASTER_ADDR" not in env:
        return LaunchEnv()
    return LaunchEnv(rank=_number("NODE_RANK", 0, "set it to the number of this node, or unset MASTER_ADDR", default=0))


def _number(name: str, least: int, hint: str, default: int | None = None) -> int:
    """Return an environment variable as a whole number; ``default`` is its value if it is empty or not set."""
    text = os.environ.get(name, "")
    if not text and default is not None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < least:
        seen = f"'{printable(text[:50])}'" if name in os.environ else "not set"
        raise UsageError(f"{name} is {seen}, but must be a whole number of at least {least}: {hint}")
    return int(text)


def is_main_process() -> bool:
    """Return whether this process talks to the user; also if its rank cannot be determined."""
    try:
        return launch_env().rank == 0
    except UsageError:
        return True


@contextmanager
def errors_once() -> Iterator[None]:
    """Let only the main process report errors that all processes find before they are connected."""
    try:
        yield
    except EquipoiseError as error:
        if is_main_process():
            raise
        raise ReportedError(str(error)) from error
