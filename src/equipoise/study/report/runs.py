"""Run directories, as the report reads them: from their files alone, with a reason wherever one cannot be read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from equipoise.errors import RunError, UsageError
from equipoise.settings import flat

Array = NDArray[Any]
MARKS = ("config.json", "metrics.jsonl", "checkpoint")
"""A directory with one of these is a run, or was to become one."""
FIGURES = (
    *("step", "seen", "new", "top1", "top5", "top1_uncorrected", "seconds", "images_per_second", "exemplars"),
    *(f"{error}{which}" for error in ("e_n", "e_on", "e_oo") for which in ("", "_uncorrected")),
)
"""What every line of metrics.jsonl must have."""


@dataclass(frozen=True)
class Said:
    """What the model said of every test image after a step, with and without the correction."""

    labels: Array
    top1: Array
    confidence: Array
    norms: Array | None
    """Norm of each class's weights; None for a head that has no row a class."""


@dataclass(frozen=True)
class Run:
    """A run directory that could be read."""

    directory: Path
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    """The lines of metrics.jsonl."""
    summary: dict[str, Any] | None
    """None while the run is not finished."""

    @property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.config["settings"]
        return settings

    @property
    def method(self) -> str:
        return str(self.settings["method"])

    @property
    def sizes(self) -> list[int]:
        """Classes of each step that is done."""
        return [row["new"] for row in self.rows]

    @property
    def planned(self) -> int:
        """Steps that the run has when it is finished."""
        return len(self.config.get("sizes") or self.rows)

    @property
    def seen(self) -> int:
        return int(self.rows[-1]["seen"])

    @cached_property
    def names(self) -> list[str]:
        names = [str(name) for name in self.config.get("classes") or []]
        return [(names[c].strip() or repr(names[c])) if c < len(names) else f"class {c}" for c in range(self.seen)]

    @cached_property
    def step_of(self) -> Array:
        """The step that learned each class, from 1."""
        return np.repeat(np.arange(1, len(self.sizes) + 1), self.sizes)

    @property
    def norm(self) -> int:
        """The norm that the method aligns by; metrics.jsonl has norm 1 of methods that align by none."""
        return int(self.settings.get("fields", {}).get("norm", 1))

    def said(self, step: int) -> tuple[Said, Said]:
        """What was said after ``step``, after and before the correction (the same where there was none)."""
        file = self.directory / "predictions" / f"step-{step}.safetensors"
        try:
            told = load_file(file)
            after = self._said(told, "")
            return after, self._said(told, "_uncorrected") if "top1_uncorrected" in told else after
        except (OSError, SafetensorError, KeyError) as error:
            raise RunError(f"{file} cannot be read ({error})") from error

    def _said(self, told: dict[str, Array], which: str) -> Said:
        norms = told.get(f"norms_{self.norm}{which}")
        return Said(told["labels"], told[f"top1{which}"], told[f"confidence{which}"], norms)

    @property
    def corrects(self) -> bool:
        return any(row["top1"] != row["top1_uncorrected"] or row["gamma"] is not None for row in self.rows)


def read_run(directory: Path) -> Run:
    """The run in ``directory``; a RunError says what is wrong with it."""
    if not (directory / "metrics.jsonl").exists():
        raise RunError("no step is done yet")
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        summary = None
        if (directory / "summary.json").exists():
            summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
        for row in rows:
            _check_row(row)
        if summary is not None and not isinstance(summary, dict):
            raise TypeError("summary.json holds no figures")
        run = Run(directory, config, rows, summary)
        if [row["step"] for row in rows] != list(range(1, len(rows) + 1)) or not rows:
            raise RunError("metrics.jsonl lacks lines")
        _ = run.method, run.settings["dataset"], run.settings["seed"], [row["top1"] for row in rows], run.names
        for row in rows:
            run.said(row["step"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"it is damaged ({type(error).__name__}: {error})") from error
    return run


def _check_row(row: dict[str, Any]) -> None:
    """Raise a TypeError or KeyError for a line whose figures are no figures."""
    numbers = [row[name] for name in FIGURES] + [value for value in row["per_class"] if value is not None]
    numbers += row["per_step"] + ([] if row["gamma"] is None else [row["gamma"]])
    odd = [value for value in numbers if not isinstance(value, int | float)]
    if odd:
        raise TypeError(f"{odd[0]!r} is not a figure")


def find_runs(root: Path) -> tuple[list[Run], list[tuple[str, str]]]:
    """Every finished run in and below ``root``, and the names of the others with the reason why they are left out."""
    runs, left_out = [], []
    for directory in _run_directories(root):
        name = str(directory.relative_to(root))
        try:
            run = read_run(directory)
            if run.summary is None:
                raise RunError(f"{len(run.rows)} of {run.planned} steps are done")
            runs.append(run)
        except RunError as error:
            left_out.append((name, str(error)))
    return runs, left_out


def _run_directories(root: Path) -> list[Path]:
    found = []
    for folder, inside, files in os.walk(root):
        inside.sort()
        if "compare.json" not in files and any(mark in files or mark in inside for mark in MARKS):
            found.append(Path(folder))
            inside.clear()  # a run holds no other run
    return sorted(found)


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed."""

    label: str
    runs: Sequence[Run]

    @property
    def method(self) -> str:
        return self.runs[0].method

    @property
    def seen(self) -> list[int]:
        return [row["seen"] for row in self.runs[0].rows]

    def values(self, name: str) -> Array:
        """A figure of metrics.jsonl: one row a run, one column a step."""
        return np.array([[row[name] for row in run.rows] for run in self.runs], dtype=float)

    def summaries(self, name: str) -> Array:
        """A figure of summary.json, one a run; nan where it has none."""
        return np.array([(run.summary or {}).get(name) for run in self.runs], dtype=float)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs by settings, in the order found; a label names the method and what tells it from others of its kind."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        same = {name: value for name, value in run.settings.items() if name != "seed"}
        found.setdefault(json.dumps(same, sort_keys=True), []).append(run)
    groups = list(found.values())
    return [Group(_label(group[0], [other[0] for other in groups]), group) for group in groups]


def _label(run: Run, all_runs: Sequence[Run]) -> str:
    """The method, and every setting in which it differs from the first run of the same method and from others."""
    several = len({other.settings["dataset"] for other in all_runs}) > 1
    name = f"{run.method} on {run.settings['dataset']}" if several else run.method
    same_data = [other for other in all_runs if other.settings["dataset"] == run.settings["dataset"]]
    alike = [other for other in same_data if other.method == run.method]
    if len({len(other.rows) for other in alike}) > 1:
        name = f"{name}, {len(run.rows)} step{'s' if len(run.rows) > 1 else ''}"
        alike = [other for other in alike if len(other.rows) == len(run.rows)]
    mine, first = flat_settings(run.settings), flat_settings(alike[0].settings)
    differs = [f"{name} = {value}" for name, value in mine.items() if name != "seed" and first.get(name) != value]
    return ", ".join([name, *differs])


def flat_settings(settings: dict[str, Any]) -> dict[str, str]:
    """Settings in one layer, by the names that ``--set`` takes, as text."""
    return {
        name.replace("fields.", "method."): value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in flat(settings).items()
    }


def open_directory(path: Path) -> tuple[Run | None, list[Group], list[tuple[str, str]]]:
    """A single run, or the groups of a comparison with what was left out of it."""
    if not path.is_dir():
        raise UsageError(f"{path} is not a directory: name a run's or a comparison's")
    if not (path / "compare.json").exists() and any((path / mark).exists() for mark in MARKS):
        try:
            return read_run(path), [], []
        except RunError as error:
            raise RunError(f"the run in {path} cannot be shown: {error}") from error
    runs, left_out = find_runs(path)
    if not runs:
        why = f" ({left_out[0][0]}: {left_out[0][1]})" if left_out else ""
        raise UsageError(f"there is no finished run in {path}{why}: start one with equipoise run --out {path}")
    return None, group_runs(runs), left_out
