"""How the runs of a comparison are made: one after another in this process, by a Ray cluster, or as SLURM jobs.

Whoever makes a run, it lies in its directory and goes on from there, so all launchers come to the same figures.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from equipoise.data.dataset import Dataset
from equipoise.errors import EquipoiseError
from equipoise.study import processes
from equipoise.study.experiment import Result, load_data
from equipoise.study.progress import Reporter, Together
from equipoise.study.recipe import Settings


@dataclass(frozen=True)
class Job:
    """A run to be made, or to be taken up."""

    name: str
    """What people call it: its label and its seed."""
    settings: Settings
    directory: Path


@dataclass(frozen=True)
class Whereabouts:
    """How far a run has come that another process makes."""

    name: str
    share: float
    """Of its training that is done and saved, from 0 to 1."""
    place: str | None
    """The step and epoch; None while nobody has taken it up."""


class Watcher(Reporter):
    """Hears of the runs of this process as a reporter does, and of those of others now and then."""

    deputy: type[Reporter] = Reporter
    """Who hears of a run in its stead that several processes of this machine make together."""

    def under_way(self, runs: Sequence[Whereabouts], seconds_left: float | None) -> None:
        """So far have those come that are not over."""


class Data:
    """Data sets, each loaded once for all runs that have the same options of it."""

    def __init__(self, root: str | Path | None) -> None:
        self.root = root
        self._loaded: dict[str, Dataset] = {}

    def load(self, settings: Settings) -> Dataset:
        key = json.dumps([settings.dataset, settings.data], sort_keys=True)
        if key not in self._loaded:
            self._loaded[key] = load_data(settings, self.root)
        return self._loaded[key]


Outcome = Result | EquipoiseError
Outcomes = Generator[tuple[int, Outcome], None, None]
"""The place of a job in the list, and what came of it; to be closed, which stops what is under way."""


class Launcher(Protocol):
    """Makes runs."""

    def launch(self, jobs: Sequence[Job], data: Data, watcher: Watcher) -> Outcomes:
        """Make every job, and tell of each when it is over, in whatever order that is."""


class Local:
    """One run after another, in this process."""

    def __init__(self, trackers: Sequence[Reporter] = ()) -> None:
        self.trackers = trackers

    def launch(self, jobs: Sequence[Job], data: Data, watcher: Watcher) -> Outcomes:
        for index, job in enumerate(jobs):
            outcome: Outcome
            try:
                outcome = processes.launch(self._work(job, data, watcher))
            except EquipoiseError as error:
                outcome = error
            yield index, outcome

    def _work(self, job: Job, data: Data, watcher: Watcher) -> processes.Work:
        load, reporter = partial(data.load, job.settings), partial(Together, watcher, *self.trackers)
        if job.settings.runtime.devices > 1:  # what is loaded here, or on the screen, cannot be handed to others
            load = partial(load_data, job.settings, data.root)
            reporter = partial(_speaker, watcher.deputy, self.trackers)
        return processes.Work(job.settings, job.directory, load, reporter)


def _speaker(kind: type[Reporter], trackers: Sequence[Reporter]) -> Together:
    return Together(kind(), *trackers)
