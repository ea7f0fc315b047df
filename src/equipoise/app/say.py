"""Answers as they come: for people, as JSON lines, or as CSV."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterable
from typing import Literal

from equipoise.app.predict import Said
from equipoise.errors import DataError


def answers(said: Iterable[Said], top: int, form: Literal["text", "json", "csv"]) -> None:
    """Print each answer; at the end, an error says how many images had none."""
    failed = asked = 0
    table = csv.writer(sys.stdout, lineterminator="\n")
    if form == "csv":
        numbers = ["" if rank == 1 else f"_{rank}" for rank in range(1, top + 1)]
        table.writerow(["path", *(f"{name}{n}" for n in numbers for name in ("class", "probability"))])
    show_count = sys.stderr.isatty() and not sys.stdout.isatty()
    told = time.monotonic()
    for one in said:
        asked += 1
        if show_count and time.monotonic() - told > 1:
            told = time.monotonic()
            print(f"\r{asked:,} images", end="", file=sys.stderr, flush=True)
        failed += one.error is not None
        if form == "json":
            print(json.dumps(one.plain(), ensure_ascii=False))
        elif one.error is not None:
            print(f"equipoise: {one.path}: {one.error}", file=sys.stderr)
        elif form == "csv":
            table.writerow([one.path, *(cell for name, share in one.guesses for cell in (name, f"{share:.6f}"))])
        else:
            print(f"{one.path}  " + "  ".join(f"{name} {share:.1%}" for name, share in one.guesses))
    if show_count:
        print("\r", end="", file=sys.stderr)
    if failed:
        raise DataError(f"{failed} of {asked} images could not be read")
