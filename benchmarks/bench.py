"""Run all benchmarks (`make bench`); print a table and write it as JSON. See docs/performance.md.

Every row compares equipoise with a baseline in the same run, in alternation, so that the machine's own speed cancels
out. On a machine that does other work at the same time, ratios vary by about 10 % between runs.

    python benchmarks/bench.py --compare bench.json other.json      # two machines, or two commits
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import decoding
import extraction
import herding
import learning
import memory_building
import plain_loop
import predicting
import replay
import reporting
import training_step
from timing import HEADER, machine

PARTS = {
    "step": training_step.measure,
    "plain": plain_loop.measure,
    "replay": replay.measure,
    "herding": herding.measure,
    "memory": memory_building.measure,
    "decode": decoding.measure,
    "extract": extraction.measure,
    "learn": learning.measure,
    "predict": predicting.measure,
    "report": reporting.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"benchmarks to run (default: all): {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=Path("bench.json"), help="file to write (default: bench.json)")
    parser.add_argument("--compare", nargs=2, type=Path, metavar="FILE", help="compare two files, and measure nothing")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown benchmark '{min(unknown)}': choose from {', '.join(PARTS)}")
    if options.compare:
        print(*compare(*(json.loads(file.read_text()) for file in options.compare)), sep="\n")
        return
    facts, started = machine(), time.perf_counter()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(HEADER)
    rows: list[dict[str, Any]] = []
    for part in options.parts or PARTS:
        for row in PARTS[part]():
            rows.append({"part": part, **asdict(row)})
            print(row, flush=True)
            options.out.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    missed = [row for row in rows if row["goal"] is not None and row["ratio"] < row["goal"]]
    minutes = (time.perf_counter() - started) / 60
    print(f"{len(rows)} ratios in {minutes:.1f} minutes, {len(missed)} below their goal; written to {options.out}")


def compare(first: dict[str, Any], second: dict[str, Any]) -> Iterator[str]:
    """Yield a table of two files: the ratios of each, which machines have in common, and our own figures."""
    for name, value in first["machine"].items():
        if value != second["machine"].get(name):
            yield f"{name}: {value} | {second['machine'].get(name)}"
    yield f"{'what':46}{'ratio':>8}{'ratio':>8}  {'ours':>10}{'ours':>10}"
    others = {row["what"]: row for row in second["rows"]}
    for row in first["rows"]:
        if other := others.get(row["what"]):
            yield (
                f"{row['what']:46}{row['ratio']:>8,}{other['ratio']:>8,}  "
                f"{row['ours']:>10,}{other['ours']:>10,} {row['unit']}"
            )


if __name__ == "__main__":
    main()
