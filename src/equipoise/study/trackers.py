"""Log runs to experiment trackers, off by default. metrics.jsonl remains the record: a tracker gets a copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from equipoise.core.config import build, flatten
from equipoise.core.directory import Directory
from equipoise.core.extras import check_installed
from equipoise.core.output import warn
from equipoise.engine.results import StepResult
from equipoise.errors import unknown_name
from equipoise.study.console import RunListener, RunStart, Summary
from equipoise.study.tracker_backends import BACKENDS, TrackedRun, TrackerBackend


@dataclass(frozen=True)
class TrackerState:
    """What a tracker has received from a run. It is saved next to the tracker's files, so nothing is sent twice."""

    where: str
    id: str | None = None
    steps: int = 0
    epochs: int = 0
    """Of all stages of those steps."""
    finished: bool = False


class Tracker(RunListener):
    """Reports a run to one tracker; any failure there is a warning and ends the tracking, not the run."""

    def __init__(self, name: str) -> None:
        self.name, self.failed, self.epochs = name, False, 0
        self.backend: TrackerBackend | None = None

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.backend, self.failed = None, True
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            warn(
                f"equipoise: tracking with {self.name} stopped ({reason}): the run continues, "
                "and metrics.jsonl has all metrics"
            )

    def run(self, start: RunStart) -> None:
        self.close()
        if not self.failed:
            with self._guarded():
                self._open(start)

    def _open(self, start: RunStart) -> None:
        kind, settings = BACKENDS[self.name], start.settings
        self.directory, self.file = Directory(start.directory).sub("tracking"), f"{self.name}.json"
        self.directory.make_dir(self.name)
        state = TrackerState(kind.where())
        if self.directory.exists(self.file):
            saved = build(TrackerState, self.directory.read_json(self.file), self.name)
            state = saved if saved.where == kind.where() else state
        if state.finished:
            return
        name = f"{settings.dataset}-{settings.method}-seed{settings.seed}"
        # not every tracker accepts lists
        values = flatten(settings.identity()).items()
        plain = {key: str(value) if isinstance(value, list) else value for key, value in values}
        self.backend = kind(TrackedRun(name, plain, self.directory.path / self.name, state.id))
        missed = start.results[state.steps :]  # learned without this tracker, or before it was killed
        self.epochs = state.epochs + len(missed) * settings.train.epochs
        self._save(replace(state, id=self.backend.id))
        for result in missed:
            self.step(result)

    def _save(self, state: TrackerState) -> None:
        self.state = state
        self.directory.write_json(self.file, asdict(state))

    def _log(self, axis: str, at: int, figures: Mapping[str, Any], **received: Any) -> None:
        """Log metrics, then save what the tracker has received."""
        if self.backend is not None:
            with self._guarded():
                numbers = {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}
                self.backend.log(axis, at, self.epochs + self.state.steps + (axis == "step"), numbers)
                if received:
                    self._save(replace(self.state, **received))

    def stage(self, name: str, epochs: int, images: int, done: int) -> None:
        self.stage_name = name
        self.epochs += done

    def epoch(self, epoch: int, loss: float, lr: float) -> None:
        self.epochs += 1
        self._log("epoch", self.epochs, {f"loss/{self.stage_name}": loss, f"lr/{self.stage_name}": lr})

    def step(self, result: StepResult) -> None:
        figures = flatten({name: value for name, value in result.to_dict().items() if name != "step"})
        self._log("step", result.step, figures, steps=result.step, epochs=self.epochs)

    def done(self, results: Sequence[StepResult], summary: Summary, directory: Path) -> None:
        figures = {f"summary/{name}": value for name, value in summary.items()}
        self._log("step", len(results), figures, finished=True)
        self._close(complete=True)

    def close(self) -> None:
        self._close(complete=False)

    def _close(self, complete: bool) -> None:
        backend, self.backend = self.backend, None
        if backend is not None:
            with self._guarded():
                backend.finish(complete)


def make_trackers(names: str) -> list[Tracker]:
    """Return the trackers of a comma-separated list, without importing their packages."""
    chosen = dict.fromkeys(name.strip() for name in names.split(",") if name.strip())
    for name in chosen:
        if name not in BACKENDS:
            raise unknown_name("tracker", name, BACKENDS)
        for package in BACKENDS[name].packages:
            check_installed(package, "track", f"tracking with {name}")
    return [Tracker(name) for name in chosen]
