"""Progress of a run, for people and programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape

from equipoise.core.output import print_json
from equipoise.engine.metrics import TOP1, metrics_for
from equipoise.engine.progress import ProgressBar, duration
from equipoise.engine.results import StepResult
from equipoise.engine.settings import Settings
from equipoise.learn.stage import TrainListener
from equipoise.pages.text import one_decimal
from equipoise.study.tables import figures_of

Summary = Mapping[str, float | None]


@dataclass(frozen=True)
class RunStart:
    """Facts about a run that starts or continues."""

    settings: Settings
    sizes: Sequence[int]
    """Classes of each step."""
    workloads: Sequence[int]
    """Images that each step will train on, over all epochs."""
    results: Sequence[StepResult]
    """Steps that are finished already."""
    directory: Path
    epochs_done: int
    """Finished epochs of the interrupted step."""


class RunListener(TrainListener):
    """Receives the events of a run; override what you need."""

    def run(self, start: RunStart) -> None:
        """A run starts or continues."""

    def step(self, result: StepResult) -> None:
        """A step is finished and saved."""

    def done(self, results: Sequence[StepResult], summary: Summary, directory: Path) -> None:
        """The run is finished."""

    def close(self) -> None:
        """Clean up the screen."""


class ListenerGroup(RunListener):
    """Several listeners as one."""

    def __init__(self, *listeners: RunListener) -> None:
        for event in ("run", "stage", "batch", "epoch", "step", "done", "close"):
            setattr(self, event, partial(_call_all, [getattr(listener, event) for listener in listeners]))


def _call_all(functions: Sequence[Callable[..., None]], *arguments: Any) -> None:
    for function in functions:
        function(*arguments)


class JsonRunPrinter(RunListener):
    """Prints one JSON object per line: each step's result, then the summary."""

    def run(self, start: RunStart) -> None:
        for result in start.results:
            self.step(result)

    def step(self, result: StepResult) -> None:
        print_json(result.to_dict())

    def done(self, results: Sequence[StepResult], summary: Summary, directory: Path) -> None:
        print_json({"summary": dict(summary), "directory": str(directory)})


HEADINGS = ("step", "classes", "top-1", "before", "top-5", "γ", "e(n)", "e(o,n)", "e(o,o)", "time")
LINE = "{:>6}{:>9}{:>7}{:>8}{:>7}{:>7}{:>6}{:>8}{:>8}{:>8}"
WORDS = {"last": "last", "avg": "average without step 1", "avg+1": "with it", "forgets": "forgetting"}
LEGEND = (
    "before: top-1 without the correction; e(n): new images misclassified; e(o,n): old images predicted as new "
    "classes; e(o,o): old images predicted as other old classes"
)


class RunTable(ProgressBar, RunListener):
    """Prints a line per step, with a progress bar in between."""

    def run(self, start: RunStart) -> None:
        settings, sizes, results = start.settings, start.sizes, start.results
        if not self.quiet:
            self.console.print(
                f"[bold]{settings.method}[/] on {settings.dataset}: {sum(sizes)} classes in {len(sizes)} steps, "
                f"recipe {escape(settings.recipe)}, seed {settings.seed}"
            )
            if held := settings.stream.validation:
                self.console.print(f"  evaluated on {held} held-out training images per class, not on test images")
            if results or start.epochs_done:
                more = f" and {start.epochs_done} epochs of the next" if start.epochs_done else ""
                done = f"step {len(results)}{more}"
                self.console.print(f"  continuing the run in {escape(str(start.directory))} after {done}")
            self._print_head()
        self.start(start.workloads, len(results))
        for result in results:
            self.step(result)

    def step(self, result: StepResult) -> None:
        self.at_step = result.step + 1
        if not self.quiet:
            self._print_row(result, len(self.workloads))

    def _print_head(self) -> None:
        self.console.print(LINE.format(*HEADINGS), style="bold")

    def _print_row(self, result: StepResult, steps: int) -> None:
        errors = result.errors
        cells = (
            f"{result.step}/{steps}",
            result.seen,
            one_decimal(result.accuracy),
            one_decimal(result.accuracy_uncorrected if result.corrected else None),
            one_decimal(result.accuracy_top5),
            "–" if result.gamma is None else f"{result.gamma:.3f}",
            *(errors.e_n, errors.e_on, errors.e_oo),
            duration(result.seconds),
        )
        self.console.print(LINE.format(*cells))

    def done(self, results: Sequence[StepResult], summary: Summary, directory: Path) -> None:
        self.close()
        self._print_summary(results, summary)
        self.console.print(f"  files: {escape(str(directory))}", soft_wrap=True)
        self.console.print()

    def _print_summary(self, results: Sequence[StepResult], summary: Summary) -> None:
        for metric in metrics_for(results[-1].seen):
            figures = figures_of(metric).items()
            words = ", ".join(f"{WORDS[heading]} {one_decimal(summary[key])}" for heading, key in figures)
            title = "" if metric is TOP1 else f"{metric.title}: "
            self.console.print(f"  [bold]{title}{words}[/]", soft_wrap=True)
        if not self.quiet:
            self.console.print(f"  {LEGEND}", style="dim", soft_wrap=True)


def make_listener(json_lines: bool, quiet: bool) -> RunListener:
    """Return the listener that ``equipoise run`` uses."""
    return JsonRunPrinter() if json_lines else RunTable(quiet)
