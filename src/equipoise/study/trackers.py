"""Adapters to experiment trackers, off by default. metrics.jsonl stays the truth: a tracker only hears of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from equipoise.core.config import build, flatten
from equipoise.core.files import read_json, write_json
from equipoise.engine.progress import ProgressListener, Start
from equipoise.errors import UsageError, unknown_name
from equipoise.study.tracker_backends import SERVICES, Run, Service


@dataclass(frozen=True)
class Told:
    """What a service knows of a run already, kept beside its files so that nothing is told twice."""

    where: str
    id: str | None = None
    steps: int = 0
    epochs: int = 0
    """Of all stages of those steps."""
    finished: bool = False


class Tracker(ProgressListener):
    """Tells one service of a run; whatever goes wrong there is a warning, and ends the telling, not the run."""

    def __init__(self, name: str) -> None:
        self.name, self.failed = name, False
        self.service: Service | None = None

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.service, self.failed = None, True
            why = " ".join(str(error).split())[:200] or type(error).__name__
            print(
                f"equipoise: tracking with {self.name} has stopped ({why}): the run goes on, "
                "and metrics.jsonl has every figure",
                file=sys.stderr,
            )

    def run(self, start: Start) -> None:
        self.close()
        if not self.failed:
            with self._telling():
                self._open(start)

    def _open(self, start: Start) -> None:
        kind, settings = SERVICES[self.name], start.settings
        folder = start.directory / "tracking" / self.name
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder.with_suffix(".json")
        told = build(Told, read_json(self.file), self.name) if self.file.exists() else Told(kind.where())
        if told.where != kind.where():
            told = Told(kind.where())
        if told.finished:
            return
        name = f"{settings.dataset}-{settings.method}-seed{settings.seed}"
        service = kind(Run(name, _plain(flatten(settings.identity())), folder, told.id))
        untold = start.rows[told.steps :]  # steps learned without this tracker, or killed before they could be told
        self.epochs = told.epochs + len(untold) * settings.train.epochs
        self.service = service
        self._tell(replace(told, id=service.id))
        for row in untold:
            self._row(service, row)

    def _tell(self, told: Told) -> None:
        self.told = told
        write_json(self.file, asdict(told))

    def _log(self, service: Service, axis: str, at: int, figures: Mapping[str, Any]) -> None:
        numbers = {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}
        service.log(axis, at, self.epochs + self.told.steps + (axis == "step"), numbers)

    def _row(self, service: Service, row: dict[str, Any]) -> None:
        self._log(service, "step", row["step"], flatten({name: row[name] for name in row if name != "step"}))
        self._tell(replace(self.told, steps=row["step"], epochs=self.epochs))

    def stage(self, name: str, epochs: int, images: int, done: int) -> None:
        self.at_stage = name
        if self.service is not None:
            self.epochs += done

    def epoch(self, epoch: int, loss: float, lr: float) -> None:
        if self.service is not None:
            self.epochs += 1
            with self._telling():
                figures = {f"loss/{self.at_stage}": loss, f"lr/{self.at_stage}": lr}
                self._log(self.service, "epoch", self.epochs, figures)

    def step(self, row: dict[str, Any]) -> None:
        if self.service is not None:
            with self._telling():
                self._row(self.service, row)

    def done(self, rows: Sequence[dict[str, Any]], summary: dict[str, float | None], directory: Path) -> None:
        if self.service is not None:
            with self._telling():
                figures = {f"summary/{name}": value for name, value in summary.items()}
                self._log(self.service, "step", len(rows), figures)
                self._tell(replace(self.told, finished=True))
                self._finish(whole=True)

    def close(self) -> None:
        with self._telling():
            self._finish(whole=False)

    def _finish(self, whole: bool) -> None:
        service, self.service = self.service, None
        if service is not None:
            service.finish(whole)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Lists as text: not every service takes them."""
    return {name: str(value) if isinstance(value, list) else value for name, value in settings.items()}


def make_trackers(names: str) -> list[Tracker]:
    """The trackers in a list with commas, none for an empty one; their packages are looked for, not imported."""
    chosen = dict.fromkeys(name.strip() for name in names.split(",") if name.strip())
    for name in chosen:
        if name not in SERVICES:
            raise unknown_name("tracker", name, SERVICES)
        for package in SERVICES[name].packages:
            if find_spec(package) is None:
                raise UsageError(f"tracking with {name} needs the package {package}: pip install 'equipoise[track]'")
    return [Tracker(name) for name in chosen]
