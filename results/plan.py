"""The published runs: a name for each, and the options of ``equipoise run``."""

from __future__ import annotations

FAMILY = ("ce", "ce+wa", "ce+kd", "ce+kd+wnl", "ce+kd+unit", "wa")
OTHERS = ("joint", "lwf-mc", "icarl", "eeil", "bic", "il2m", "rps", "lucir")
MORE_SEEDS = ("wa", "ce+kd", "ce+wa", "ce", "bic")
"""Methods that are run with two more seeds."""
ABLATIONS = {
    "clip-off": "method.clip=false",
    "norm-1": "method.norm=1",
    "bias": "method.bias=true",
    "random": "memory.selection=random",
}
REINIT_HEAD = "method.reinit_head=true"
"""The authors' code reinitialises the whole head in each step; their text and our recipe only add new rows."""
REINITIALISED = ("ce", "ce+kd", "wa")
LONG = ("ce", "ce+kd")
"""Methods that are also run with four times the epochs, to see what depends on the budget."""
FOUR_TIMES = ("train.epochs=16", "train.first_epochs=32")
LONGER = (("fast", "wa", (0, 1)), ("fast", "bic", (0,)), ("hour", "wa", (0, 1)))
"""Recipe, method and seeds of runs with a larger budget."""


def _options(recipe: str, method: str, seed: int, *settings: str) -> list[str]:
    words = ["--recipe", f"cifar100-{recipe}", "--method", method, "--seed", str(seed)]
    return words + [word for setting in settings for word in ("--set", setting)]


RUNS: dict[str, list[str]] = {
    **{f"lite/{method}-0": _options("lite", method, 0) for method in (*FAMILY, *OTHERS)},
    **{f"lite/{method}-{seed}": _options("lite", method, seed) for seed in (1, 2) for method in MORE_SEEDS},
    **{f"lite/wa-{name}-0": _options("lite", "wa", 0, setting) for name, setting in ABLATIONS.items()},
    **{f"redraw/{method}-0": _options("lite", method, 0, REINIT_HEAD) for method in REINITIALISED},
    "redraw/wa-norm-1-0": _options("lite", "wa", 0, REINIT_HEAD, ABLATIONS["norm-1"]),
    **{f"long/{method}-0": _options("lite", method, 0, *FOUR_TIMES) for method in LONG},
    **{
        f"{recipe}/{method}-{seed}": _options(recipe, method, seed)
        for recipe, method, seeds in LONGER
        for seed in seeds
    },
}
"""Options of ``equipoise run cifar100 --data-root DIR`` by name, in the order in which they are run."""
WITH_PREDICTIONS = {f"lite/{method}-0" for method in ("ce", "ce+wa", "ce+kd", "wa")}
"""Runs whose predictions after the last step are kept, for the confusion matrices."""
WITH_EVERY_STEP = {"lite/ce+kd-0"}
"""Runs whose predictions after every step are kept, for the norms of all classes."""
