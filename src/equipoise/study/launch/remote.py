"""What launchers share whose runs are made by other processes: orders go out, and run directories tell the rest.

The directories must be the same ones for all machines, as on a shared file system.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from equipoise.data.dataset import Dataset
from equipoise.errors import EquipoiseError, RunError, UsageError
from equipoise.files import locked
from equipoise.signals import undisturbed
from equipoise.study import processes
from equipoise.study.experiment import Result
from equipoise.study.launch import Data, Job, Outcome, Outcomes, Watcher, Whereabouts
from equipoise.study.progress import Reporter, Together
from equipoise.study.recipe import Settings
from equipoise.study.report.runs import read_run
from equipoise.study.trackers import make_trackers

PATIENCE = 90.0
"""Seconds to wait for a directory that another process writes to: SLURM lets a cancelled job live for 30."""


@dataclass(frozen=True)
class Share:
    """What each run gets of a machine, and whom it tells."""

    cpus: int | None = None
    """None: as many as the run has threads, or 1."""
    gpus: float = 0
    """A process for each; a part of one lets runs share it."""
    track: str = ""
    """Trackers, with commas between them: the process that makes the run tells them."""

    def __post_init__(self) -> None:
        if self.cpus is not None and self.cpus < 1:
            raise UsageError(f"--cpus-per-run is {self.cpus}, but a run needs at least 1")
        if self.gpus < 0 or (self.gpus > 1 and self.gpus % 1):
            raise UsageError(f"--gpus-per-run is {self.gpus:g}: give a whole number, or a part of one as 0.5")
        make_trackers(self.track)


@dataclass(frozen=True)
class Order:
    """A job as another process gets it."""

    job: Job
    data_root: Path | None
    cpus: int
    gpus: float
    track: str

    @staticmethod
    def of(job: Job, data: Data, share: Share) -> Order:
        root = None if data.root is None else Path(data.root).absolute()
        runtime = job.settings.runtime
        devices = max(int(share.gpus), runtime.devices)
        cpus = share.cpus or (runtime.threads or 1) * devices
        runtime = replace(runtime, threads=max(cpus // devices, 1), devices=devices)
        settings = replace(job.settings, runtime=runtime)
        return Order(Job(job.name, settings, job.directory.absolute()), root, cpus, share.gpus, share.track)


def carry_out(order: Order) -> str | None:
    """Make the run in whatever process this is; returns why it could not be, in a sentence."""
    try:
        settings, directory = order.job.settings, order.job.directory
        if order.gpus:  # there may be none where the order was written
            settings = replace(settings, runtime=replace(settings.runtime, device="cuda"))
        _wait_until_free(directory)
        load, reporter = partial(_load, settings, order.data_root), partial(_trackers, order.track)
        processes.launch(processes.Work(settings, directory, load, reporter))
    except EquipoiseError as error:
        return str(error)
    return None


_data = cache(Data)  # a process may make several runs, one after another


def _load(settings: Settings, root: Path | None) -> Dataset:
    return _data(root).load(settings)


def _trackers(names: str) -> Reporter:
    return Together(*make_trackers(names))


def _wait_until_free(directory: Path) -> None:
    """Whoever made this run before may not know yet that it lost it: its machine was given up, or its job cancelled."""
    deadline = time.monotonic() + PATIENCE
    while directory.exists() and time.monotonic() < deadline:
        try:
            with locked(directory):
                return
        except RunError:
            time.sleep(1)


class Remote(ABC):
    """Runs that other processes make, some at a time."""

    def __init__(self, share: Share) -> None:
        self.share = share

    @abstractmethod
    def submit(self, orders: Mapping[int, Order]) -> None:
        """Hand the orders out."""

    @abstractmethod
    def ended(self) -> Iterator[tuple[int, str | None]]:
        """Wait a moment; then the orders that are over, and why if they failed."""

    @abstractmethod
    def stop(self) -> None:
        """Cancel what is not over, and leave nothing behind."""

    def launch(self, jobs: Sequence[Job], data: Data, watcher: Watcher) -> Outcomes:
        waiting = dict(enumerate(jobs))
        for index, job in enumerate(jobs):
            if (job.directory / "summary.json").exists():
                yield index, _outcome(waiting.pop(index), None, watcher)
        if not waiting:
            return
        watch = Watch(list(waiting.values()))
        try:
            self.submit({index: Order.of(job, data, self.share) for index, job in waiting.items()})
            while waiting:
                for index, error in self.ended():
                    yield index, _outcome(waiting.pop(index), error, watcher)
                watcher.under_way(*watch.look(waiting.values()))
        finally:
            with undisturbed():
                self.stop()


def _outcome(job: Job, error: str | None, watcher: Watcher) -> Outcome:
    """What the run's directory says of it."""
    if error is not None:
        return RunError(error)
    try:
        run = read_run(job.directory)
        if run.summary is None:
            raise RunError("it is not finished")
    except RunError as why:
        return RunError(f"the run in {job.directory} cannot be read ({why}): remove the directory to start anew")
    watcher.done(run.rows, run.summary, job.directory)
    return Result(job.directory, run.rows, run.summary)


class Watch:
    """Looks into run directories, and foresees when all will be done."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._untouched = {job.directory: _touched(job) for job in jobs}
        self._began, self._share = time.monotonic(), sum(_share(job)[0] for job in jobs)

    def look(self, waiting: Iterable[Job]) -> tuple[list[Whereabouts], float | None]:
        """Where the jobs are that are not over, and the seconds until they are."""
        runs = []
        for job in waiting:
            share, place = _share(job)
            taken_up = _touched(job) != self._untouched[job.directory]
            runs.append(Whereabouts(job.name, share, place if taken_up else None))
        to_do = sum(1 - run.share for run in runs)
        done = len(self._untouched) - to_do - self._share
        seconds = time.monotonic() - self._began
        return runs, seconds * to_do / done if done > 0 else None


def _touched(job: Job) -> int:
    """When the run was last taken up, by the clock of the file system."""
    lock = job.directory / ".lock"
    return lock.stat().st_mtime_ns if lock.exists() else 0


def _share(job: Job) -> tuple[float, str]:
    """How much of a run is on disk, every step counted alike, and where it is."""
    try:
        steps = len(json.loads((job.directory / "config.json").read_text())["sizes"])
        rows = job.directory / "metrics.jsonl"
        done = len(rows.read_text().splitlines()) if rows.exists() else 0
        under_way = job.directory / "checkpoint" / "step" / "stages.json"
        stages = json.loads(under_way.read_text())["stages"] if under_way.exists() else []
    except (OSError, ValueError, KeyError):  # not there yet, or being replaced
        return 0.0, "starting"
    epochs = job.settings.train.for_step(done + 1).epochs
    learned = min(stages[0]["epochs"], epochs) if stages else 0
    stage = f"stage {len(stages)}" if len(stages) > 1 else f"epoch {learned}/{epochs}"
    return (done + learned / epochs) / steps, f"step {min(done + 1, steps)}/{steps} {stage}"
