"""Comparisons as a report sees them: the runs below a directory, grouped by their settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec
import numpy as np

from equipoise.core.directory import Directory
from equipoise.errors import RunError, UsageError
from equipoise.study.report.runs import Array, RunRecord, read_run
from equipoise.study.run_dir import flat_settings
from equipoise.study.tables import in_steps

MARKS = ("config.json", "metrics.jsonl", "checkpoint")
"""A directory with one of these is a run, or the beginning of one."""

Skipped = list[tuple[str, str]]
"""Runs that are not shown, and why."""


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in their seed."""

    label: str
    runs: Sequence[RunRecord]

    @property
    def seen(self) -> list[int]:
        return [step.seen for step in self.runs[0].steps]

    def values(self, name: str) -> Array:
        """Return a metric of the results, such as accuracy or errors.e_n: one row per run, one column per step."""
        figure = attrgetter(name)
        return np.array([[figure(step) for step in run.steps] for run in self.runs], dtype=float)


@dataclass(frozen=True)
class Panel:
    """Labels that a comparison shows together."""

    title: str
    labels: list[str]


@dataclass(frozen=True)
class ComparedRun:
    """A run in compare.json."""

    directory: str


@dataclass(frozen=True)
class ComparedEntry:
    """The runs of one label in compare.json."""

    label: str
    runs: list[ComparedRun]


@dataclass(frozen=True)
class ComparisonFile:
    """The part of compare.json that a report reads."""

    entries: list[ComparedEntry]
    panels: list[Panel] | None = None


@dataclass(frozen=True)
class Comparison:
    """The finished runs below a directory."""

    root: Directory
    groups: list[RunGroup]
    panels: list[Panel]
    skipped: Skipped

    @property
    def runs(self) -> list[RunRecord]:
        return [run for group in self.groups for run in group.runs]

    @property
    def seen(self) -> int:
        """The largest number of classes that a run has learned."""
        return max(run.seen for run in self.runs)

    def name(self, run: RunRecord) -> str:
        """Return the path of a run's directory below the comparison's."""
        return run.directory.path.relative_to(self.root.path).as_posix()


def is_run(directory: Directory) -> bool:
    """Return whether a directory holds a run and not a comparison."""
    return not directory.exists("compare.json") and any(directory.exists(mark) for mark in MARKS)


def read_comparison(root: Directory) -> Comparison:
    """Read all finished runs below a directory, and compare.json if there is one."""
    runs: list[RunRecord] = []
    skipped: Skipped = []
    for name in _run_directories(root, "", skipped):
        try:
            run = read_run(root.sub(name))
            if run.summary is None:
                raise RunError(f"{len(run.steps)} of {run.planned} steps are done")
            run.check()
            runs.append(run)
        except RunError as error:
            skipped.append((name, str(error)))
    if not runs:
        why = f" ({skipped[0][0]}: {skipped[0][1]})" if skipped else ""
        raise UsageError(f"no finished run found in {root.path}{why}: start one with equipoise run --out {root.path}")
    found = Comparison(root, group_runs(runs), [], skipped)
    if not root.exists("compare.json"):
        return found
    try:
        return _as_compared(found, msgspec.convert(root.read_json("compare.json"), ComparisonFile))
    except (RunError, msgspec.ValidationError) as error:
        skipped.append(("compare.json", f"it is damaged ({error}), so runs are grouped by their settings"))
        return found


def _run_directories(root: Directory, name: str, skipped: Skipped) -> Iterator[str]:
    try:
        entries = root.entries(name)
    except RunError as error:
        skipped.append((name or ".", str(error)))
        return
    if is_run(root.sub(name)):
        yield name
        return
    for entry in entries:
        below = f"{name}/{entry.name}" if name else entry.name
        if entry.kind == "dir":
            yield from _run_directories(root, below, skipped)
        elif entry.kind == "link":
            skipped.append((below, "it is a link, and links are not followed"))


def group_runs(runs: Sequence[RunRecord]) -> list[RunGroup]:
    """Group runs by their settings; a label is the method and what distinguishes it from others of that method."""
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        same = {name: value for name, value in run.settings.items() if name != "seed"}
        found.setdefault(json.dumps(same, sort_keys=True), []).append(run)
    groups = list(found.values())
    return [RunGroup(_label(group[0], [other[0] for other in groups]), group) for group in groups]


def _label(run: RunRecord, all_runs: Sequence[RunRecord]) -> str:
    same_data = [other for other in all_runs if other.settings["dataset"] == run.settings["dataset"]]
    name = run.method if len(same_data) == len(all_runs) else f"{run.method} on {run.settings['dataset']}"
    alike = [other for other in same_data if other.method == run.method]
    if len({len(other.steps) for other in alike}) > 1:
        name = f"{name}, {in_steps(str(len(run.steps)))}"
        alike = [other for other in alike if len(other.steps) == len(run.steps)]
    mine, first = flat_settings(run.settings), flat_settings(alike[0].settings)
    differs = [f"{name} = {value}" for name, value in mine.items() if name != "seed" and first.get(name) != value]
    return ", ".join([name, *differs])


def _as_compared(found: Comparison, file: ComparisonFile) -> Comparison:
    """Take labels, order and panels from compare.json, and skip runs that it does not list."""
    runs = {found.name(run): run for run in found.runs}
    listed = {run.directory for entry in file.entries for run in entry.runs}
    groups = [
        RunGroup(entry.label, known)
        for entry in file.entries
        if (known := [runs[run.directory] for run in entry.runs if run.directory in runs])
    ]
    if not groups:  # none of its runs is readable: show the others rather than nothing
        return found
    shown = {group.label for group in groups}
    panels = [panel for panel in file.panels or [] if not shown.isdisjoint(panel.labels)]
    others = [(name, "it is not part of the last comparison, compare.json") for name in runs if name not in listed]
    return Comparison(found.root, groups, panels, [*found.skipped, *others])
