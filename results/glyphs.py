"""Run every method that trains a network once on glyphs, and write the table in docs/methods.md.

    OMP_NUM_THREADS=1 python results/glyphs.py

It takes eleven minutes of one core. A call continues where the last one stopped, and the table is written at the end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from rows import origin

from equipoise.core.directory import Directory
from equipoise.pages.text import one_decimal
from equipoise.study.report.groups import RunGroup, read_comparison

PAGE = Path(__file__).parent.parent / "docs" / "methods.md"
METHODS = (
    "joint", "wa", "ce+wa", "ce", "replay", "ce+kd", "ce+kd+wnl", "ce+kd+unit", "eeil", "bic", "il2m", "icarl",
    "lwf-mc", "rps", "lucir", "podnet", "der", "foster", "memo", "m2kd", "simple-nem", "acil", "lwf", "gan-replay",
    "si", "mas", "ewc", "finetune",
)  # fmt: skip
COMMAND = ("compare", "glyphs", "--methods", ",".join(METHODS), "--seeds", "0", "--threads", "1")
BEGIN, END = "<!-- results/glyphs.py writes this -->\n", "<!-- to here -->\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/methods"), help="directory of the comparison")
    out = parser.parse_args().out
    subprocess.run([sys.executable, "-m", "equipoise", *COMMAND, "--out", str(out)], check=True)
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), out), encoding="utf-8")


def written(page: str, out: Path) -> str:
    """Return the page with the table of the comparison in ``out``."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + "\n" + table(out) + "\n\n" + END + after


def table(out: Path) -> str:
    """Return a row per method: the last accuracy, the same before the correction, and the average."""
    groups = read_comparison(Directory(out)).groups
    run = groups[0].runs[0]
    cpu, torch = run.config["machine"]["cpu"], run.config["versions"]["torch"]
    where = f"Seed 0, one thread of {cpu}, PyTorch {torch}, commit {origin(run)['commit']}."
    head = ["| method | last | before its correction | average of steps 2–5 |", "|---|---|---|---|"]
    return "\n".join([*head, *map(_row, groups), "", where])


def _row(group: RunGroup) -> str:
    accuracy, before = (group.values(name)[0] for name in ("accuracy", "accuracy_uncorrected"))
    uncorrected = one_decimal(before[-1]) if group.runs[0].corrected else ""
    return f"| `{group.label}` | {accuracy[-1]:.1f} | {uncorrected} | {accuracy[1:].mean():.1f} |"


if __name__ == "__main__":
    main()
