"""The start and the end of the page: where it shows what, and the list of all runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from plan import ABLATIONS, FAMILY, MORE_OF_TABLE_3, PAPER, RUNS, TABLE_3, TABLE_4
from rows import run_row, software
from stored import Stored

from equipoise.engine.metrics import TOP1, TOP5


def all_runs(stored: Stored) -> dict[str, Any]:
    """Return the list of runs, and where the page shows what."""
    found = [(name, run) for name in RUNS if (run := stored.find(name))]
    rows = [
        run_row(name, run, TOP5 if name.startswith("tiny/") else TOP1, name in stored.outdated) for name, run in found
    ]
    return {
        "runs": rows,
        "planned": len(RUNS),
        "missing": stored.missing,
        "partial": list(stored.partial),
        "outdated": stored.outdated,
        "software": software(run for _, run in found),
        "where": where(stored),
    }


def where(stored: Stored) -> list[dict[str, str]]:
    """Return which table or figure of the paper is in which section, and how many of its runs are done."""
    lite = {method: f"lite/{method}-0" for method in FAMILY}
    steps = [f"lite/{method}-0" for method in TABLE_4] + [name for name in RUNS if name.startswith("steps-")]
    tiny = [f"tiny/{method}-0" for method in (*TABLE_3, *MORE_OF_TABLE_3)]
    choices, tiny_choices = ([f"{folder}/wa-{name}-0" for name in ABLATIONS] for folder in ("lite", "tiny"))
    imagenet = "pictures-of-imagenet-table-3-and-figure-6"
    rows = [
        ("Table 1: misclassified images", "misclassified-images-table-1", [lite["ce"], lite["ce+kd"]]),
        (
            "Table 2: aligning and distillation by step",
            "aligning-and-distillation-by-step-table-2",
            [*(name for method, name in lite.items() if method != "ce+kd+unit"), "lite/joint-0"],
        ),
        ("Table 3: ImageNet", imagenet, tiny),
        ("Table 4: 2, 5, 10 and 20 steps", "2-10-and-20-steps-table-4", steps),
        ("Figure 4: weight norms", "weight-norms-of-old-and-new-classes-figure-4", [lite["ce+kd"]]),
        (
            "Figure 5: confusion matrices",
            "confusion-matrices-figure-5",
            [lite[method] for method in ("ce", "ce+wa", "ce+kd", "wa")],
        ),
        ("Figure 6: choices within WA, here on CIFAR-100", "choices-within-wa-figure-6", choices),
        ("Figure 6: choices within WA, on ImageNet", imagenet, tiny_choices),
        ("The paper's own recipe, 250 epochs", "the-papers-own-recipe", [PAPER]),
    ]
    return [{"what": what, "anchor": anchor, "state": _state(stored, names)} for what, anchor, names in rows]


def _state(stored: Stored, names: Sequence[str]) -> str:
    done = sum(name in stored.runs for name in names)
    begun = [run for name in names if (run := stored.partial.get(name))]
    if done == len(names):
        return "complete"
    if done:
        return f"{done} of {len(names)} runs"
    return f"{len(begun[0].steps)} of {begun[0].planned} steps" if begun else "not run yet"


def tidy(page: str) -> str:
    """Turn links to sections that are left out into plain text, and remove the empty lines that they leave."""
    page = re.sub(r"\n{3,}", "\n\n", page)
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return re.sub(r"\[([^]]+)]\(#([^)]+)\)", lambda link: link[0] if link[2] in anchors else link[1], page)
