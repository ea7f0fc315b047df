"""The published runs: a name for each, and the options of ``equipoise run``."""

from __future__ import annotations

from dataclasses import dataclass

FAMILY = ("ce", "ce+wa", "ce+kd", "ce+kd+wnl", "ce+kd+unit", "wa")
OTHERS = ("joint", "lwf-mc", "icarl", "eeil", "bic", "il2m", "rps", "lucir")
NEWER = ("foster", "memo", "podnet", "der", "lwf", "si")
"""Methods that the paper does not compare with, run after all those that it does."""
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
TABLE_4 = ("wa", "ce+kd", "ce", "bic", "icarl", "ce+wa", "eeil", "lwf-mc")
"""Methods that are also run with other numbers of steps."""
OTHER_STEPS = (10, 20, 2)
LONGER = (("fast", "wa", (0, 1)), ("fast", "bic", (0,)), ("hour", "wa", (0, 1)))
"""Recipe, method and seeds of runs with a larger budget."""
FAST_STEPS = (10, 20)
"""Numbers of steps that ``wa`` is also run with, with the recipe ``cifar100-fast``."""
TABLE_3 = ("wa", "bic", "ce+kd", "ce", "icarl", "joint")
MORE_OF_TABLE_3 = ("eeil", "lwf-mc", "ce+wa")
"""Methods that are run on pictures of ImageNet, before and after the ablations of Figure 6."""
EPOCHS_70 = ("bic", "wa", "ce+kd", "ce")
"""Methods that are run with the paper's network and optimizer, and fewer epochs in larger batches."""
PAPER = "paper/wa-0"
"""The paper's own recipe. It takes days, so finished steps are published before the others."""


@dataclass(frozen=True)
class Run:
    """What a published run is made with."""

    recipe: str
    method: str
    seed: int = 0
    settings: tuple[str, ...] = ()
    """Values of ``--set``."""
    dataset: str = "cifar100"
    threads: int | None = None

    @property
    def options(self) -> list[str]:
        """Return the options of ``equipoise run``."""
        words = ["--recipe", self.recipe, "--method", self.method, "--seed", str(self.seed)]
        words += ["--threads", str(self.threads)] if self.threads else []
        return words + [word for setting in self.settings for word in ("--set", setting)]

    @property
    def command(self) -> str:
        """Return the command without local paths."""
        return " ".join(["equipoise run", self.dataset, "--data-root DIR", *self.options])


def _lite(method: str, seed: int = 0, *settings: str) -> Run:
    return Run("cifar100-lite", method, seed, settings)


def _tiny(method: str, *settings: str) -> Run:
    return Run("tiny-imagenet-lite", method, 0, settings, "tiny-imagenet-100")


RUNS: dict[str, Run] = {
    **{f"lite/{method}-0": _lite(method) for method in (*FAMILY, *OTHERS)},
    **{f"lite/{method}-{seed}": _lite(method, seed) for seed in (1, 2) for method in MORE_SEEDS},
    **{f"lite/wa-{name}-0": _lite("wa", 0, setting) for name, setting in ABLATIONS.items()},
    **{f"lite/{method}-0": _lite(method) for method in NEWER},
    **{f"redraw/{method}-0": _lite(method, 0, REINIT_HEAD) for method in REINITIALISED},
    "redraw/wa-norm-1-0": _lite("wa", 0, REINIT_HEAD, ABLATIONS["norm-1"]),
    **{f"long/{method}-0": _lite(method, 0, *FOUR_TIMES) for method in LONG},
    **{
        f"steps-{steps}/{method}-0": _lite(method, 0, f"stream.steps={steps}")
        for steps in OTHER_STEPS
        for method in TABLE_4
    },
    **{
        f"{recipe}/{method}-{seed}": Run(f"cifar100-{recipe}", method, seed)
        for recipe, method, seeds in LONGER
        for seed in seeds
    },
    **{f"tiny/{method}-0": _tiny(method) for method in TABLE_3},
    **{f"tiny/wa-{name}-0": _tiny("wa", setting) for name, setting in ABLATIONS.items()},
    **{f"tiny/{method}-0": _tiny(method) for method in MORE_OF_TABLE_3},
    **{f"fast-{steps}/wa-0": Run("cifar100-fast", "wa", 0, (f"stream.steps={steps}",)) for steps in FAST_STEPS},
    **{f"cifar100-long/{method}-0": Run("cifar100-long", method) for method in EPOCHS_70},
    PAPER: Run("cifar100-paper", "wa", threads=1),
}
"""Runs by name, in the order in which they are executed."""
WITH_PREDICTIONS = {f"lite/{method}-0" for method in ("ce", "ce+wa", "ce+kd", "wa")}
"""Runs whose predictions after the last step are kept, for the confusion matrices."""
WITH_EVERY_STEP = {"lite/ce+kd-0"}
"""Runs whose predictions after every step are kept, for the norms of all classes."""
