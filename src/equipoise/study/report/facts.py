"""Figures that a report shows beside those of metrics.jsonl, from what the model said of the test images."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import torch

from equipoise.study import evaluate
from equipoise.study.report.runs import Array, Run, Said

BINS = 15


def new_share(said: Said, old: int) -> tuple[float, float]:
    """Per cent of the predictions that name a new class, and the per cent that would be fair."""
    return 100 * float((said.top1 >= old).mean()), 100 * float((said.labels >= old).mean())


def calibration_error(said: Said, among: Array) -> float | None:
    """Expected calibration error in points (Guo et al. 2017, Eq. 3), over 15 equal bins of confidence."""
    if not among.any():
        return None
    confidence, right = said.confidence[among].astype(float), (said.top1 == said.labels)[among]
    where = np.minimum((confidence * BINS).astype(int), BINS - 1)
    count = np.bincount(where, minlength=BINS)
    gap = np.abs(np.bincount(where, right, BINS) - np.bincount(where, confidence, BINS))
    return 100 * float(gap[count > 0].sum() / count.sum())


def confusion(said: Said, classes: int) -> Array:
    """How often class i (row) was taken for class j (column)."""
    counts: Array = evaluate.confusion(torch.from_numpy(said.labels), torch.from_numpy(said.top1), classes).numpy()
    return counts


def by_age(run: Run) -> list[dict[str, Any]]:
    """Accuracy on the classes of each step, after that step and every later one; age counts the steps since."""
    return [
        {"learned": learned + 1, "age": at - learned, "accuracy": accuracy}
        for at, row in enumerate(run.rows)
        for learned, accuracy in enumerate(row["per_step"])
    ]


@dataclass(frozen=True)
class Paper:
    """The paper's figures for the protocol of a run: the same data, memory and number of equal steps."""

    figure: str
    """top1 or top5."""
    budget: str
    curve: list[float] | None
    average: float | None
    """Without the first step."""
    last: float | None


@cache
def published() -> dict[str, Any]:
    """The paper's figures, as paper.toml has them."""
    return tomllib.loads((resources.files(__package__) / "paper.toml").read_text(encoding="utf-8"))


def _as_published(settings: Mapping[str, Any]) -> bool:
    """Whether all choices are the paper's own; for norm and redraw its text and its code have different ones."""
    fields, chosen = settings["fields"], settings["memory"].get("selection", "herding")
    return chosen == "herding" and fields.get("clip", True) and not fields.get("bias", False)


def from_paper(run: Run) -> Paper | None:
    """What the paper reports of this method under the same protocol, if it does."""
    settings = run.settings
    table = published().get(settings["dataset"])
    memory = settings["memory"]
    stream, equal = settings["stream"], len(set(run.config.get("sizes") or [1, 2])) == 1
    if (
        table is None or stream["classes"] or stream.get("validation") or not equal
    ):  # validation: judged by other images
        return None
    if run.method == "joint":
        return Paper(table["figure"], table["budget"], None, None, table["joint"])
    if memory["size"] != table["memory"] or memory["per"] != "total" or not _as_published(settings):
        return None
    steps = str(run.planned)
    curve = table.get("curves", {}).get(steps, {}).get(run.method)
    average = table["averages"].get(steps, {}).get(run.method)
    last = curve[-1] if curve else table.get("lasts", {}).get(steps, {}).get(run.method)
    if average is None and last is None:
        return None
    return Paper(table["figure"], table["budget"], curve, average, last)
