"""Compare methods, step counts and seeds. Each cell has its own run directory, so nothing is computed twice.

compare.json  the metrics of every run, and their means and standard deviations
compare.csv   one line per run and step
compare.tex   the means of one metric, for a paper
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.core.config import with_settings
from equipoise.core.directory import Directory
from equipoise.core.files import digest
from equipoise.core.output import warn
from equipoise.engine.metrics import METRICS, TOP1, Metric
from equipoise.engine.progress import duration
from equipoise.engine.recipes import resolve
from equipoise.engine.results import StepResult
from equipoise.engine.settings import Settings
from equipoise.engine.shared_training import FOLDER, SharedTraining
from equipoise.errors import EquipoiseError, UsageError
from equipoise.methods import registry
from equipoise.study.experiment import Experiment, RunResult
from equipoise.study.export_tables import comparison_csv, comparison_latex
from equipoise.study.launch import DataCache, Job, Launcher, LaunchListener, Local
from equipoise.study.process_group import refuse_process_group
from equipoise.study.run_dir import RunDir, make_dirs
from equipoise.study.tables import figures_of, in_steps, mean_std

FORMAT = 2
ACCURACIES = [metric.accuracy for metric in METRICS.values()]
FIGURES = [key for metric in METRICS.values() for key in figures_of(metric).values()]
OWNED: dict[str, Any] = {
    **dict.fromkeys(("compare.json", "compare.csv", "compare.tex", "report.html", ".lock"), "file"),
    **dict.fromkeys(("slurm", FOLDER), "dir"),
}
"""What equipoise writes into the directory of a comparison, besides its runs."""
Overrides = Mapping[str, Mapping[str, Any]]
Panels = Sequence[Mapping[str, Any]]
CellOutcomes = dict[int, RunResult | str]
"""The result or error message of each cell that has ended; an exception would keep the run's tensors in memory."""


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    label: str
    """Its name in the table; runs that differ only in their seed share it."""
    variant: str
    """The method and its changed settings."""
    settings: Settings

    @property
    def name(self) -> str:
        """Label and seed."""
        return f"{self.label}, seed {self.settings.seed}"

    @property
    def steps(self) -> str:
        """The steps as on the command line: 5, or 50,10x5."""
        steps = self.settings.stream.steps
        return ",".join(map(str, steps)) if isinstance(steps, tuple) else str(steps)

    @property
    def group(self) -> str:
        """Cells of the same group differ only in settings that may leave their training unchanged."""
        identity = self.settings.identity()
        for name in ("method", "fields", "memory"):
            del identity[name]
        same = [registry.lookup(self.settings.method)[0].__qualname__, identity]
        return digest(json.dumps(same, sort_keys=True).encode()).hex()

    @property
    def directory(self) -> Path:
        """The run's directory inside the comparison's."""
        return Path(_slug(self.variant), f"steps-{_slug(self.steps.replace(',', '_'))}", f"seed-{self.settings.seed}")


def _slug(text: str) -> str:
    """Return a valid folder name.

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
    """Combine all methods, step counts (default: the recipe's) and seeds.

    All runs of one seed come before those of the next, so that an interrupted comparison compares like with like.
    """
    counts: Sequence[int | str | None] = steps or [None]
    streams = {str(count): with_settings(overrides or {}, {"stream.steps": count}) for count in counts}
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


@dataclass(frozen=True)
class ComparisonStatus:
    """Progress of a comparison."""

    table: dict[str, Any]
    """The content of compare.json."""
    pending: Sequence[str]
    """Labels of runs that are not done yet."""
    done: int
    runs: int
    seconds_left: float | None
    metric: Metric
    """Which accuracy tables show; compare.json has all."""

    def __str__(self) -> str:
        left = f", about {duration(self.seconds_left)} left" if self.seconds_left else ""
        failed = f" ({len(self.table['failed'])} failed)" if self.table["failed"] else ""
        return f"{self.done} of {self.runs} runs done{failed}{left}"


class CompareListener(LaunchListener):
    """Receives the events of all runs and of the comparison; prints only failures."""

    def compared(self, status: ComparisonStatus) -> None:
        """A comparison starts, or one more of its runs has ended."""

    def failed(self, cell: Cell, error: EquipoiseError) -> None:
        """A run failed."""
        warn(f"equipoise: {cell.name} failed: {error}")


def compare(
    cells: Sequence[Cell],
    out: Path,
    *,
    panels: Panels | None = None,
    data_root: str | Path | None = None,
    listener: CompareListener | None = None,
    launcher: Launcher | None = None,
    metric: Metric = TOP1,
    share: bool = True,
) -> dict[str, Any]:
    """Execute every run that is not yet in ``out`` and return the content of compare.json, written after each run.

    A run that fails is listed under "failed", and the others continue. ``launcher`` executes the runs (default: this
    process, one after another). compare.tex and the listener's tables show ``metric``. With ``share``, runs that would
    train bit-identical networks train them once.
    """
    listener, data, directory = listener or CompareListener(), DataCache(data_root), Directory(out)
    _check(cells, out, data)
    with directory.lock():
        directory.remove_temporary(below=False)
        return _execute(cells, directory, panels, data, listener, launcher or Local(), metric, share)


def _execute(
    cells: Sequence[Cell],
    directory: Directory,
    panels: Panels | None,
    data: DataCache,
    listener: CompareListener,
    launcher: Launcher,
    metric: Metric,
    share: bool,
) -> dict[str, Any]:
    """Execute runs and update the files of the comparison after each."""
    out = directory.path
    trained = [SharedTraining(out, cell.group) for cell in cells]
    sizes = Counter(trained)
    outcomes: CellOutcomes = {}  # by cell, so that the order of arrival does not matter
    status = _status(cells, outcomes, panels, out, metric)
    listener.compared(status)
    jobs = [
        Job(cell.name, cell.settings, out / cell.directory, trained=mine if share and sizes[mine] > 1 else None)
        for cell, mine in zip(cells, trained, strict=True)
    ]
    with closing(launcher.launch(jobs, data, listener)) as launched:
        for index, outcome in launched:
            outcomes[index] = str(outcome) if isinstance(outcome, EquipoiseError) else outcome
            if isinstance(outcome, EquipoiseError):
                listener.failed(cells[index], outcome)
            status = _status(cells, outcomes, panels, out, metric)
            if finished := _finished(cells, outcomes):
                directory.write_text("compare.csv", comparison_csv(_lines(finished)))
                directory.write_text("compare.tex", comparison_latex(status.table, metric))
            directory.write_json("compare.json", status.table)
            listener.compared(status)
            sizes[trained[index]] -= 1
            if not sizes[trained[index]]:
                trained[index].clear()
    return status.table


def _check(cells: Sequence[Cell], out: Path, data: DataCache) -> None:
    """Raise every error that can be detected before the first run starts."""
    refuse_process_group("a comparison")
    directory = Directory(out)
    if directory.exists("config.json"):
        raise UsageError(f"{out} holds a run or model: choose another --out for a comparison")
    directory.check_owned(OWNED)
    for cell in cells:
        parts = cell.directory.parts
        directory.check_owned({"/".join(parts[:depth]): "dir" for depth in range(1, len(parts) + 1)})
        if cell.settings.runtime.nodes > 1:
            raise UsageError("a comparison executes each run on one machine: remove --nodes")
        RunDir(out / cell.directory, cell.settings).check()
    for cell in {cell.label: cell for cell in cells}.values():
        Experiment.prepare(cell.settings, data.load(cell.settings))
    make_dirs(directory, "")


def _finished(cells: Sequence[Cell], outcomes: CellOutcomes) -> list[tuple[Cell, RunResult]]:
    """Return the finished runs in the order of the cells."""
    found = ((cell, outcomes.get(index)) for index, cell in enumerate(cells))
    return [(cell, result) for cell, result in found if isinstance(result, RunResult)]


def _status(
    cells: Sequence[Cell], outcomes: CellOutcomes, panels: Panels | None, out: Path, metric: Metric
) -> ComparisonStatus:
    by_label: dict[str, list[tuple[Cell, RunResult]]] = {cell.label: [] for cell in cells}
    for cell, result in _finished(cells, outcomes):
        by_label[cell.label].append((cell, result))
    failed = [(cells[index], error) for index, error in sorted(outcomes.items()) if isinstance(error, str)]
    table = {
        "format": FORMAT,
        "dataset": cells[0].settings.dataset,
        "panels": panels,
        "entries": [_entry(runs, out) for runs in by_label.values() if runs],
        "failed": [{"label": cell.label, "seed": cell.settings.seed, "error": error} for cell, error in failed],
    }
    seconds, _ = mean_std(sum(step.seconds for step in result.steps) for _, result in _finished(cells, outcomes))
    waiting = [cell for index, cell in enumerate(cells) if index not in outcomes]
    unfinished = sum(not Directory(out / cell.directory).is_file("summary.json") for cell in waiting)
    labels = list(dict.fromkeys(cell.label for cell in waiting))
    left = None if seconds is None else seconds * unfinished
    return ComparisonStatus(table, labels, len(outcomes), len(cells), left, metric)


def _entry(runs: Sequence[tuple[Cell, RunResult]], out: Path) -> dict[str, Any]:
    """Combine the runs of one label."""
    cell, first = runs[0]
    listed: list[dict[str, Any]] = []
    by_step: dict[str, Any] = {}
    for run, result in runs:
        where = result.directory.relative_to(out).as_posix()
        curves = {name: [getattr(step, name) for step in result.steps] for name in ACCURACIES}
        listed.append({"seed": run.settings.seed, "directory": where, **curves, **result.summary})
    for name in ACCURACIES:
        spreads = [mean_std(values) for values in zip(*(run[name] for run in listed), strict=True)]
        by_step[name] = [mean for mean, _ in spreads]
        by_step[f"{name}_std"] = [std for _, std in spreads]
    figures = {name: mean_std(run[name] for run in listed) for name in FIGURES}
    return {
        "label": cell.label,
        "method": cell.settings.method,
        "steps": cell.steps,
        "seen": [step.seen for step in first.steps],
        "runs": listed,
        "n": len(runs),
        "mean": {name: mean for name, (mean, _) in figures.items()},
        "std": {name: std for name, (_, std) in figures.items()},
        **by_step,
    }


def _lines(finished: Sequence[tuple[Cell, RunResult]]) -> list[dict[str, Any]]:
    """Return the lines of compare.csv: every step of every run, with the metrics of the whole run."""
    lines = []
    for cell, result in finished:
        settings = cell.settings
        names = {"label": cell.label, "method": settings.method, "steps": cell.steps, "seed": settings.seed}
        lines += [{**names, **_columns(step), **result.summary} for step in result.steps]
    return lines


def _columns(step: StepResult) -> dict[str, Any]:
    """Return the single values of a result; counts of errors before the correction get a suffix."""
    plain = step.to_dict()
    errors = plain["errors"] | {f"{name}_uncorrected": count for name, count in plain["errors_uncorrected"].items()}
    single = {name: value for name, value in plain.items() if not isinstance(value, list | dict)}
    return {**single, **errors, **step.figures}
