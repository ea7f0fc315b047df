"""Which runs are published: a name for each, and what to tell ``equipoise run``."""

from __future__ import annotations

FAMILY = ("ce", "ce+wa", "ce+kd", "ce+kd+wnl", "ce+kd+unit", "wa")
OTHERS = ("joint", "lwf-mc", "icarl", "eeil", "bic", "il2m", "rps", "lucir")
AGAIN = ("wa", "ce+kd", "ce+wa", "ce", "bic")
"""Methods that are run with two more seeds."""
ABLATIONS = {
    "clip-off": "method.clip=false",
    "norm-1": "method.norm=1",
    "bias": "method.bias=true",
    "random": "memory.selection=random",
}
REDRAW = "method.redraw=true"
"""The authors' code draws the whole head anew in each step, the text and our recipe only the new classes' rows."""
REDRAWN = ("ce", "ce+kd", "wa")
LONG = ("ce", "ce+kd")
"""Methods that are run with four times the epochs too: is what they say of the paper the budget's doing?"""
FOUR_TIMES = ("train.epochs=16", "train.first_epochs=32")
LONGER = (("fast", "wa", (0, 1)), ("fast", "bic", (0,)), ("hour", "wa", (0, 1)))
"""Recipe, method and seeds of runs with more time."""


def _run(recipe: str, method: str, seed: int, *settings: str) -> list[str]:
    words = ["--recipe", f"cifar100-{recipe}", "--method", method, "--seed", str(seed)]
    return words + [word for setting in settings for word in ("--set", setting)]


RUNS: dict[str, list[str]] = {
    **{f"lite/{method}-0": _run("lite", method, 0) for method in (*FAMILY, *OTHERS)},
    **{f"lite/{method}-{seed}": _run("lite", method, seed) for seed in (1, 2) for method in AGAIN},
    **{f"lite/wa-{name}-0": _run("lite", "wa", 0, setting) for name, setting in ABLATIONS.items()},
    **{f"redraw/{method}-0": _run("lite", method, 0, REDRAW) for method in REDRAWN},
    "redraw/wa-norm-1-0": _run("lite", "wa", 0, REDRAW, ABLATIONS["norm-1"]),
    **{f"long/{method}-0": _run("lite", method, 0, *FOUR_TIMES) for method in LONG},
    **{f"{recipe}/{method}-{seed}": _run(recipe, method, seed) for recipe, method, seeds in LONGER for seed in seeds},
}
"""Options of ``equipoise run cifar100 --data-root DIR``, by name, in the order in which they are run."""
WITH_PREDICTIONS = {f"lite/{method}-0" for method in ("ce", "ce+wa", "ce+kd", "wa")}
"""Runs whose predictions after the last step are kept too: the confusion matrices are made of them."""
WITH_EVERY_STEP = {"lite/ce+kd-0"}
"""Runs whose predictions after every step are kept: they hold each class's norm."""
