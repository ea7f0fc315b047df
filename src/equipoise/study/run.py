"""One experiment from Python: ``equipoise.run``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from equipoise.study.experiment import Result, default_directory, load_data
from equipoise.study.processes import Work, launch
from equipoise.study.progress import Reporter
from equipoise.study.recipe import resolve


def run(
    dataset: str = "glyphs",
    *,
    method: str = "wa",
    steps: int | str | None = None,
    recipe: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    reporter: Reporter | None = None,
) -> Result:
    """Run one experiment, or take it up where it stopped.

    ``overrides`` are settings by section, as in a recipe: ``{"train": {"epochs": 3}, "fields": {"norm": 2}}``;
    ``{"runtime": {"devices": 2}}`` learns in two processes (then guard a script with ``if __name__ == "__main__"``).
    """
    sections = {section: dict(values) for section, values in (overrides or {}).items()}
    if steps is not None:
        sections.setdefault("stream", {})["steps"] = steps
    settings = resolve(dataset, method, recipe, seed, sections)
    directory = Path(out) if out else default_directory(settings)
    return launch(Work(settings, directory, partial(load_data, settings, data_root), partial(_given, reporter)))


def _given(reporter: Reporter | None) -> Reporter:
    return reporter or Reporter()
