"""Compare the time to build the report of a comparison with the time of its runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from timing import Row, seconds

import equipoise as eq
from equipoise.study.compare import compare, plan

OVERRIDES = {"train": {"epochs": 2}}
METHODS = ("ce", "ce+kd", "ce+wa", "wa")


def measure(dataset: str = "glyphs", methods: Sequence[str] = METHODS, seeds: Sequence[int] = (0, 1)) -> Iterator[Row]:
    """Run a comparison with two epochs per step, and build its report three times."""
    cells = plan(dataset, methods, seeds, overrides=OVERRIDES)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        runs = seconds(lambda: compare(cells, root))
        took = median(seconds(lambda: eq.report(root)) for _ in range(3))
    yield Row(
        what=f"report of {len(cells)} runs on {dataset}",
        ours=round(took, 2),
        baseline=round(runs, 1),
        unit="s",
        ratio=round(runs / took, 1),
        versus="the runs themselves, 2 epochs per step",
    )


if __name__ == "__main__":
    for row in measure():
        print(row, flush=True)
