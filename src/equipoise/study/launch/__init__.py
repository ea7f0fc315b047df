"""Launchers of a comparison's runs: in this process, in several processes, on a Ray cluster, or as SLURM jobs.

A run continues from its directory wherever it is executed, so all launchers give the same results.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from equipoise.data.dataset import Dataset
from equipoise.engine.settings import Settings
from equipoise.engine.shared_training import SharedTraining
from equipoise.errors import EquipoiseError
from equipoise.study.console import RunListener
from equipoise.study.experiment import RunResult, load_data
from equipoise.study.process_group import RunTask, launch


@dataclass(frozen=True)
class Job:
    """A run to start or continue."""

    name: str
    """Label and seed, for people."""
    settings: Settings
    directory: Path
    trained: SharedTraining | None = field(default=None, kw_only=True)
    """What other runs have trained."""


@dataclass(frozen=True)
class RunStatus:
    """Progress of a run in another process."""

    name: str
    fraction: float
    """Fraction of its training that is done and saved, from 0 to 1."""
    position: str | None
    """The step and epoch; None while it is waiting."""


class LaunchListener(RunListener):
    """Receives the events of runs in this process, and the status of those in other processes."""

    group_listener: type[RunListener] = RunListener
    """Creates the listener of a run that a process group on this machine executes."""

    def running(self, runs: Sequence[RunStatus], seconds_left: float | None) -> None:
        """Receive the progress of runs in other processes."""


class DataCache:
    """Data sets, each loaded once for all runs with the same options."""

    def __init__(self, root: str | Path | None) -> None:
        self.root = root
        self._loaded: dict[str, Dataset] = {}

    def load(self, settings: Settings) -> Dataset:
        """Return the data set of a run."""
        key = json.dumps([settings.dataset, settings.data], sort_keys=True)
        if key not in self._loaded:
            self._loaded[key] = load_data(settings, self.root)
        return self._loaded[key]


Outcome = RunResult | EquipoiseError
Outcomes = Generator[tuple[int, Outcome], None, None]
"""The index of a job and its outcome. Closing the generator stops the runs in progress."""


class Launcher(Protocol):
    """Executes runs."""

    def launch(self, jobs: Sequence[Job], data: DataCache, listener: LaunchListener) -> Outcomes:
        """Execute all jobs; yield each outcome when it is known, in any order."""


@dataclass(frozen=True)
class Local:
    """Executes one run after another in this process."""

    trackers: Sequence[RunListener] = ()

    def launch(self, jobs: Sequence[Job], data: DataCache, listener: LaunchListener) -> Outcomes:
        for index, job in enumerate(jobs):
            local = job.settings.runtime.devices == 1  # loaded data and the screen cannot be sent to other processes
            load = partial(data.load, job.settings) if local else partial(load_data, job.settings, data.root)
            screen = (lambda: listener) if local else listener.group_listener
            outcome: Outcome
            try:
                outcome = launch(RunTask(job.settings, job.directory, load, screen, self.trackers, job.trained))
            except EquipoiseError as error:
                outcome = error
            yield index, outcome
