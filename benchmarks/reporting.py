"""How long the page of a comparison takes to build, against the time its runs took."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from turns import seconds

import equipoise as eq

OVERRIDES = {"train": {"epochs": 2}}


def measure() -> Iterator[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        learned = seconds(
            lambda: eq.compare("glyphs", ["ce", "ce+kd", "ce+wa", "wa"], seeds=[0, 1], out=root, overrides=OVERRIDES)
        )
        took = median(seconds(lambda: eq.report(root)) for _ in range(3))
    yield {
        "what": "report of eight runs on glyphs",
        "ours": round(took, 2),
        "theirs": round(learned, 1),
        "unit": "s",
        "ratio": round(learned / took, 1),
        "than": "the runs themselves, 2 epochs a step",
        "goal": None,
    }


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row), flush=True)
