"""One run in several processes, on one machine or many: started here, by torchrun, or by SLURM's srun.

Lightning Fabric knows who started us, which device is ours and how to reach the others; what is shared, and how, is
the business of ``ranks`` and of the training loop.
"""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from equipoise import errors, ranks
from equipoise.data.dataset import Dataset
from equipoise.errors import EquipoiseError, RunError, UsageError
from equipoise.learn.runtime import Runtime
from equipoise.study.experiment import Result, execute
from equipoise.study.progress import Reporter
from equipoise.study.recipe import Settings

Starter = Literal["here", "torchrun", "srun"]
GO_ON = "every finished epoch is saved, and the same command goes on from there"


@dataclass(frozen=True)
class Work:
    """A run, in a form that can be handed to another process."""

    settings: Settings
    directory: Path
    load: Callable[[], Dataset]
    reporter: Callable[[], Reporter]
    """Makes whoever is told; called in the first process only."""


def launch(work: Work) -> Result:
    """Run ``work`` in as many processes as its runtime asks for, or as torchrun or srun have started."""
    devices, nodes, starter = _company(work.settings.runtime)
    if devices * nodes == 1:
        return _with_reporter(work)
    fabric = _fabric(work.settings.runtime, devices, nodes, starter)
    if starter != "here":
        fabric.launch()
        try:
            return _join_in(fabric, work)
        finally:
            _part()
    _spawn(fabric, partial(_join_in, work=work))
    return Result.read(work.directory)


def together(function: Callable[[], object], processes: int = 2) -> None:
    """Call ``function`` in several new processes of this machine, which form one company."""
    _spawn(_fabric(Runtime(), processes, 1, "here"), partial(_called, function=function))


def _called(fabric: Any, function: Callable[[], object]) -> None:
    function()


def _spawn(fabric: Any, function: Callable[[Any], object]) -> None:
    """Start the processes, wait for them, and say in a sentence what went wrong in any of them."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns where a stage trains all of the network
    said: SimpleQueue[tuple[str, str]] = multiprocessing.get_context("spawn").SimpleQueue()
    try:
        fabric.launch(partial(_child, function=function, said=said))
    except (ProcessExitedException, ProcessRaisedException) as error:
        _explain(error, said, fabric.world_size)
        raise
    finally:
        _end_children()


def speaks() -> bool:
    """Whether this process is the one that talks to the user: of those that torchrun or srun started, the first."""
    return int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0) == 0


def refuse_company(what: str) -> None:
    """For what starts its own processes, and makes no sense many times over."""
    starter = _company(Runtime())[2]
    if starter != "here":
        sentence = f"{starter} is for `equipoise run`: {what} starts processes itself, so leave {starter} out"
        raise UsageError(sentence) if speaks() else ranks.ToldError(sentence)


def _company(runtime: Runtime) -> tuple[int, int, Starter]:
    """Processes a node, nodes, and who starts them."""
    world = os.environ
    starter: Starter = "here"
    devices, nodes = 0, 0
    if "TORCHELASTIC_RUN_ID" in world:
        starter = "torchrun"
        devices = int(world["LOCAL_WORLD_SIZE"])
        nodes = int(world["WORLD_SIZE"]) // devices
    elif "SLURM_STEP_ID" in world and int(world.get("SLURM_NTASKS", 1)) > 1:
        starter = "srun"
        nodes = int(world.get("SLURM_NNODES", 1))
        devices = int(world["SLURM_NTASKS"]) // nodes
    if devices:
        asked = runtime.devices, runtime.nodes
        if asked not in ((1, 1), (devices, nodes)):
            raise UsageError(
                f"{nodes} × {devices} processes were started from outside, and --nodes × --devices "
                f"say {runtime.nodes} × {runtime.devices}: leave them out"
            )
        return devices, nodes, starter
    if runtime.nodes > 1 and not {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK"} <= world.keys():
        raise UsageError(
            f"{runtime.nodes} nodes must find one another: start the command with torchrun or srun, or on each node "
            "with MASTER_ADDR, MASTER_PORT and NODE_RANK in the environment"
        )
    return runtime.devices, runtime.nodes, starter


def _fabric(runtime: Runtime, devices: int, nodes: int, starter: Starter) -> Any:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins import environments
    from lightning_fabric.strategies.ddp import DDPStrategy

    _hush()
    kind = torch.device(runtime.device)
    if kind.index is not None or kind.type not in ("cpu", "cuda"):
        raise UsageError(f"--device {runtime.device} is one device, and {devices * nodes} processes want one each")
    backend = "gloo" if kind.type == "cpu" else "cpu:gloo,cuda:nccl"
    try:
        environment = {
            "here": environments.LightningEnvironment,
            "torchrun": environments.TorchElasticEnvironment,
            "srun": partial(environments.SLURMEnvironment, auto_requeue=False),
        }[starter]()
        strategy = DDPStrategy(
            cluster_environment=environment,
            process_group_backend=backend,
            start_method="spawn" if starter == "here" else "popen",
        )
        return Fabric(accelerator=kind.type, devices=devices, num_nodes=nodes, strategy=strategy)
    except Exception as error:  # Fabric has its own kinds
        raise UsageError(f"{devices} devices of kind {kind.type} cannot be had here: {error}") from error


def _hush() -> None:
    """What is worth saying we say."""
    for talker in ("lightning_fabric.utilities", "torch.multiprocessing.spawn"):
        logging.getLogger(talker).setLevel(logging.ERROR)


_hush()  # in a new process, Fabric speaks before we are called


def _child(fabric: Any, function: Callable[[Any], object], said: SimpleQueue[tuple[str, str]]) -> None:
    """What a process that was started here does."""
    for end in (signal.SIGTERM, signal.SIGINT):  # the latter comes, too, when whoever started us is gone
        signal.signal(end, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        function(fabric)
    except EquipoiseError as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # we are ending, and nobody wants to see where
        if not isinstance(error, ranks.ToldError):
            said.put((type(error).__name__, str(error)))
        sys.exit(1)
    except Exception:
        said.put(("", traceback.format_exc()[-4000:]))
        raise
    finally:
        _part()


def _join_in(fabric: Any, work: Work) -> Result:
    """Do this process's part."""
    runtime = replace(work.settings.runtime, device=str(fabric.device), threads=_threads(work, fabric))
    mine = replace(work, settings=replace(work.settings, runtime=runtime))
    first = ranks.first()
    try:
        return _with_reporter(mine if first else replace(mine, reporter=Reporter))
    except (ranks.LostError, KeyboardInterrupt) as error:
        if first:
            raise
        raise ranks.ToldError(str(error)) from error  # one voice is enough


def _part() -> None:
    with suppress(RuntimeError):  # from those who are already gone
        dist.destroy_process_group()


def _with_reporter(work: Work) -> Result:
    reporter = work.reporter()
    try:
        return execute(work.settings, work.directory, work.load, reporter)
    finally:
        reporter.close()


def _threads(work: Work, fabric: Any) -> int | None:
    """Processes on one machine share its cores."""
    if work.settings.runtime.threads is not None or fabric.device.type != "cpu":
        return work.settings.runtime.threads
    here: int = fabric.strategy.num_processes
    return max(1, (os.cpu_count() or 1) // here)


def _explain(
    error: ProcessExitedException | ProcessRaisedException, said: SimpleQueue[tuple[str, str]], processes: int
) -> None:
    """Say in one sentence why the processes ended, if it can be said."""
    heard = []
    while not said.empty():
        heard.append(said.get())
    for kind, sentence in sorted(heard, reverse=True):  # a trace of a mistake of ours comes last
        if kind != ranks.LostError.__name__:
            raise getattr(errors, kind, RuntimeError)(sentence) from error
    if isinstance(error, ProcessExitedException) and error.signal_name:
        who = f"process {error.error_index + 1} of {processes}"
        raise RunError(f"{who} was killed ({error.signal_name}; out of memory?): {GO_ON}") from error
    for _, sentence in heard:
        raise RunError(sentence) from error


def _end_children() -> None:
    """No process outlives the command, however that ends."""
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    for child in children:
        child.join(5)
        if child.is_alive():
            child.kill()
