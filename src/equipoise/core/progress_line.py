"""Progress on stderr for work that turns out to take longer than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TypeVar

from equipoise.core.output import overwrite_line, warn

T = TypeVar("T")


def track(items: Iterable[T], total: int, doing: str, unit: str) -> Iterator[T]:
    """Yield the items and print progress with ETA: one line that is overwritten, or a line every 30 s in a pipe."""
    terminal = sys.stderr.isatty()
    started = time.monotonic()
    pause = 0.5 if terminal else 30.0
    printed, width = started + 2.0 - pause, 0
    for done, item in enumerate(items):
        now = time.monotonic()
        if now - printed > pause:
            printed = now
            left = timedelta(seconds=round((now - started) / done * (total - done))) if done else "…"
            line = f"{doing}: {done:,} of {total:,} {unit}, {left} left"
            width = max(width, len(line))
            if terminal:
                overwrite_line(f"{line:{width}}")
            else:
                warn(line)
        yield item
    if terminal and width:
        overwrite_line(" " * width)
        overwrite_line("")
