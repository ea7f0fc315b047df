"""One run in several processes, on one machine or many: started here, by torchrun or by SLURM's srun.

Lightning Fabric detects how the process was started, which device it has and how to reach the others. Communication
itself is up to ``core/distributed.py`` and the training loop.
"""

from __future__ import annotations

import atexit
import io
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from equipoise import errors
from equipoise.core import distributed
from equipoise.core.directory import Directory
from equipoise.core.extras import require
from equipoise.core.launch_env import LaunchEnv, errors_once, launch_env
from equipoise.core.safe_path import use_safe_path
from equipoise.data.dataset import Dataset
from equipoise.engine.results import read_results
from equipoise.engine.settings import Settings
from equipoise.errors import EquipoiseError, ReportedError, RunError, UsageError, describe_os_error
from equipoise.learn.runtime import Runtime, keep_freed_memory
from equipoise.learn.stage import TrainedStages
from equipoise.study.console import ListenerGroup, RunListener
from equipoise.study.experiment import RunResult, execute

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    Messages = SimpleQueue[tuple[str, str]]
    """Errors of the processes: the name of the class, or nothing for an internal error, and the message."""

LOOPBACK = {"linux": "lo", "darwin": "lo0"}
"""The network interface that other machines cannot reach."""

for name in ("lightning_fabric.utilities", "torch.multiprocessing.spawn"):
    logging.getLogger(name).setLevel(logging.ERROR)  # here, since Fabric logs before a new process calls our function


@dataclass(frozen=True)
class RunTask:
    """A run in a form that can be sent to another process."""

    settings: Settings
    directory: Path
    load: Callable[[], Dataset]
    screen: Callable[[], RunListener] = RunListener
    """Makes the listener that shows the progress; called in the main process only."""
    listeners: Sequence[RunListener] = ()
    """Further listeners, for the main process."""
    trained: TrainedStages | None = None
    """What other runs have trained."""


def launch(task: RunTask) -> RunResult:
    """Run a task in as many processes as its runtime asks for, or as torchrun or srun started."""
    layout = process_layout(task.settings.runtime)
    if layout.devices * layout.nodes == 1:
        return _run(task)
    runtime = replace(task.settings.runtime, devices=layout.devices, nodes=layout.nodes)
    task = replace(task, settings=replace(task.settings, runtime=runtime))
    if layout.by == "user":
        with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
            answer = Directory(Path(folder))
            fabric = _fabric(runtime, layout, Path(folder))
            _spawn(fabric, partial(_write_result, task=task, answer=answer), layout.nodes)
            found = answer.read_json("result.json")
            return RunResult(task.directory, read_results(found["steps"], folder), found["summary"])
    fabric = _fabric(runtime, layout)
    fabric.launch()
    try:
        result = _take_part(fabric, task)
    except BaseException as error:
        # others may still be in a collective operation, and closing the connections properly could take forever
        atexit.register(_leave, 130 if isinstance(error, KeyboardInterrupt) else 2)
        raise
    dist.destroy_process_group()
    return result


def _write_result(fabric: Fabric, task: RunTask, answer: Directory) -> None:
    """Take part in a run in a process that was started here; the main process writes the result to a file."""
    result = _take_part(fabric, task)
    if fabric.local_rank == 0:
        steps = [step.to_dict() for step in result.steps]
        answer.write_json("result.json", {"steps": steps, "summary": dict(result.summary)})


def run_in_group(function: Callable[[], object], processes: int = 2) -> None:
    """Call ``function`` in several new processes of this machine that form a group."""
    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        fabric = _fabric(Runtime(), LaunchEnv(devices=processes), Path(folder))
        _spawn(fabric, partial(_call, function=function))


def _call(fabric: Fabric, function: Callable[[], object]) -> None:
    function()


def _spawn(fabric: Fabric, function: Callable[[Fabric], object], nodes: int = 1) -> None:
    """Start the processes and wait for them; an error in any of them becomes one readable error."""
    use_safe_path()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns if a stage trains the whole network
    if nodes == 1 and sys.platform in LOOPBACK:  # or gloo looks up this machine's name, and listens to all others
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK[sys.platform])
    port, others = os.environ.get("MASTER_PORT"), multiprocessing.active_children()
    if nodes == 1 and port is None:
        os.environ["MASTER_PORT"] = "0"  # nobody connects to it, and Fabric would bind one to find it free
    messages: Messages = multiprocessing.get_context("spawn").SimpleQueue()
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"cannot send this to other processes ({error}): define it at the top level of a file"
        ) from error
    try:
        fabric.launch(partial(_child, function=function, messages=messages))
    except (ProcessExitedException, ProcessRaisedException) as error:
        _explain(error, messages, fabric.world_size)
        raise
    finally:
        _end_children(others)
        if port is None:  # Fabric also leaves the port it chose in the environment
            os.environ.pop("MASTER_PORT", None)


def refuse_process_group(what: str) -> None:
    """Raise an error in a command that starts its own processes."""
    by = launch_env().by
    if by != "user":
        with errors_once():
            raise UsageError(f"{what} starts its own processes: run it without {by} (use {by} for `equipoise run`)")


def process_layout(runtime: Runtime) -> LaunchEnv:
    """Return the processes of a run: as many as were started from outside, or as many as the runtime asks for."""
    found = launch_env()
    asked = runtime.devices, runtime.nodes
    if found.by != "user":
        if asked not in ((1, 1), (found.devices, found.nodes)):
            raise UsageError(
                f"{found.by} started {found.nodes} × {found.devices} processes, but --nodes × --devices ask for "
                f"{runtime.nodes} × {runtime.devices}: remove these options"
            )
        return found
    if runtime.nodes > 1 and not {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK"} <= os.environ.keys():
        raise UsageError(
            f"{runtime.nodes} nodes need an address to connect: start the command with torchrun or srun, or set "
            "MASTER_ADDR, MASTER_PORT and NODE_RANK on each node"
        )
    return replace(found, devices=runtime.devices, nodes=runtime.nodes)


def _fabric(runtime: Runtime, layout: LaunchEnv, folder: Path | None = None) -> Fabric:
    """Return the Fabric that starts and connects the processes; those of one machine connect through ``folder``."""
    require("lightning_fabric", "distributed", "training in several processes")
    from lightning_fabric import Fabric
    from lightning_fabric.plugins import environments
    from lightning_fabric.strategies.ddp import DDPStrategy

    from equipoise.study.one_machine import OneMachineStrategy

    kind = torch.device(runtime.device)
    if kind.index is not None or kind.type not in ("cpu", "cuda"):
        raise UsageError(
            f"--device {runtime.device} names one device, but each process needs its own: remove the option"
        )
    backend = "gloo" if kind.type == "cpu" else "cpu:gloo,cuda:nccl"
    try:
        environment = {
            "user": environments.LightningEnvironment,
            "torchrun": environments.TorchElasticEnvironment,
            "srun": partial(environments.SLURMEnvironment, auto_requeue=False),
        }[layout.by]()
        kind_of_strategy = partial(OneMachineStrategy, folder) if folder and layout.nodes == 1 else DDPStrategy
        strategy = kind_of_strategy(
            cluster_environment=environment,
            process_group_backend=backend,
            start_method="spawn" if layout.by == "user" else "popen",
        )
        return Fabric(accelerator=kind.type, devices=layout.devices, num_nodes=layout.nodes, strategy=strategy)
    except Exception as error:  # Fabric has its own exception classes
        raise UsageError(f"{layout.devices} devices of type {kind.type} are not available here: {error}") from error


def _child(fabric: Fabric, function: Callable[[Fabric], object], messages: Messages) -> None:
    """Run the function in a process that was started here."""
    keep_freed_memory()
    for end in (signal.SIGTERM, signal.SIGINT):  # SIGINT also arrives when the parent has exited
        signal.signal(end, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        function(fabric)
    except BaseException as error:
        _report(error, messages)
        _leave(130 if isinstance(error, KeyboardInterrupt) else 1)
    dist.destroy_process_group()


def _report(error: BaseException, messages: Messages) -> None:
    """Send an error to the parent process, unless it has been reported."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this process exits now; no traceback
    if isinstance(error, OSError):
        error = RunError(describe_os_error(error))
    if isinstance(error, EquipoiseError) and not isinstance(error, ReportedError):
        messages.put((type(error).__name__, str(error)))
    elif isinstance(error, Exception) and not isinstance(error, EquipoiseError):
        messages.put(("", traceback.format_exc()[-4000:]))


def _leave(code: int) -> NoReturn:
    """Exit at once: closing the connections properly could take forever while others wait."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _take_part(fabric: Fabric, task: RunTask) -> RunResult:
    """Do this process's part of a run."""
    runtime = task.settings.runtime
    threads = runtime.threads
    if threads is None and fabric.device.type == "cpu":  # divide the cores of a machine among its processes
        threads = max(1, (os.cpu_count() or 1) // runtime.devices)
    runtime = replace(runtime, device=str(fabric.device), threads=threads)
    mine = replace(task, settings=replace(task.settings, runtime=runtime))
    is_main = distributed.is_main()
    try:
        return _run(mine if is_main else RunTask(mine.settings, mine.directory, mine.load))
    except (distributed.LostPeerError, KeyboardInterrupt) as error:
        if is_main:
            raise
        raise ReportedError(str(error)) from error  # the main process reports it


def _run(task: RunTask) -> RunResult:
    with closing(ListenerGroup(task.screen(), *task.listeners)) as listener:
        return execute(task.settings, task.directory, task.load, listener, task.trained)


def _explain(error: ProcessExitedException | ProcessRaisedException, messages: Messages, processes: int) -> None:
    """Raise a readable error that explains why the processes ended, if possible."""
    heard = []
    while not messages.empty():
        heard.append(messages.get())
    for kind, text in sorted(heard, reverse=True):  # tracebacks of internal errors come last
        if kind != distributed.LostPeerError.__name__:
            raise getattr(errors, kind, RuntimeError)(text) from error
    which = f"process {error.error_index + 1} of {processes}"
    if isinstance(error, ProcessExitedException) and error.signal_name:
        why = "SIGKILL; out of memory?" if error.signal_name == "SIGKILL" else error.signal_name
        raise RunError(f"{which} was killed ({why}): {distributed.RESUME_HINT}") from error
    for _, text in heard:
        raise RunError(text) from error
    if isinstance(error, ProcessExitedException) and error.exit_code == 130:
        raise KeyboardInterrupt from error
    if "DistNetworkError" in str(error):
        raise RunError("the processes cannot connect: MASTER_PORT is in use or invalid; choose another") from error
    if isinstance(error, ProcessExitedException):
        raise RunError(
            f"{which} could not start (exit code {error.exit_code}): "
            'a script that uses several processes must be a file with an `if __name__ == "__main__":` guard'
        ) from error


def _end_children(others: list[BaseProcess]) -> None:
    """Stop the processes started here, however the command ends; ``others`` are the caller's own."""
    children = [child for child in multiprocessing.active_children() if child not in others]
    for child in children:
        child.terminate()
    for child in children:
        child.join(5)
        if child.is_alive():
            child.kill()
