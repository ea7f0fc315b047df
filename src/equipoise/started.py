"""Who started this process: the user, or torchrun or SLURM's srun, and then one of how many. No torch here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from equipoise.errors import EquipoiseError, ToldError, UsageError


@dataclass(frozen=True)
class Started:
    """The company a process was started in."""

    by: Literal["user", "torchrun", "srun"] = "user"
    devices: int = 1
    """Processes a node."""
    nodes: int = 1
    rank: int = 0


def started() -> Started:
    """What the environment tells."""
    world = os.environ
    if "TORCHELASTIC_RUN_ID" in world:
        here, all_ = int(world["LOCAL_WORLD_SIZE"]), int(world["WORLD_SIZE"])
        return Started("torchrun", here, all_ // here, int(world["RANK"]))
    tasks, nodes = (int(world.get(f"SLURM_STEP_NUM_{what}", 1)) for what in ("TASKS", "NODES"))
    if tasks > 1:  # of the step; in a shell that srun or salloc has opened it is 1
        if tasks % nodes:
            raise UsageError(
                f"srun started {tasks} tasks on {nodes} nodes: use --ntasks-per-node, so that all have alike"
            )
        return Started("srun", tasks // nodes, nodes, int(world["SLURM_PROCID"]))
    if int(world.get("WORLD_SIZE") or 1) > 1:
        raise UsageError("WORLD_SIZE is set, but torchrun has not started this process: use torchrun, or unset it")
    return Started(rank=int(world.get("NODE_RANK") or 0) if "MASTER_ADDR" in world else 0)


def speaks() -> bool:
    """Whether this process is the one that talks to the user; one that nobody can place does."""
    try:
        return started().rank == 0
    except UsageError:
        return True


@contextmanager
def said_once() -> Iterator[None]:
    """For mistakes that all processes find alike before they have met."""
    try:
        yield
    except EquipoiseError as error:
        if speaks():
            raise
        raise ToldError(str(error)) from error
