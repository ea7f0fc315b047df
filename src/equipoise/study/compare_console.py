"""Progress of a comparison on the console."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from equipoise.engine.progress import duration
from equipoise.engine.results import StepResult
from equipoise.study.compare import CompareListener, ComparisonStatus
from equipoise.study.console import RunStart, RunTable, Summary
from equipoise.study.launch import RunStatus
from equipoise.study.tables import comparison

PAUSE = 10.0
"""Seconds between two lines about running runs, in a pipe."""


class CompareTable(RunTable, CompareListener):
    """Prints each run's table; a terminal shows the comparison above the progress bar, a pipe gets a line per run."""

    group_listener = RunTable
    board: RenderableType | None = None

    def compared(self, status: ComparisonStatus) -> None:
        if not self.console.is_terminal:
            if status.done:
                self.console.print(str(status), soft_wrap=True)
                self.console.print()
            return
        line = Text(f"  {status}", style="dim")
        table = comparison(status.table, self.console, status.pending, status.metric)
        self.board = Group("", table, line)
        if len(self.console.render_lines(self.board)) > self.console.height - 3:  # rich would cut off the progress bar
            self.board = line

    def run(self, start: RunStart) -> None:
        super().run(start)
        if self.progress is not None and self.board is not None:
            board, bars = self.board, self.progress.get_renderables
            self.progress.get_renderables = lambda: (board, *bars())  # type: ignore[method-assign]


class LaunchBoard(CompareTable):
    """For runs in other processes: prints each run's table when it is done, and the progress of the others."""

    live: Live | None = None
    runs: Sequence[RunStatus] = ()
    seconds_left: float | None = None
    last_line = 0.0

    def compared(self, status: ComparisonStatus) -> None:
        self.latest = status
        left = self.seconds_left if status.done < status.runs else None
        super().compared(replace(status, seconds_left=left))
        if self.console.is_terminal:
            if self.live is None:
                self.live = Live(console=self.console, transient=True, auto_refresh=False)
                self.live.start()
            self.live.update(Group(self.board or "", *self._positions()), refresh=True)

    def running(self, runs: Sequence[RunStatus], seconds_left: float | None) -> None:
        self.runs, self.seconds_left = runs, seconds_left
        if self.console.is_terminal:
            self.compared(self.latest)
        elif runs and time.monotonic() - self.last_line > PAUSE:
            self.last_line = time.monotonic()
            positions = [f"{run.name}: {run.position or 'waiting'}" for run in runs]
            left = [] if seconds_left is None else [f"about {duration(seconds_left)} left"]
            self.console.print("  " + "; ".join([*positions, *left]), style="dim", soft_wrap=True)

    def _positions(self) -> list[Text]:
        """Return as many runs as there is room for, and the number of the others."""
        positions = [f"{run.name}: {run.position}" for run in self.runs if run.position]
        room = max(self.console.height - len(self.console.render_lines(self.board or "")) - 3, 1)
        more = len(self.runs) - min(len(positions), room)
        shown = [*positions[:room], *([f"{more} more" if positions else f"{more} waiting"] if more else [])]
        return [Text(f"  {position}", style="dim") for position in shown]

    def done(self, results: Sequence[StepResult], summary: Summary, directory: Path) -> None:
        self.console.print(f"[bold]{escape(str(directory))}[/]", soft_wrap=True)
        self._print_head()
        for result in results:
            self._print_row(result, len(results))
        self._print_summary(results, summary)
        self.console.print()

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None
