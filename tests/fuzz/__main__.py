"""Give damaged and hostile inputs to every reader, and count what they do.

    python -m tests.fuzz                                        # `make fuzz`: 200,000 inputs
    python -m tests.fuzz --inputs 5000 --only pictures recipes  # some readers
    python -m tests.fuzz --seconds 60                           # all readers, for about a minute
    python -m tests.fuzz --only recipes --seed 0 --number 17    # one input again, with its traceback

A reader must accept an input or refuse it with an error of equipoise, in limited time and memory. It may not start a
program, use the network, run code of an input, or write outside of the directory that it was given.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from tests.fuzz.apart import run_apart
from tests.fuzz.loop import MEMORY, SECONDS, Job, Tally, work_directory
from tests.fuzz.readers import READERS, share
from tests.fuzz.watch import WATCH, time_limit, watched

IN_MEMORY = Path("/dev/shm")
"""A file system in memory: on a disk, every ``fsync`` takes milliseconds."""
EVERY = 10
"""Seconds between two lines about the progress."""


class Progress:
    """Prints how far all readers are, how fast this one is, and when all will be done."""

    def __init__(self, inputs: dict[str, int]) -> None:
        self.inputs, self.started, self.shown = inputs, time.monotonic(), time.monotonic()
        self.expected = {name: count / READERS[name].rate for name, count in inputs.items()}
        """Seconds, on the machine where the rates were measured."""
        self.first = 0.0, ""
        """When the reader of this name read its first input."""
        self.done: dict[str, int] = {}

    def show(self, name: str, began: float, tally: Tally) -> None:
        """Print a line, but not too often."""
        now = time.monotonic()
        if not tally.inputs:  # it is still being prepared
            self.first = now, name
        if now - self.shown < EVERY or now - self.first[0] < 1 or self.first[1] != name:
            return
        self.shown = now
        rate = tally.inputs / (now - self.first[0])
        all_done, everything = sum(self.done.values()) + tally.inputs, sum(self.inputs.values())
        before = sum(self.expected[other] for other in self.done)
        slower = (began - self.started) / before if before else 1
        later = sum(seconds for other, seconds in self.expected.items() if other not in self.done and other != name)
        left = later * slower + (self.inputs[name] - tally.inputs) / rate
        say(
            f"{all_done / everything:4.0%}  {name} {tally.inputs:,} of {self.inputs[name]:,}, {rate:,.0f} per second; "
            f"all {all_done:,} of {everything:,}, about {left / 60:.1f} min left"
        )

    def finish(self, name: str, tally: Tally) -> None:
        """Print what a reader did."""
        self.done[name] = tally.inputs
        counts = f"{tally.accepted:,} accepted, {tally.refused:,} refused"
        counts += f", {tally.stopped:,} stopped" if tally.stopped else ""
        say(
            f"{name}: {tally.inputs:,} inputs ({counts}), {tally.rate:,.0f} per second, peak {tally.memory_mb} MB, "
            f"slowest {tally.slowest} s; {tally.tracebacks} tracebacks, {tally.violations} violations",
            *tally.problems,
        )


def say(*lines: str) -> None:
    print("\n".join(lines).encode(errors="backslashreplace").decode(), file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=200_000, help="for all readers together")
    parser.add_argument("--seconds", type=float, help="stop each reader after its share of this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(READERS), choices=READERS, metavar="READER")
    parser.add_argument("--number", type=int, help="read one input only; needs one READER")
    parser.add_argument("--keep", type=Path, help="directory for inputs that do harm")
    options = parser.parse_args(arguments)
    if options.number is not None and len(options.only) != 1:
        parser.error("--number needs --only READER")
    torch.set_num_threads(1)
    memory = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="equipoise-fuzz-", dir=memory) as root:
        return run_all(options, Path(root)) if options.number is None else read_one(options, Path(root))


def run_all(options: argparse.Namespace, root: Path) -> int:
    """Run the readers one after another, and print their counts."""
    inputs = {name: share(name, options.inputs, options.only) for name in options.only}
    progress, counts, total = Progress(inputs), {}, Tally()
    for name, count in inputs.items():
        began = time.monotonic()
        part = progress.expected[name] / sum(progress.expected.values())
        seconds = part * options.seconds if options.seconds else float("inf")
        keep = options.keep and options.keep.resolve()
        job = Job(name, READERS[name].prepare, options.seed, keep, seconds)
        tally = run_apart(job, count, root, partial(progress.show, name, began))
        counts[name], total = tally.facts(), total + tally
        progress.finish(name, tally)
    say(f"peak of all {total.memory_mb} MB, {MEMORY} allowed; {time.monotonic() - progress.started:.0f} s")
    print(json.dumps({**counts, "total": total.facts()}))
    return int(total.harm)


def read_one(options: argparse.Namespace, root: Path) -> int:
    """Read one input again; its error is not caught."""
    (name,) = options.only
    job = Job(name, READERS[name].prepare, options.seed)
    with work_directory(root) as (place, sentinel):
        case = job.prepare(place)(job.random(options.number))
        say(case.about, repr(case.data[:2000]))
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{name}-{options.seed}-{options.number}").write_bytes(case.data)
        try:
            with time_limit(case.stop_after or SECONDS), watched(place):
                case.read()
        finally:
            found = [*WATCH.found, sentinel.problem()]
            say(*(problem for problem in found if problem))
    return 0


if __name__ == "__main__":
    sys.exit(main())
