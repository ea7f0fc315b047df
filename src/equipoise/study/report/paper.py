"""Results of the paper (Zhao et al., CVPR 2020) that can be shown next to a run."""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from equipoise.engine.metrics import METRICS, Metric
from equipoise.study.report.runs import RunRecord

WITHOUT_BIAS = ("wa", "ce", "ce+wa", "ce+kd", "ce+kd+wnl", "ce+kd+unit")
"""The paper's own methods; those that it compares with have a bias where their authors' code has one."""


@dataclass(frozen=True)
class PaperResult:
    """The paper's result for the protocol of a run: the same data, memory and number of equal steps."""

    metric: Metric
    """Which accuracy it reports: top-1 on CIFAR-100, top-5 on ImageNet."""
    budget: str
    curve: list[float] | None
    average: float | None
    """Without the first step."""
    last: float | None

    def figure(self, key: str) -> float | None:
        """Return the paper's value of a metric of summary.json, if it reports it."""
        found = {self.metric.last: self.last, self.metric.average_without_first: self.average}
        if self.curve:
            found[self.metric.average_with_first] = statistics.mean(self.curve)
        return found.get(key)


@cache
def published() -> dict[str, Any]:
    """Return the content of paper.toml."""
    return tomllib.loads((resources.files(__package__) / "paper.toml").read_text(encoding="utf-8"))


def paper_result(run: RunRecord) -> PaperResult | None:
    """Return what the paper reports for this method under the same protocol, if it does."""
    settings = run.settings
    table = published().get(settings["dataset"])
    memory, stream = settings["memory"], settings["stream"]
    equal_steps = len(set(run.config.get("sizes") or [1, 2])) == 1
    # with validation the run is evaluated on other images
    if table is None or stream.get("classes") or stream.get("validation") or not equal_steps:
        return None
    metric = METRICS[table["metric"]]
    if run.method == "joint":
        return PaperResult(metric, table["budget"], None, None, table["joint"])
    if memory["size"] != table["memory"] or memory["per"] != "total" or not _as_published(settings):
        return None
    steps = str(run.planned)
    curve = table.get("curves", {}).get(steps, {}).get(run.method)
    average = table["averages"].get(steps, {}).get(run.method)
    last = curve[-1] if curve else table.get("lasts", {}).get(steps, {}).get(run.method)
    if average is None and last is None:
        return None
    return PaperResult(metric, table["budget"], curve, average, last)


def paper_curve(run: RunRecord, metric: Metric) -> Sequence[float]:
    """Return the paper's accuracy after each step, if it reports it in this metric."""
    paper = paper_result(run)
    return paper.curve if paper and paper.curve and paper.metric is metric else ()


def _as_published(settings: Mapping[str, Any]) -> bool:
    """Return whether all settings are the paper's. Norm and reinit_head may differ: text and code disagree."""
    fields, selection = settings["fields"], settings["memory"].get("selection", "herding")
    bias = settings["method"] in WITHOUT_BIAS and fields.get("bias", False)
    return selection == "herding" and fields.get("clip", True) and not bias
