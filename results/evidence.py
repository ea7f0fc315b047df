"""What a claim is tested on, and its verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.engine.metrics import TOP1, Metric
from equipoise.study.report.groups import RunGroup
from equipoise.study.report.runs import Array, RunRecord

Usable = Callable[[RunRecord], bool]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, whether our runs reproduce it, and the evidence."""

    statement: str
    reproduced: bool
    evidence: str
    margin: float | None = None
    """By how many points; None if the claim is not about average accuracies."""
    means: int = 2
    """Number of means with the same spread that the margin adds and subtracts."""
    within_noise: bool = False
    """Whether other seeds might give another result."""
    outdated: bool = False
    """Whether a run that it is tested on is outdated."""

    @property
    def verdict(self) -> str:
        words = ("yes" if self.reproduced else "**no**") + (", within noise" if self.within_noise else "")
        return words + (" †" if self.outdated else "")


class GroupMeans:
    """Runs by label, and means over their seeds."""

    def __init__(self, groups: Mapping[str, RunGroup], metric: Metric = TOP1) -> None:
        self.groups = groups
        self.metric = metric

    def shared(self, labels: Sequence[str], usable: Usable = lambda run: True) -> GroupMeans:
        """Keep these labels and their common seeds: methods of one seed share the model of the first step.

        Runs that are not ``usable`` do not count; a label without runs means that there is no common seed.
        """
        usable_runs = ([run for run in self.groups[label].runs if usable(run)] for label in labels)
        seeds = set.intersection(*({run.settings["seed"] for run in runs} for runs in usable_runs))
        groups = {
            label: RunGroup(label, [run for run in self.groups[label].runs if run.settings["seed"] in seeds])
            for label in labels
        }
        return GroupMeans(groups, self.metric)

    @property
    def steps(self) -> int:
        """Number of steps of the runs."""
        return len(next(iter(self.groups.values())).seen)

    def averages(self, label: str) -> Array:
        """Return the mean accuracy over all steps but the first, for each seed."""
        averages: Array = self.groups[label].values(self.metric.accuracy)[:, 1:].mean(1)
        return averages

    def average(self, label: str) -> float:
        return float(self.averages(label).mean())

    def last(self, label: str, figure: str) -> float:
        """Return a figure of the last step."""
        return self.at(label, figure, -1)

    def at(self, label: str, figure: str, place: int) -> float:
        """Return a figure of a step, by its place from 0."""
        return float(self.groups[label].values(figure)[:, place].mean())

    def listed(self, labels: Sequence[str]) -> str:
        return ", ".join(f"{label} {self.average(label):.1f}" for label in labels)

    def runs(self) -> list[RunRecord]:
        return [run for group in self.groups.values() for run in group.runs]

    def seeds(self) -> list[int]:
        return [run.settings["seed"] for run in next(iter(self.groups.values())).runs]

    def spread(self) -> float | None:
        """Return the standard deviation of the average between seeds, pooled over all labels with several seeds."""
        squares = [self.averages(label).var(ddof=1) for label, group in self.groups.items() if len(group.runs) > 1]
        return float(np.mean(squares)) ** 0.5 if squares else None
