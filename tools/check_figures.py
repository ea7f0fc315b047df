"""Compare every method with the figures recorded in tests/saved/figures.json, to the last digit.

The figures were recorded with equipoise 0.1.0 (fe23206) on glyphs and digits, seed 0, one thread. Other processors and
versions of torch round differently, so this is not a test: run `make figures` on the machine that the file names.

    python tools/check_figures.py [--record] [DATASET …]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from equipoise.engine.results import StepResult
from equipoise.learn.runtime import processor
from equipoise.methods.registry import registry
from equipoise.study.run import run

FILE = Path(__file__).parents[1] / "tests" / "saved" / "figures.json"
NAMES = ("accuracy", "accuracy_top5", "accuracy_uncorrected", "per_step", "gamma", "norms_old", "norms_new", "figures")


def figures(step: StepResult) -> dict[str, Any]:
    """Return the figures of a step that must not change."""
    plain = step.to_dict()
    errors = {name: [plain[key][name] for key in ("errors", "errors_uncorrected")] for name in ("e_n", "e_on", "e_oo")}
    per_class = [result.accuracy for result in step.per_class]
    return {name: plain[name] for name in NAMES} | errors | {"per_class": per_class}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("datasets", nargs="*", default=["digits", "glyphs"])
    parser.add_argument("--record", action="store_true", help="replace the recorded figures")
    options = parser.parse_args()
    here = {"processor": processor(), "torch": torch.__version__}
    known: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {"machine": here}
    if not options.record and known["machine"] != here:
        print(f"recorded on {known['machine']}, this is {here}: expect differences")
    different = []
    for dataset in options.datasets:
        for name in registry() if options.record else known[dataset]:
            with tempfile.TemporaryDirectory() as folder:
                found = run(dataset, method=name, out=folder, overrides={"runtime": {"threads": 1}})
            rows = [figures(step) for step in found.steps]
            table = known.setdefault(dataset, {})
            if options.record:
                table[name] = rows
            same = table.get(name) == rows
            different += [] if same else [f"{name} on {dataset}"]
            print(f"{dataset:8} {name:12} {'same' if same else 'DIFFERENT'}", flush=True)
    if options.record:
        FILE.write_text(json.dumps(known) + "\n")
    elif different:
        sys.exit(f"{len(different)} methods differ: {', '.join(different)}")


if __name__ == "__main__":
    main()
