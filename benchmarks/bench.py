"""Run all benchmarks (`make bench`); print a table and write it as JSON. See docs/performance.md.

Every row compares equipoise with a baseline in the same run, in alternation, so that the machine's own speed cancels
out. On a machine that does other work at the same time, ratios vary by about 10 % between runs.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import extraction
import herding
import predicting
import replay
import reporting
import training_step
from timing import HEADER, machine

PARTS = {
    "step": training_step.measure,
    "replay": replay.measure,
    "herding": herding.measure,
    "extract": extraction.measure,
    "predict": predicting.measure,
    "report": reporting.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"benchmarks to run (default: all): {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=Path("bench.json"), help="file to write (default: bench.json)")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown benchmark '{min(unknown)}': choose from {', '.join(PARTS)}")
    facts = machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(HEADER)
    rows = []
    for part in options.parts or PARTS:
        for row in PARTS[part]():
            rows.append({"part": part, **asdict(row)})
            print(row, flush=True)
            options.out.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
