"""How this process was started: by the user, torchrun or SLURM's srun. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

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
        per_node, total = int(env["LOCAL_WORLD_SIZE"]), int(env["WORLD_SIZE"])
        return LaunchEnv("torchrun", per_node, total // per_node, int(env["RANK"]))
    tasks, nodes = (int(env.get(f"SLURM_STEP_NUM_{what}", 1)) for what in ("TASKS", "NODES"))
    if tasks > 1:  # of the job step; 1 in a shell that srun or salloc opened
        if tasks % nodes:
            raise UsageError(
                f"srun started {tasks} tasks on {nodes} nodes: use --ntasks-per-node so that every node has as many"
            )
        return LaunchEnv("srun", tasks // nodes, nodes, int(env["SLURM_PROCID"]))
    if int(env.get("WORLD_SIZE") or 1) > 1:
        raise UsageError("WORLD_SIZE is set, but torchrun did not start this process: use torchrun, or unset it")
    return LaunchEnv(rank=int(env.get("NODE_RANK") or 0) if "MASTER_ADDR" in env else 0)


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
