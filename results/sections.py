"""What the templates show, section by section. A section without runs has no values and is left out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from claims import LITTLE, averages_fall, check_claims
from evidence import Claim, GroupMeans
from plan import (
    EPOCHS_70,
    FAMILY,
    FAST_STEPS,
    LONG,
    MORE_OF_TABLE_3,
    NEWER,
    PAPER,
    REINITIALISED,
    RUNS,
    TABLE_3,
    TABLE_4,
)
from rows import (
    ablation_rows,
    average,
    by_classes,
    error_rows,
    method_row,
    steps_row,
    table_4,
    weights,
)
from stored import Groups, Stored

from equipoise.core.config import init_values
from equipoise.engine.metrics import TOP1, TOP5
from equipoise.learn.schedule import Schedule
from equipoise.methods.registry import make
from equipoise.study.report.comparison_tables import gains
from equipoise.study.report.groups import RunGroup
from equipoise.study.report.paper import published
from equipoise.study.report.runs import RunRecord

Longer = Sequence[tuple[str, RunGroup]]
STEPS = (2, 5, 10, 20)
ROWS_OF_TABLE_4 = ("ce", "ce+wa", "ce+kd", "lwf-mc", "icarl", "eeil", "bic", "wa", "joint")
ROWS_OF_TABLE_3 = ("ce", "ce+wa", "ce+kd", "lwf-mc", "icarl", "eeil", "bic", "rps", "wa", "joint")
FIVE_STEPS = ("lite/", "redraw/", "long/", "fast/", "hour/")
"""Folders of the runs that the notes on five steps are about."""
POINT = 1.0
"""A distance from the paper, in points of accuracy, that needs a reason."""


def five_steps(stored: Stored, lite: Groups, longer: Longer) -> dict[str, Any]:
    """Return the tables of runs with five steps of 20 classes."""
    runs = stored.runs
    family = [RunGroup(label, lite[label].runs[:1]) for label in FAMILY if label in lite]
    bound = [RunGroup("joint", lite["joint"].runs[:1])] if "joint" in lite else []
    methods = {label: method_row(label, group, TOP1, stored.is_outdated(group.runs)) for label, group in lite.items()}
    newer = {f"lite/{method}-0" for method in NEWER}  # the notes are not about them
    slow = [
        {**method_row(group.label, group, TOP1, stored.is_outdated(group.runs)), "recipe": recipe}
        for recipe, group in longer
    ]
    return {
        "methods": list(methods.values()),
        "by": methods,
        "gains": gains([*family, *bound]),
        "errors": [row for group in family for row in error_rows(group.runs[0])],
        "norms": [step for step in runs["lite/ce+kd-0"].steps if step.norms_old] if "lite/ce+kd-0" in runs else [],
        "ablations": ablation_rows(lite["wa"], stored.ablations("lite")) if "wa" in lite else [],
        "longer": slow,
        "recipe": runs["lite/wa-0"].settings["train"] if "lite/wa-0" in runs else None,
        "own_augment": own_augment(lite),
        "own_settings": own_settings(lite),
        "last": {name: run.steps[-1] for name, run in runs.items()},
        "average": {name: average(RunGroup(name, [run])) for name, run in runs.items()},
        "weights": {name: weights(name) for name in ("fast", "fast-wide", "resnet32")},
        "of": GroupMeans(lite).last,
        "settled": not any(name.startswith(FIVE_STEPS) for name in stored.missing if name not in newer),
    }


def own_augment(groups: Groups) -> dict[str, list[str]]:
    """Return the methods whose images are augmented in another way than those of ``wa``, and how."""
    settings = {label: group.runs[0].settings["augment"] for label, group in groups.items()}
    return {label: names for label, own in settings.items() if (names := changed(own, settings.get("wa", {})))}


def own_settings(groups: Groups) -> dict[str, list[str]]:
    """Return what the recipe sets for one method: schedules unlike that of ``wa``, fields unlike the defaults."""
    settings = {label: group.runs[0].settings for label, group in groups.items()}
    usual = init_values(Schedule()) | settings["wa"]["train"] if "wa" in settings else {}  # old runs do not store all
    found = {
        label: changed(own["train"], usual or own["train"]) + changed(own["fields"], init_values(make(label)))
        for label, own in settings.items()
        if label not in FAMILY
    }
    return {label: names for label, names in found.items() if names}


def changed(own: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    """Return the settings that differ, as TOML writes them."""
    texts = {name: json.dumps(value) for name, value in own.items()}
    return [f"{name} = {text}" for name, text in texts.items() if text != json.dumps(usual.get(name))]


def five_step_claims(stored: Stored, lite: Groups, longer: Longer) -> dict[str, Any]:
    """Return the paper's claims for five steps, with our recipe and with others."""
    long = stored.groups("long", LONG)
    fast = {group.label: group for recipe, group in longer if recipe == "fast"}
    reinitialised = stored.groups("redraw", REINITIALISED)
    if "redraw/wa-norm-1-0" in stored.runs:
        reinitialised["norm-1"] = RunGroup("norm-1", [stored.runs["redraw/wa-norm-1-0"]])
    epochs_70 = stored.groups("cifar100-long", EPOCHS_70)
    claims_70 = check_claims(epochs_70, lite, is_outdated=stored.is_outdated)
    claims = check_claims(lite | stored.ablations("lite"), is_outdated=stored.is_outdated)
    others = [
        ("four times the epochs", check_claims(long, lite, is_outdated=stored.is_outdated)),
        ("`cifar100-fast`", check_claims(fast, lite, is_outdated=stored.is_outdated)),
        ("head reinitialised", check_claims(reinitialised, lite, is_outdated=stored.is_outdated)),
    ]
    return {
        "claims": claims,
        "long": [method_row(label, group) for label, group in long.items()],
        "other_claims": others,
        "claims_70": claims_70,
        "verdicts_70": {claim.statement: claim for claim in claims_70},
        "little": LITTLE,
    }


def groups_by_steps(stored: Stored, lite: Groups) -> dict[int, Groups]:
    """Return the groups of Table 4 for each number of steps."""
    methods = (*TABLE_4, "joint")
    five = {label: lite[label] for label in methods if label in lite}
    return {steps: five if steps == 5 else stored.groups(f"steps-{steps}", methods) for steps in STEPS}


def other_steps(stored: Stored, by_steps: Mapping[int, Groups], lite: Groups) -> dict[str, Any]:
    """Return Table 4, the accuracy after each step, and the claims for each number of steps."""
    others = {steps: groups for steps, groups in by_steps.items() if steps != 5 and groups}
    checked = {
        steps: {claim.statement: claim for claim in check_claims(groups, lite, is_outdated=stored.is_outdated)}
        for steps, groups in by_steps.items()
    }
    fall = averages_fall(by_steps, stored.is_outdated)
    fast = {5: stored.groups("fast", ["wa"])} | {n: stored.groups(f"fast-{n}", ["wa"]) for n in FAST_STEPS}
    return {
        "step_counts": STEPS,
        "tested_steps": [steps for steps in STEPS if steps == 5 or steps in others],
        "table_4": table_4(by_steps, ROWS_OF_TABLE_4, stored) if others else [],
        "fast_steps": [average(groups["wa"]) if (groups := fast.get(steps)) else None for steps in STEPS],
        "has_fast_steps": any(fast[steps] for steps in FAST_STEPS),
        "by_classes": {steps: by_classes(groups) for steps, groups in others.items() if steps > 2},
        "step_claims": _verdicts(checked, [steps for steps in STEPS if steps in others]),
        "fall": fall,
    }


def _verdicts(checked: Mapping[int, Mapping[str, Claim]], others: Sequence[int]) -> list[dict[str, Any]]:
    """Return one row per claim that is tested with another number of steps than five."""
    tested = {statement for steps in others for statement in checked[steps]}
    statements = dict.fromkeys(statement for steps in (5, *others) for statement in checked[steps])
    return [
        {"statement": statement, "by": {steps: checked[steps].get(statement) for steps in STEPS}}
        for statement in statements
        if statement in tested
    ]


def tiny(stored: Stored) -> dict[str, Any]:
    """Return Table 3 and Figure 6 of the paper in miniature: top-5 on pictures of ImageNet."""
    groups = stored.groups("tiny", (*TABLE_3, *MORE_OF_TABLE_3))
    ablations = stored.ablations("tiny")
    paper = published()["imagenet100"]
    rows = []
    for label in ROWS_OF_TABLE_3:
        group = groups.get(label)
        ours = method_row(label, group, TOP5, stored.is_outdated(group.runs)) if group else None
        last = paper["joint"] if label == "joint" else paper["lasts"]["10"].get(label)
        theirs = {"last": last, "average": paper["averages"]["10"].get(label)}
        rows.append({"label": label, "ours": ours, "planned": f"tiny/{label}-0" in RUNS, **theirs})
    usual = groups.get("wa")
    first = usual.runs[0] if usual else None
    return {
        "tiny": rows if groups else [],
        "tiny_run": steps_row("tiny/wa-0", first) if first else None,
        "tiny_memory": first.settings["memory"]["size"] if first else None,
        "tiny_ablations": ablation_rows(usual, ablations, TOP5) if usual and ablations else [],
        "tiny_claims": check_claims(groups | ablations, metric=TOP5, is_outdated=stored.is_outdated),
        "imagenet": paper,
    }


def paper_recipe(stored: Stored) -> dict[str, Any]:
    """Return the runs with the paper's network and optimizer: its own recipe, and the one with 70 epochs."""
    own = stored.find(PAPER)
    names = [f"cifar100-long/{method}-0" for method in EPOCHS_70]
    return {
        "own": steps_row(PAPER, own) if own else None,
        "own_gaps": gaps_to_paper(own) if own else [],
        "point": POINT,
        "own_threads": RUNS[PAPER].threads,
        "epochs_70": [steps_row(name, run) for name in names if (run := stored.find(name))],
    }


def gaps_to_paper(run: RunRecord) -> list[dict[str, Any]]:
    """Return the average and the last accuracy beside the paper's, or those of the finished steps."""
    row, done = steps_row(PAPER, run), len(run.steps)
    ours, theirs = row["tops"][:done], row["paper"].curve[:done]
    whole = done == row["planned"]
    pairs = [(f"after step {done}", ours[-1], theirs[-1])]
    if done > 2:
        average = row["paper"].average if whole else fmean(theirs[1:])
        pairs = [(f"average of steps 2–{done}", fmean(ours[1:]), average), *pairs]
    return [{"what": what, "ours": mine, "paper": other, "gap": mine - other} for what, mine, other in pairs]
