"""All ratios of one run, as a table and as JSON with the machine's facts: `make bench` (docs/performance.md explains).

Every row compares ours with something else in turns, so that the machine's own speed cancels out. On a machine that
does other work at the same time, rows differ from one call to the next by a tenth.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import herding
import predicting
import replay
import reporting
import training_step
from turns import machine

PARTS = {
    "step": training_step.measure,
    "replay": replay.measure,
    "herding": herding.measure,
    "predict": predicting.measure,
    "report": reporting.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"all unless named: {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    asked = parser.parse_args()
    if strange := set(asked.parts) - set(PARTS):
        parser.error(f"there is no part '{min(strange)}': there are {', '.join(PARTS)}")
    facts = machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(f"{'what':42}{'ours':>10}{'theirs':>10} {'unit':9}{'ratio':>8}  than")
    rows = []
    for part in asked.parts or PARTS:
        for row in PARTS[part]():
            rows.append({"part": part, **row})
            goal = "" if row["goal"] is None else f" (goal {row['goal']:g})"
            numbers = f"{row['ours']:>10,}{row['theirs']:>10,} {row['unit']:9}{row['ratio']:>8,}"
            print(f"{row['what']:42}{numbers}  {row['than']}{goal}", flush=True)
            asked.out.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    print(f"written to {asked.out}")


if __name__ == "__main__":
    main()
