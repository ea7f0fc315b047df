"""For those who wait: how far something has come that takes longer than expected."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TypeVar

T = TypeVar("T")


def counted(things: Iterable[T], total: int, doing: str, unit: str) -> Iterator[T]:
    """Pass ``things`` on. From the third second, stderr tells: a line that is overwritten, or one now and then."""
    terminal = sys.stderr.isatty()
    began = time.monotonic()
    pause = 0.5 if terminal else 30.0
    said, width = began + 2.0 - pause, 0
    for done, thing in enumerate(things):
        now = time.monotonic()
        if now - said > pause:
            said = now
            left = timedelta(seconds=round((now - began) / done * (total - done))) if done else "…"
            line = f"{doing}: {done:,} of {total:,} {unit}, {left} left"
            width = max(width, len(line))
            print(f"\r{line:{width}}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)
        yield thing
    if terminal and width:
        print(f"\r{'':{width}}\r", end="", file=sys.stderr, flush=True)
