"""Methods, step counts and seeds side by side: each cell is a run directory of its own, so nothing is done twice.

compare.json  the figures of every run, and their means and standard deviations
compare.csv   a line a run and step, for whatever reads tables
compare.tex   the means, for a paper
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from equipoise.errors import EquipoiseError, UsageError
from equipoise.files import write_json, write_text
from equipoise.study.experiment import Experiment, Result
from equipoise.study.launch import Data, Job, Launcher, Local, Watcher, Whereabouts
from equipoise.study.processes import refuse_company
from equipoise.study.progress import Start, Table, duration
from equipoise.study.publish import comparison_csv, comparison_latex
from equipoise.study.recipe import Settings, resolve
from equipoise.study.rundir import RunDir
from equipoise.study.tables import FIGURES, comparison, in_steps

FORMAT = 1
PAUSE = 10.0
"""Seconds between two lines on runs under way, in a pipe."""
Overrides = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    label: str
    """What the table calls it; runs that differ only in their seed share it."""
    variant: str
    """The method, and what was changed in it."""
    settings: Settings

    @property
    def name(self) -> str:
        return f"{self.label}, seed {self.settings.seed}"

    @property
    def steps(self) -> str:
        """As the command line takes them: 5, or 50,10x5."""
        steps = self.settings.stream.steps
        return ",".join(map(str, steps)) if isinstance(steps, tuple) else str(steps)

    @property
    def directory(self) -> Path:
        """Where the run lies in the comparison's directory."""
        return Path(_slug(self.variant), f"steps-{_slug(self.steps.replace(',', '_'))}", f"seed-{self.settings.seed}")


def _slug(text: str) -> str:
    """A folder's name.

    >>> _slug("wa, clip = false"), _slug("ce+kd")
    ('wa-clip-false', 'ce+kd')
    """
    return re.sub(r"[^\w+.-]+", "-", text)


def plan(
    dataset: str,
    methods: Sequence[str],
    seeds: Sequence[int],
    steps: Sequence[int | str] = (),
    *,
    recipe: str | None = None,
    overrides: Overrides | None = None,
) -> list[Cell]:
    """Every method in every number of steps (none given: the recipe's) with every seed.

    All runs of one seed come before the next seed's, so that a comparison that stops early compares like with like.
    """
    sections = overrides or {}
    streams = {str(value): with_setting(sections, "stream", "steps", value) for value in steps} or {"": sections}
    return [
        Cell(
            f"{method}, {in_steps(name)}" if len(streams) > 1 else method,
            method,
            resolve(dataset, method, recipe, seed, streams[name]),
        )
        for seed in dict.fromkeys(seeds)
        for method in dict.fromkeys(methods)
        for name in streams
    ]


def with_setting(overrides: Overrides, section: str, name: str, value: Any) -> Overrides:
    return {**overrides, section: {**overrides.get(section, {}), name: value}}


@dataclass(frozen=True)
class Standing:
    """How far a comparison has come."""

    table: dict[str, Any]
    """What compare.json holds."""
    to_come: Sequence[str]
    """Labels of runs that are still to be made."""
    done: int
    runs: int
    seconds_left: float | None

    def __str__(self) -> str:
        left = f", about {duration(self.seconds_left)} left" if self.seconds_left else ""
        failed = f" ({len(self.table['failed'])} failed)" if self.table["failed"] else ""
        return f"{self.done} of {self.runs} runs done{failed}{left}"


class Onlooker(Watcher):
    """Hears of every run, and of the comparison after each; says only what failed."""

    def standing(self, standing: Standing) -> None:
        """A comparison starts, or one more of its runs is over."""

    def failed(self, cell: Cell, error: EquipoiseError) -> None:
        """A run could not be finished."""
        print(f"equipoise: {cell.name} failed: {error}", file=sys.stderr)


class SideBySide(Table, Onlooker):
    """Each run's table; on a terminal the comparison so far stands above the progress bar, in a pipe a line a run."""

    deputy = Table
    board: RenderableType | None = None

    def standing(self, standing: Standing) -> None:
        if not self.console.is_terminal:
            if standing.done:
                self.console.print(f"{standing}\n", soft_wrap=True)
            return
        line = Text(f"  {standing}", style="dim")
        table = comparison(standing.table, self.console, standing.to_come)
        self.board = Group("", table, line)
        if len(self.console.render_lines(self.board)) > self.console.height - 3:  # rich would cut the progress bar off
            self.board = line

    def run(self, start: Start) -> None:
        super().run(start)
        if self.progress is not None and self.board is not None:
            board, bars = self.board, self.progress.get_renderables
            self.progress.get_renderables = lambda: (board, *bars())  # type: ignore[method-assign]


class Board(SideBySide):
    """For runs that others make: each one's table when it is done, and where the others are."""

    live: Live | None = None
    runs: Sequence[Whereabouts] = ()
    seconds_left: float | None = None
    last_line = 0.0

    def standing(self, standing: Standing) -> None:
        self.latest = standing
        left = self.seconds_left if standing.done < standing.runs else None
        super().standing(replace(standing, seconds_left=left))
        if self.console.is_terminal:
            if self.live is None:
                self.live = Live(console=self.console, transient=True, auto_refresh=False)
                self.live.start()
            self.live.update(Group(self.board or "", *self._places()), refresh=True)

    def under_way(self, runs: Sequence[Whereabouts], seconds_left: float | None) -> None:
        self.runs, self.seconds_left = runs, seconds_left
        if self.console.is_terminal:
            self.standing(self.latest)
        elif runs and time.monotonic() - self.last_line > PAUSE:
            self.last_line = time.monotonic()
            places = [f"{run.name}: {run.place or 'waiting'}" for run in runs]
            left = [] if seconds_left is None else [f"about {duration(seconds_left)} left"]
            self.console.print("  " + "; ".join([*places, *left]), style="dim", soft_wrap=True)

    def _places(self) -> list[Text]:
        """As many runs as there is room for; those that wait are only counted."""
        places = [f"{run.name}: {run.place}" for run in self.runs if run.place]
        room = max(self.console.height - len(self.console.render_lines(self.board or "")) - 3, 1)
        more = len(self.runs) - min(len(places), room)
        shown = [*places[:room], *([f"{more} more" if places else f"{more} waiting"] if more else [])]
        return [Text(f"  {place}", style="dim") for place in shown]

    def done(self, rows: Sequence[dict[str, Any]], summary: dict[str, float | None], directory: Path) -> None:
        self.console.print(f"[bold]{escape(str(directory))}[/]", soft_wrap=True)
        self._head()
        for row in rows:
            self._row(row, len(rows))
        self._sum_up(summary)
        self.console.print()

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None


def compare(
    cells: Sequence[Cell],
    out: Path,
    *,
    panels: Sequence[Mapping[str, Any]] | None = None,
    data_root: str | Path | None = None,
    onlooker: Onlooker | None = None,
    launcher: Launcher | None = None,
) -> dict[str, Any]:
    """Make every run that is not yet in ``out``; returns what compare.json holds, which is written after each run.

    A run that fails is left out and told under "failed"; the others go on. ``launcher`` says who makes the runs:
    this process unless told.
    """
    onlooker, data = onlooker or Onlooker(), Data(data_root)
    _check(cells, out, data)
    results: dict[int, Result | None] = {}  # by the cell's place, so that nobody sees in which order they came
    failed: dict[int, dict[str, Any]] = {}
    onlooker.standing(_standing(cells, results, failed, panels, out))
    jobs = [Job(cell.name, cell.settings, out / cell.directory) for cell in cells]
    with closing((launcher or Local()).launch(jobs, data, onlooker)) as outcomes:
        for index, outcome in outcomes:
            results[index] = outcome if isinstance(outcome, Result) else None
            if isinstance(outcome, EquipoiseError):
                cell = cells[index]
                onlooker.failed(cell, outcome)
                failed[index] = {"label": cell.label, "seed": cell.settings.seed, "error": str(outcome)}
            standing = _standing(cells, results, failed, panels, out)
            finished = _finished(cells, results)
            if finished:
                write_text(out / "compare.csv", comparison_csv(_lines(finished)))
                write_text(out / "compare.tex", comparison_latex(standing.table))
            write_json(out / "compare.json", standing.table)
            onlooker.standing(standing)
    return standing.table


def _check(cells: Sequence[Cell], out: Path, data: Data) -> None:
    """Find every mistake that can be found before the first run starts."""
    refuse_company("a comparison")
    for cell in cells:
        if cell.settings.runtime.nodes > 1:
            raise UsageError("a comparison makes each of its runs on one machine: leave --nodes out")
        RunDir(out / cell.directory, cell.settings).check()
    for cell in {cell.label: cell for cell in cells}.values():
        Experiment.prepare(cell.settings, data.load(cell.settings))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {out} ({error.strerror}): choose another --out") from error


def _finished(cells: Sequence[Cell], results: Mapping[int, Result | None]) -> list[tuple[Cell, Result]]:
    """In the cells' own order."""
    found = ((cell, results.get(index)) for index, cell in enumerate(cells))
    return [(cell, result) for cell, result in found if result is not None]


def _standing(
    cells: Sequence[Cell],
    results: Mapping[int, Result | None],
    failed: Mapping[int, dict[str, Any]],
    panels: Sequence[Mapping[str, Any]] | None,
    out: Path,
) -> Standing:
    finished = _finished(cells, results)
    entries = []
    for label in dict.fromkeys(cell.label for cell in cells):
        runs = [(cell, result) for cell, result in finished if cell.label == label]
        entries += [_entry(runs, out)] if runs else []
    table = {
        "format": FORMAT,
        "dataset": cells[0].settings.dataset,
        "panels": panels,
        "entries": entries,
        "failed": [failed[index] for index in sorted(failed)],
    }
    seconds = _mean([sum(row["seconds"] for row in result.rows) for _, result in finished])
    to_come = [cell for index, cell in enumerate(cells) if index not in results]
    pending = sum(not (out / cell.directory / "summary.json").exists() for cell in to_come)
    labels = list(dict.fromkeys(cell.label for cell in to_come))
    return Standing(table, labels, len(results), len(cells), None if seconds is None else seconds * pending)


def _entry(runs: Sequence[tuple[Cell, Result]], out: Path) -> dict[str, Any]:
    """The runs of one label, and what they have in common."""
    cell, results = runs[0][0], [result for _, result in runs]
    by_step = [list(step) for step in zip(*(_top1(result) for result in results), strict=True)]
    figures = {name: [result.summary[name] for result in results] for name in FIGURES.values()}
    return {
        "label": cell.label,
        "method": cell.settings.method,
        "steps": cell.steps,
        "seen": [row["seen"] for row in results[0].rows],
        "runs": [
            {
                "seed": cell.settings.seed,
                "directory": result.directory.relative_to(out).as_posix(),
                "top1": _top1(result),
                **result.summary,
            }
            for cell, result in runs
        ],
        "n": len(runs),
        "mean": {name: _mean(values) for name, values in figures.items()},
        "std": {name: _std(values) for name, values in figures.items()},
        "top1": [_mean(values) for values in by_step],
        "top1_std": [_std(values) for values in by_step],
    }


def _top1(result: Result) -> list[float]:
    return [row["top1"] for row in result.rows]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def _std(values: Sequence[float | None]) -> float | None:
    """The sample's standard deviation; None for fewer than two runs."""
    known = [value for value in values if value is not None]
    return statistics.stdev(known) if len(known) > 1 else None


def _lines(finished: Sequence[tuple[Cell, Result]]) -> list[dict[str, Any]]:
    """Every step of every run: whose it is, its figures, and those of the whole run."""
    return [
        {
            "label": cell.label,
            "method": cell.settings.method,
            "steps": cell.steps,
            "seed": cell.settings.seed,
            **{name: value for name, value in row.items() if not isinstance(value, list | dict)},
            **result.summary,
        }
        for cell, result in finished
        for row in result.rows
    ]
