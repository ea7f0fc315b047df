"""Base class of launchers that use other processes: send jobs to them and read the run directories.

All machines must see the same directories, as on a shared file system.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from equipoise.core.directory import Directory
from equipoise.core.signals import defer_signals
from equipoise.data.dataset import Dataset
from equipoise.engine.checkpoint import read_stages
from equipoise.engine.settings import Settings
from equipoise.errors import EquipoiseError, RunError, UsageError
from equipoise.learn.runtime import keep_freed_memory
from equipoise.study.experiment import RunResult
from equipoise.study.launch import DataCache, Job, LaunchListener, Outcome, Outcomes, RunStatus
from equipoise.study.process_group import RunTask, launch
from equipoise.study.report.runs import read_run
from equipoise.study.trackers import make_trackers

PATIENCE = 90.0
"""Seconds to wait for a directory that another process writes to; SLURM lets a cancelled job live for 30."""


@dataclass(frozen=True)
class RunResources:
    """Resources of each run, and its trackers."""

    cpus: int | None = None
    """CPUs per run (None: as many as the run has threads, or 1)."""
    gpus: float = 0
    """GPUs per run, with one process each; a fraction lets runs share a GPU."""
    track: str = ""
    """Comma-separated trackers."""

    def __post_init__(self) -> None:
        if self.cpus is not None and self.cpus < 1:
            raise UsageError(f"--cpus-per-run must be at least 1, got {self.cpus}")
        if self.gpus < 0 or (self.gpus > 1 and self.gpus % 1):
            raise UsageError(f"--gpus-per-run must be a whole number or a fraction below 1, got {self.gpus:g}")
        make_trackers(self.track)


@dataclass(frozen=True)
class RemoteJob(Job):
    """A job as it is sent to another process."""

    data_root: Path | None
    cpus: int
    gpus: float
    track: str

    @staticmethod
    def of(job: Job, data: DataCache, resources: RunResources) -> RemoteJob:
        root = None if data.root is None else Path(data.root).absolute()
        runtime = job.settings.runtime
        devices = max(int(resources.gpus), runtime.devices)
        cpus = resources.cpus or (runtime.threads or 1) * devices
        runtime = replace(runtime, threads=max(cpus // devices, 1), devices=devices)
        net = job.settings.net
        if net.weights is not None:  # another process may have another working directory
            net = replace(net, weights=str(Path(net.weights).absolute()))
        settings = replace(job.settings, runtime=runtime, net=net)
        trained = job.trained and replace(job.trained, path=job.trained.path.absolute())
        place, gpus, track = job.directory.absolute(), resources.gpus, resources.track
        return RemoteJob(job.name, settings, place, root, cpus, gpus, track, trained=trained)


def execute_job(job: RemoteJob) -> str | None:
    """Execute a run in this process, which was started for it; return the error message if it fails."""
    keep_freed_memory()
    try:
        settings = job.settings
        if job.gpus:  # the machine that sent it may have none
            settings = replace(settings, runtime=replace(settings.runtime, device="cuda"))
        _wait_until_free(job.directory)
        load, trackers = partial(_load, settings, job.data_root), make_trackers(job.track)
        launch(RunTask(settings, job.directory, load, listeners=trackers, trained=job.trained))
    except EquipoiseError as error:
        return str(error)
    return None


_data = cache(DataCache)  # a process may execute several runs, one after another


def _load(settings: Settings, root: Path | None) -> Dataset:
    return _data(root).load(settings)


def _wait_until_free(directory: Path) -> None:
    """Wait for the process that executed this run before: its job may be cancelled but still running."""
    deadline = time.monotonic() + PATIENCE
    while Directory(directory).is_file(".lock") and time.monotonic() < deadline:
        try:
            with Directory(directory).lock():
                return
        except RunError:
            time.sleep(1)


class Remote(ABC):
    """Executes runs in other processes."""

    def __init__(self, resources: RunResources) -> None:
        self.resources = resources

    @abstractmethod
    def submit(self, jobs: Mapping[int, RemoteJob]) -> None:
        """Send the jobs."""

    @abstractmethod
    def ended(self) -> Iterator[tuple[int, str | None]]:
        """Wait a moment, then yield the jobs that have ended, with the error if they failed."""

    @abstractmethod
    def stop(self) -> None:
        """Cancel jobs that have not ended, and clean up."""

    def launch(self, jobs: Sequence[Job], data: DataCache, listener: LaunchListener) -> Outcomes:
        waiting = dict(enumerate(jobs))
        for index, job in enumerate(jobs):
            if Directory(job.directory).is_file("summary.json"):
                yield index, _outcome(waiting.pop(index), None, listener)
        if not waiting:
            return
        monitor = RunMonitor(list(waiting.values()))
        try:
            self.submit({index: RemoteJob.of(job, data, self.resources) for index, job in waiting.items()})
            while waiting:
                for index, error in self.ended():
                    yield index, _outcome(waiting.pop(index), error, listener)
                listener.running(*monitor.look(waiting.values()))
        finally:
            with defer_signals():
                self.stop()


def _outcome(job: Job, error: str | None, listener: LaunchListener) -> Outcome:
    """Read the outcome of a run from its directory."""
    if error is not None:
        return RunError(error)
    try:
        run = read_run(job.directory)
        if run.summary is None:
            raise RunError("it is not finished")
    except RunError as why:
        return RunError(f"cannot read the run in {job.directory} ({why}): remove the directory to start again")
    listener.done(run.steps, run.summary, job.directory)
    return RunResult(job.directory, run.steps, run.summary)


class RunMonitor:
    """Reads run directories and predicts when all runs will be done."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._untouched = {job.directory: _locked_at(job) for job in jobs}
        self._started, self._done = time.monotonic(), sum(_progress(job)[0] for job in jobs)

    def look(self, waiting: Iterable[Job]) -> tuple[list[RunStatus], float | None]:
        """Return the status of the jobs that have not ended, and the seconds until they will."""
        runs = []
        for job in waiting:
            fraction, position = _progress(job)
            started = _locked_at(job) != self._untouched[job.directory]
            runs.append(RunStatus(job.name, fraction, position if started else None))
        to_do = sum(1 - run.fraction for run in runs)
        done = len(self._untouched) - to_do - self._done
        seconds = time.monotonic() - self._started
        return runs, seconds * to_do / done if done > 0 else None


def _locked_at(job: Job) -> int:
    """Return when a process last locked the run, by the clock of the file system."""
    return Directory(job.directory).modified_ns(".lock") or 0


def _progress(job: Job) -> tuple[float, str]:
    """Return the fraction of a run that is on disk, counting all steps alike, and its position."""
    directory = Directory(job.directory)
    try:
        steps = max(len(directory.read_json("config.json")["sizes"]), 1)
        done = directory.read_text("metrics.jsonl").count("\n") if directory.exists("metrics.jsonl") else 0
        stages = read_stages(directory.sub("checkpoint/step")).stages
    except (RunError, KeyError, TypeError):  # not there yet, or being replaced
        return 0.0, "starting"
    epochs = job.settings.train.for_step(done + 1).epochs
    learned = min(stages[0].epochs, epochs) if stages else 0
    stage = f"stage {len(stages)}" if len(stages) > 1 else f"epoch {learned}/{epochs}"
    return min((done + learned / epochs) / steps, 1.0), f"step {min(done + 1, steps)}/{steps} {stage}"
