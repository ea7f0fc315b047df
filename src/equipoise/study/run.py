"""One experiment from Python: ``equipoise.run``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from equipoise.core.config import with_settings
from equipoise.core.seeding import preserve_rng
from equipoise.engine.recipes import resolve
from equipoise.learn.method import Method
from equipoise.methods.registry import register
from equipoise.study.console import RunListener
from equipoise.study.experiment import RunResult, default_directory, load_data
from equipoise.study.process_group import RunTask, launch


def run(
    dataset: str = "glyphs",
    *,
    method: str | type[Method] = "wa",
    steps: int | str | None = None,
    recipe: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    listener: RunListener | None = None,
) -> RunResult:
    """Run an experiment, or continue an interrupted one.

    Parameters
    ----------
    dataset
        Name of a data set, as `equipoise datasets` lists them.
    method
        Name of a method, as `equipoise methods` lists them, or a class of your own.
    steps
        A number of equal steps or their sizes, such as 5 or "50,10x5" (default: the recipe's).
    recipe
        Name of a recipe or path of a TOML file (default: the data set's).
    seed
        Random seed.
    out
        The run's directory (default: below ``runs``).
    data_root
        Where the data is stored or downloaded to.
    overrides
        Settings by section, as in a recipe: ``{"train": {"epochs": 3}, "fields": {"norm": 2}}``.
        ``{"runtime": {"devices": 2}}`` trains in two processes; guard the script with ``if __name__ == "__main__"``.
    listener
        Receives progress events.

    Returns
    -------
    RunResult
        The directory, the result of each step, and the summary.
    """
    sections = with_settings(overrides or {}, {"stream.steps": steps})
    name = register(method) if isinstance(method, type) else method
    settings = resolve(dataset, name, recipe, seed, sections)
    directory = Path(out) if out else default_directory(settings)
    load = partial(load_data, settings, data_root)
    with preserve_rng():
        return launch(RunTask(settings, directory, load, listeners=[listener] if listener else []))
