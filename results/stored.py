"""The runs in this folder: read, compared with the plan, and grouped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plan import ABLATIONS, RUNS, Run

from equipoise.engine.recipes import parse_overrides, resolve
from equipoise.engine.settings import Settings
from equipoise.errors import UsageError
from equipoise.study.report.groups import RunGroup
from equipoise.study.report.runs import RunRecord, read_run
from equipoise.study.run_dir import flat_settings

Runs = dict[str, RunRecord]
Groups = dict[str, RunGroup]
SEEDS = range(3)


@dataclass(frozen=True)
class Stored:
    """All published runs by name, in the order of the plan."""

    runs: Runs
    """Finished runs."""
    partial: Runs
    """Runs of which only some steps are finished."""
    outdated: dict[str, list[str]]
    """Runs that their command would not repeat, and the settings that have changed since."""

    @property
    def missing(self) -> list[str]:
        return [name for name in RUNS if name not in self.runs and name not in self.partial]

    def find(self, name: str) -> RunRecord | None:
        """Return a run, finished or not."""
        return self.runs.get(name) or self.partial.get(name)

    def group(self, folder: str, method: str) -> RunGroup | None:
        """Return all seeds of a method."""
        seeds = [self.runs[name] for seed in SEEDS if (name := f"{folder}/{method}-{seed}") in self.runs]
        return RunGroup(method, seeds) if seeds else None

    def groups(self, folder: str, methods: Iterable[str]) -> Groups:
        """Return the methods that have finished runs in a folder."""
        return {method: group for method in methods if (group := self.group(folder, method))}

    def ablations(self, folder: str) -> Groups:
        """Return the variants of ``wa`` in a folder, by the name of the choice."""
        names = {label: f"{folder}/wa-{label}-0" for label in ABLATIONS}
        return {label: RunGroup(label, [self.runs[name]]) for label, name in names.items() if name in self.runs}

    def is_outdated(self, runs: Iterable[RunRecord]) -> bool:
        """Return whether one of the runs is outdated."""
        paths = {run.directory.path for name in self.outdated if (run := self.find(name))}
        return any(run.directory.path in paths for run in runs)


def read_all(folder: Path, plan: Mapping[str, Run] = RUNS) -> Stored:
    """Read every planned run that has at least one finished step."""
    found = {name: read_run(folder / name) for name in plan if (folder / name / "metrics.jsonl").exists()}
    differences = {name: changes(plan[name], run.config["settings"]) for name, run in found.items()}
    return Stored(
        runs={name: run for name, run in found.items() if run.summary is not None},
        partial={name: run for name, run in found.items() if run.summary is None},
        outdated={name: changed for name, changed in differences.items() if changed},
    )


def changes(planned: Run, stored: Mapping[str, Any]) -> list[str]:
    """Return the settings that a run would have now, where they differ from those that it was made with."""
    before = Settings.from_identity(stored).identity()
    overrides = parse_overrides(planned.settings) | {"runtime": before["runtime"]}  # recipes leave it to the machine
    try:
        now = resolve(planned.dataset, planned.method, planned.recipe, planned.seed, overrides).identity()
    except UsageError as error:
        return [str(error)]
    old, new = flat_settings(before), flat_settings(now)
    return [f"{name} = {new.get(name)} (was {old.get(name)})" for name in old | new if old.get(name) != new.get(name)]
