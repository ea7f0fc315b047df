"""What a person (or a program) sees while a run goes on."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from equipoise.study.recipe import Settings


@dataclass(frozen=True)
class Start:
    """What is known when a run starts."""

    settings: Settings
    sizes: Sequence[int]
    """Classes of each step."""
    loads: Sequence[int]
    """Images each step will train on, epochs counted."""
    rows: Sequence[dict[str, Any]]
    """The figures of steps already done."""
    directory: Path
    epochs_done: int
    """Of the step that was under way."""


class Reporter:
    """Says nothing. The others override what they have to say."""

    def run(self, start: Start) -> None:
        """A run starts, or goes on."""

    def stage(self, name: str, epochs: int, images: int, done: int) -> None:
        """A training stage starts, ``done`` epochs of it already learned."""

    def batch(self, images: int) -> None:
        """So many images were trained on."""

    def epoch(self, epoch: int, loss: float, lr: float) -> None:
        """An epoch is done and saved."""

    def step(self, row: dict[str, Any]) -> None:
        """A step is done and saved."""

    def done(self, rows: Sequence[dict[str, Any]], summary: dict[str, float | None], directory: Path) -> None:
        """The run is done."""

    def close(self) -> None:
        """Leave the screen as it was found."""


class Together(Reporter):
    """Several reporters as one."""

    def __init__(self, *reporters: Reporter) -> None:
        self.reporters = reporters

    def run(self, start: Start) -> None:
        for reporter in self.reporters:
            reporter.run(start)

    def stage(self, name: str, epochs: int, images: int, done: int) -> None:
        for reporter in self.reporters:
            reporter.stage(name, epochs, images, done)

    def batch(self, images: int) -> None:
        for reporter in self.reporters:
            reporter.batch(images)

    def epoch(self, epoch: int, loss: float, lr: float) -> None:
        for reporter in self.reporters:
            reporter.epoch(epoch, loss, lr)

    def step(self, row: dict[str, Any]) -> None:
        for reporter in self.reporters:
            reporter.step(row)

    def done(self, rows: Sequence[dict[str, Any]], summary: dict[str, float | None], directory: Path) -> None:
        for reporter in self.reporters:
            reporter.done(rows, summary, directory)

    def close(self) -> None:
        for reporter in self.reporters:
            reporter.close()


class JsonLines(Reporter):
    """One JSON object a line: each step's row, then the summary."""

    def run(self, start: Start) -> None:
        for row in start.rows:
            self.step(row)

    def step(self, row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)

    def done(self, rows: Sequence[dict[str, Any]], summary: dict[str, float | None], directory: Path) -> None:
        print(json.dumps({"summary": summary, "directory": str(directory)}), flush=True)


COLUMNS = {
    "step": 6,
    "classes": 9,
    "top-1": 7,
    "before": 8,
    "top-5": 7,
    "γ": 7,
    "e(n)": 6,
    "e(o,n)": 8,
    "e(o,o)": 8,
    "time": 8,
}
LEGEND = (
    "before: top-1 without the correction; e(n): new images told wrong; e(o,n): old ones taken for new classes; "
    "e(o,o): for other old ones"
)


class Bar(Reporter):
    """How far training has come and how long it will take: a bar on a terminal, a line now and then in a pipe."""

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.quiet = quiet
        self.progress: Progress | None = None

    def start(self, loads: Sequence[int], done: int = 0) -> None:
        """``loads`` are the images each step trains on, epochs counted; ``done`` steps are learned."""
        self.loads, self.at_step = loads, done + 1
        self.total, self.passed = sum(loads), sum(loads[:done])
        self.began, self.began_at = time.monotonic(), self.passed
        self.last_line = 0.0
        if self.console.is_terminal and not self.quiet and done < len(loads):
            self.progress = Progress(
                TextColumn("  {task.description}"),
                BarColumn(bar_width=28),
                TextColumn("{task.fields[facts]}"),
                console=self.console,
                transient=True,
            )
            self.task = self.progress.add_task("starting", total=self.total, completed=self.passed, facts="")
            self.progress.start()

    def stage(self, name: str, epochs: int, images: int, done: int) -> None:
        self.stage_name, self.epochs, self.at_epoch, self.loss = name, epochs, done, float("nan")
        if name == "train":
            self.passed = sum(self.loads[: self.at_step - 1]) + done * images
            self.began, self.began_at = time.monotonic(), self.passed

    def batch(self, images: int) -> None:
        self.passed += images
        if self.progress is not None:
            self.progress.update(self.task, completed=self.passed, description=self._where(1), facts=self._facts())

    def epoch(self, epoch: int, loss: float, lr: float) -> None:
        self.at_epoch, self.loss = epoch, loss
        now = time.monotonic()
        if self.progress is None and not self.quiet and now - self.last_line > 5:
            self.last_line = now
            self.console.print(f"  {self._where(0)} {self._facts()}", style="dim")

    def _where(self, ahead: int) -> str:
        epoch = min(self.at_epoch + ahead, self.epochs)
        step = f"step {self.at_step}/{len(self.loads)} " if len(self.loads) > 1 else ""
        stage = "" if self.stage_name == "train" else f"{self.stage_name} "
        return f"{step}{stage}epoch {epoch}/{self.epochs}"

    def _facts(self) -> str:
        rate = (self.passed - self.began_at) / max(time.monotonic() - self.began, 1e-6)
        left = duration(max(self.total - self.passed, 0) / rate) if rate > 0 else "…"
        loss = "" if self.loss != self.loss else f"loss {self.loss:.3f}  "
        return f"{loss}{rate:,.0f} images/s  {left} left"

    def close(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None


class Table(Bar):
    """A line a step, and the bar in between."""

    def run(self, start: Start) -> None:
        settings, sizes, rows = start.settings, start.sizes, start.rows
        if not self.quiet:
            self.console.print(
                f"[bold]{settings.method}[/] on {settings.dataset}: {sum(sizes)} classes in {len(sizes)} steps, "
                f"recipe {escape(settings.recipe)}, seed {settings.seed}"
            )
            if aside := settings.stream.validation:
                self.console.print(f"  judged by {aside} training images of each class kept aside, not by test images")
            if rows or start.epochs_done:
                done = f" and {start.epochs_done} epochs of the next" if start.epochs_done else ""
                after = f"step {len(rows)}{done}"
                self.console.print(
                    f"  {escape(str(start.directory))} holds this run after {after}: going on from there"
                )
            self._head()
        self.start(start.loads, len(rows))
        for row in rows:
            self.step(row)

    def step(self, row: dict[str, Any]) -> None:
        self.at_step = row["step"] + 1
        if not self.quiet:
            self._row(row, len(self.loads))

    def _head(self) -> None:
        self.console.print(_line(tuple(COLUMNS)), style="bold")

    def _row(self, row: dict[str, Any], steps: int) -> None:
        corrected = row["gamma"] is not None or row["top1_uncorrected"] != row["top1"]
        cells = (
            f"{row['step']}/{steps}",
            str(row["seen"]),
            f"{row['top1']:.1f}",
            f"{row['top1_uncorrected']:.1f}" if corrected else "–",
            f"{row['top5']:.1f}",
            "–" if row["gamma"] is None else f"{row['gamma']:.3f}",
            *(str(row[name]) for name in ("e_n", "e_on", "e_oo")),
            duration(row["seconds"]),
        )
        self.console.print(_line(cells))

    def done(self, rows: Sequence[dict[str, Any]], summary: dict[str, float | None], directory: Path) -> None:
        self.close()
        self._sum_up(summary)
        self.console.print(f"  files: {escape(str(directory))}\n", soft_wrap=True)

    def _sum_up(self, summary: Mapping[str, float | None]) -> None:
        self.console.print(f"  [bold]{summed_up(summary)}[/]", soft_wrap=True)
        if not self.quiet:
            self.console.print(f"  {LEGEND}", style="dim", soft_wrap=True)


def summed_up(summary: Mapping[str, float | None]) -> str:
    """What a run came to, in a line."""
    parts = {
        "last": "last",
        "average without step 1": "average_without_first",
        "with it": "average_with_first",
        "forgetting": "forgetting",
    }
    return ", ".join(f"{words} {_figure(summary[name])}" for words, name in parts.items())


def _line(cells: Sequence[str]) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True))


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(7.2), duration(200), duration(70_000)
    ('7 s', '3:20', '19 h 26 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60} h {minutes % 60} min"


def make_reporter(json_lines: bool, quiet: bool) -> Reporter:
    if json_lines:
        return JsonLines()
    return Table(quiet, Console(file=sys.stdout, highlight=False))
