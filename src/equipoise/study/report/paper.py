"""Results of the paper (Zhao et al., CVPR 2020) that can be shown next to a run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from equipoise.study.report.runs import RunRecord


@dataclass(frozen=True)
class PaperResult:
    """The paper's result for the protocol of a run: the same data, memory and number of equal steps."""

    figure: str
    """Which accuracy it reports: top1 or top5."""
    budget: str
    curve: list[float] | None
    average: float | None
    """Without the first step."""
    last: float | None


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
    if run.method == "joint":
        return PaperResult(table["figure"], table["budget"], None, None, table["joint"])
    if memory["size"] != table["memory"] or memory["per"] != "total" or not _as_published(settings):
        return None
    steps = str(run.planned)
    curve = table.get("curves", {}).get(steps, {}).get(run.method)
    average = table["averages"].get(steps, {}).get(run.method)
    last = curve[-1] if curve else table.get("lasts", {}).get(steps, {}).get(run.method)
    if average is None and last is None:
        return None
    return PaperResult(table["figure"], table["budget"], curve, average, last)


def paper_curve(run: RunRecord) -> Sequence[float]:
    """Return the paper's top-1 accuracy after each step, if it reports it."""
    paper = paper_result(run)
    return paper.curve if paper and paper.curve else ()


def _as_published(settings: Mapping[str, Any]) -> bool:
    """Return whether all choices are the paper's. Norm and reinit_head may differ: its text and its code disagree."""
    fields, selection = settings["fields"], settings["memory"].get("selection", "herding")
    return selection == "herding" and fields.get("clip", True) and not fields.get("bias", False)
