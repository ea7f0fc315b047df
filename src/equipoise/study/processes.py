"""One run in several processes, on one machine or many: started here, by torchrun, or by SLURM's srun.

Lightning Fabric knows who started us, which device is ours and how to reach the others; what is shared, and how, is
the business of ``ranks`` and of the training loop.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from equipoise import errors, ranks
from equipoise.data.dataset import Dataset
from equipoise.errors import EquipoiseError, RunError, ToldError, UsageError, sentence
from equipoise.files import read_json, write_json
from equipoise.learn.runtime import Runtime
from equipoise.started import Started, said_once, started
from equipoise.study.experiment import Result, execute
from equipoise.study.progress import Reporter
from equipoise.study.recipe import Settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric


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
    company = company_of(work.settings.runtime)
    if company.devices * company.nodes == 1:
        return _with_reporter(work)
    runtime = replace(work.settings.runtime, devices=company.devices, nodes=company.nodes)
    work = replace(work, settings=replace(work.settings, runtime=runtime))
    fabric = _fabric(runtime, company)
    if company.by == "user":
        with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
            answer = Path(folder) / "result.json"
            _spawn(fabric, partial(_answer, work=work, answer=answer))
            told = read_json(answer)
            return Result(work.directory, told["rows"], told["summary"])
    fabric.launch()
    try:
        result = _join_in(fabric, work)
    except BaseException as error:
        # while others are still in a collective, to tear the connections down in good order may take for ever
        atexit.register(_leave, 130 if isinstance(error, KeyboardInterrupt) else 2)
        raise
    dist.destroy_process_group()
    return result


def _answer(fabric: Fabric, work: Work, answer: Path) -> None:
    """What a process does that was started here, and how whoever started it learns of the result."""
    result = _join_in(fabric, work)
    if fabric.local_rank == 0:
        write_json(answer, {"rows": result.rows, "summary": result.summary})


def together(function: Callable[[], object], processes: int = 2) -> None:
    """Call ``function`` in several new processes of this machine, which form one company."""
    _spawn(_fabric(Runtime(), Started(devices=processes)), partial(_called, function=function))


def _called(fabric: Fabric, function: Callable[[], object]) -> None:
    function()


def _spawn(fabric: Fabric, function: Callable[[Fabric], object]) -> None:
    """Start the processes, wait for them, and say in a sentence what went wrong in any of them."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns where a stage trains all of the network
    port, others = os.environ.get("MASTER_PORT"), multiprocessing.active_children()
    said: SimpleQueue[tuple[str, str]] = multiprocessing.get_context("spawn").SimpleQueue()
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"this cannot be handed to other processes ({error}): define it at the top of a file"
        ) from error
    try:
        fabric.launch(partial(_child, function=function, said=said))
    except (ProcessExitedException, ProcessRaisedException) as error:
        _explain(error, said, fabric.world_size)
        raise
    finally:
        _end_children(others)
        if port is None:  # Fabric leaves the one it has found in the environment, for everybody
            os.environ.pop("MASTER_PORT", None)


def refuse_company(what: str) -> None:
    """For what starts its own processes, and makes no sense many times over."""
    by = started().by
    if by != "user":
        with said_once():
            raise UsageError(f"{by} is for `equipoise run`: {what} starts processes itself, so leave {by} out")


def company_of(runtime: Runtime) -> Started:
    """Those that will learn together: as many as were started from outside, or else as many as the runtime asks for."""
    found = started()
    asked = runtime.devices, runtime.nodes
    if found.by != "user":
        if asked not in ((1, 1), (found.devices, found.nodes)):
            raise UsageError(
                f"{found.by} started {found.nodes} × {found.devices} processes, and --nodes × --devices "
                f"say {runtime.nodes} × {runtime.devices}: leave them out"
            )
        return found
    if runtime.nodes > 1 and not {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK"} <= os.environ.keys():
        raise UsageError(
            f"{runtime.nodes} nodes must find one another: start the command with torchrun or srun, or on each node "
            "with MASTER_ADDR, MASTER_PORT and NODE_RANK in the environment"
        )
    return replace(found, devices=runtime.devices, nodes=runtime.nodes)


def _fabric(runtime: Runtime, company: Started) -> Fabric:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins import environments
    from lightning_fabric.strategies.ddp import DDPStrategy

    _hush()
    kind = torch.device(runtime.device)
    if kind.index is not None or kind.type not in ("cpu", "cuda"):
        raise UsageError(f"--device {runtime.device} is one device, and several processes want one each: leave it out")
    backend = "gloo" if kind.type == "cpu" else "cpu:gloo,cuda:nccl"
    try:
        environment = {
            "user": environments.LightningEnvironment,
            "torchrun": environments.TorchElasticEnvironment,
            "srun": partial(environments.SLURMEnvironment, auto_requeue=False),
        }[company.by]()
        strategy = DDPStrategy(
            cluster_environment=environment,
            process_group_backend=backend,
            start_method="spawn" if company.by == "user" else "popen",
        )
        return Fabric(accelerator=kind.type, devices=company.devices, num_nodes=company.nodes, strategy=strategy)
    except Exception as error:  # Fabric has its own kinds
        raise UsageError(f"{company.devices} devices of kind {kind.type} cannot be had here: {error}") from error


def _hush() -> None:
    """What is worth saying we say."""
    for talker in ("lightning_fabric.utilities", "torch.multiprocessing.spawn"):
        logging.getLogger(talker).setLevel(logging.ERROR)


_hush()  # in a new process, Fabric speaks before we are called


def _child(fabric: Fabric, function: Callable[[Fabric], object], said: SimpleQueue[tuple[str, str]]) -> None:
    """What a process that was started here does."""
    for end in (signal.SIGTERM, signal.SIGINT):  # the latter comes, too, when whoever started us is gone
        signal.signal(end, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        function(fabric)
    except BaseException as error:
        _say(error, said)
        _leave(130 if isinstance(error, KeyboardInterrupt) else 1)
    dist.destroy_process_group()


def _say(error: BaseException, said: SimpleQueue[tuple[str, str]]) -> None:
    """To whoever started us, what they do not know yet."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # we are ending, and nobody wants to see where
    if isinstance(error, OSError):
        said.put((RunError.__name__, sentence(error)))
    elif isinstance(error, EquipoiseError) and not isinstance(error, ToldError):
        said.put((type(error).__name__, str(error)))
    elif isinstance(error, Exception) and not isinstance(error, EquipoiseError):
        said.put(("", traceback.format_exc()[-4000:]))


def _leave(code: int) -> NoReturn:
    """Now: while others wait for us, to tear the connections down in good order may take for ever."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _join_in(fabric: Fabric, work: Work) -> Result:
    """Do this process's part."""
    runtime = work.settings.runtime
    runtime = replace(runtime, device=str(fabric.device), threads=_threads(runtime, fabric.device))
    mine = replace(work, settings=replace(work.settings, runtime=runtime))
    first = ranks.first()
    try:
        return _with_reporter(mine if first else replace(mine, reporter=Reporter))
    except (ranks.LostError, KeyboardInterrupt) as error:
        if first:
            raise
        raise ToldError(str(error)) from error  # one voice is enough


def _with_reporter(work: Work) -> Result:
    reporter = work.reporter()
    try:
        return execute(work.settings, work.directory, work.load, reporter)
    finally:
        reporter.close()


def _threads(runtime: Runtime, device: torch.device) -> int | None:
    """Processes on one machine share its cores."""
    if runtime.threads is not None or device.type != "cpu":
        return runtime.threads
    return max(1, (os.cpu_count() or 1) // runtime.devices)


def _explain(
    error: ProcessExitedException | ProcessRaisedException, said: SimpleQueue[tuple[str, str]], processes: int
) -> None:
    """Say in one sentence why the processes ended, if it can be said."""
    heard = []
    while not said.empty():
        heard.append(said.get())
    for kind, words in sorted(heard, reverse=True):  # a trace of a mistake of ours comes last
        if kind != ranks.LostError.__name__:
            raise getattr(errors, kind, RuntimeError)(words) from error
    if isinstance(error, ProcessExitedException) and error.signal_name:
        why = "SIGKILL; out of memory?" if error.signal_name == "SIGKILL" else error.signal_name
        raise RunError(f"process {error.error_index + 1} of {processes} was killed ({why}): {ranks.GO_ON}") from error
    for _, words in heard:
        raise RunError(words) from error
    if isinstance(error, ProcessExitedException) and error.exit_code == 130:
        raise KeyboardInterrupt from error
    if "DistNetworkError" in str(error):
        raise RunError("the processes cannot meet: MASTER_PORT is in use or no port, so choose another") from error
    if isinstance(error, ProcessExitedException):
        raise RunError(
            f"process {error.error_index + 1} of {processes} could not start (exit code {error.exit_code}): "
            'a script that learns in several processes is a file, and does so under `if __name__ == "__main__":`'
        ) from error


def _end_children(others: list[BaseProcess]) -> None:
    """None of ours outlives the command, however that ends; ``others`` are the caller's own."""
    children = [child for child in multiprocessing.active_children() if child not in others]
    for child in children:
        child.terminate()
    for child in children:
        child.join(5)
        if child.is_alive():
            child.kill()
