"""Methods, step counts and seeds side by side: each cell is a run directory of its own, so nothing is done twice.

compare.json  the figures of every run, and their means and standard deviations
compare.csv   a line a run and step, for whatever reads tables
compare.tex   the means, for a paper
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from equipoise.data.dataset import Dataset
from equipoise.errors import EquipoiseError, UsageError
from equipoise.files import write_json, write_text
from equipoise.study.experiment import Experiment, Result, execute, load_data
from equipoise.study.progress import Reporter, Start, Table, Together, duration
from equipoise.study.publish import comparison_csv, comparison_latex
from equipoise.study.recipe import Settings, resolve
from equipoise.study.rundir import RunDir
from equipoise.study.tables import FIGURES, comparison, in_steps

FORMAT = 1
Overrides = Mapping[str, Mapping[str, Any]]
Load = Callable[[Settings], Dataset]


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    label: str
    """What the table calls it; runs that differ only in their seed share it."""
    variant: str
    """The method, and what was changed in it."""
    settings: Settings

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


class Onlooker(Reporter):
    """Hears of every run, and of the comparison after each; says only what failed."""

    def standing(self, standing: Standing) -> None:
        """A comparison starts, or one more of its runs is over."""

    def failed(self, cell: Cell, error: EquipoiseError) -> None:
        """A run could not be finished."""
        print(f"equipoise: {cell.label}, seed {cell.settings.seed} failed: {error}", file=sys.stderr)


class SideBySide(Table, Onlooker):
    """Each run's table; on a terminal the comparison so far stands above the progress bar, in a pipe a line a run."""

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


def compare(
    cells: Sequence[Cell],
    out: Path,
    *,
    panels: Sequence[Mapping[str, Any]] | None = None,
    data_root: str | Path | None = None,
    onlooker: Onlooker | None = None,
    trackers: Sequence[Reporter] = (),
) -> dict[str, Any]:
    """Run every cell that is not yet in ``out``; returns what compare.json holds, which is written after each run.

    A run that fails is left out and told under "failed"; the others go on.
    """
    onlooker = onlooker or Onlooker()
    reporter = Together(onlooker, *trackers)
    load = _load_once(data_root)
    _check(cells, out, load)
    finished: list[tuple[Cell, Result]] = []
    failed: list[dict[str, Any]] = []
    onlooker.standing(_standing(cells, 0, finished, failed, panels, out))
    for done, cell in enumerate(cells, 1):
        try:
            result = execute(cell.settings, out / cell.directory, partial(load, cell.settings), reporter)
            finished.append((cell, result))
        except EquipoiseError as error:
            reporter.close()
            onlooker.failed(cell, error)
            failed.append({"label": cell.label, "seed": cell.settings.seed, "error": str(error)})
        standing = _standing(cells, done, finished, failed, panels, out)
        if finished:
            write_text(out / "compare.csv", comparison_csv(_lines(finished)))
            write_text(out / "compare.tex", comparison_latex(standing.table))
        write_json(out / "compare.json", standing.table)
        onlooker.standing(standing)
    return standing.table


def _load_once(data_root: str | Path | None) -> Load:
    """Data is loaded once for all runs that have the same options of it."""
    loaded: dict[str, Dataset] = {}

    def load(settings: Settings) -> Dataset:
        key = json.dumps(settings.data, sort_keys=True)
        if key not in loaded:
            loaded[key] = load_data(settings, data_root)
        return loaded[key]

    return load


def _check(cells: Sequence[Cell], out: Path, load: Load) -> None:
    """Find every mistake that can be found before the first run starts."""
    for cell in cells:
        RunDir(out / cell.directory, cell.settings).check()
    for cell in {cell.label: cell for cell in cells}.values():
        Experiment.prepare(cell.settings, load(cell.settings))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {out} ({error.strerror}): choose another --out") from error


def _standing(
    cells: Sequence[Cell],
    done: int,
    finished: Sequence[tuple[Cell, Result]],
    failed: Sequence[dict[str, Any]],
    panels: Sequence[Mapping[str, Any]] | None,
    out: Path,
) -> Standing:
    entries = []
    for label in dict.fromkeys(cell.label for cell in cells):
        runs = [(cell, result) for cell, result in finished if cell.label == label]
        entries += [_entry(runs, out)] if runs else []
    table = {
        "format": FORMAT,
        "dataset": cells[0].settings.dataset,
        "panels": panels,
        "entries": entries,
        "failed": list(failed),
    }
    seconds = _mean([sum(row["seconds"] for row in result.rows) for _, result in finished])
    pending = sum(not (out / cell.directory / "summary.json").exists() for cell in cells[done:])
    to_come = list(dict.fromkeys(cell.label for cell in cells[done:]))
    return Standing(table, to_come, done, len(cells), None if seconds is None else seconds * pending)


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
