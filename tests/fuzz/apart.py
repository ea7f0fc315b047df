"""Run a reader in a process of its own, so that its memory is its own and a crash is one violation."""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import struct
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.fuzz.loop import SHOWN, Job, Tally, memory_of, repeat, run

KILL_MB = 8192
"""Megabytes at which a process is killed, so that the machine stays usable."""
KILL_SECONDS = 90
"""Seconds without progress after which it is killed: native code cannot be stopped in another way."""
COUNTS = ("accepted", "refused", "stopped", "tracebacks", "violations")
Report = Callable[[Tally], object]


class Board:
    """Memory in which a process shows the number of the input that it reads, and its counts."""

    LAYOUT = struct.Struct("6q")

    def __init__(self, number: int) -> None:
        self._memory = mmap.mmap(-1, self.LAYOUT.size)
        self.show(number, Tally())

    def show(self, number: int, tally: Tally) -> None:
        self.LAYOUT.pack_into(self._memory, 0, number, *(getattr(tally, name) for name in COUNTS))

    def read(self) -> tuple[int, Tally]:
        number, *counts = self.LAYOUT.unpack_from(self._memory, 0)
        tally = Tally(**dict(zip(COUNTS, counts, strict=True)))
        tally.inputs = sum(counts)
        return number, tally


def run_apart(job: Job, count: int, root: Path, report: Report = lambda tally: None) -> Tally:
    """Give a reader its inputs in a process; when that ends early, another one continues with the next input."""
    total, start, processes = Tally(), 0, 0
    while start < count:
        here = root / f"{job.name}-{processes}"
        tally, start = _Child(job, range(start, count), here).follow(partial(_report_sum, report, total))
        total, processes = total + tally, processes + 1
        if processes > SHOWN:
            total.problems.append(f"{job.name}: {processes} processes ended early; the other inputs are left out")
            break
    return total


def _report_sum(report: Report, before: Tally, now: Tally) -> None:
    report(before + now)


class _Child:
    """A process that reads inputs."""

    def __init__(self, job: Job, numbers: range, root: Path) -> None:
        self.job, self.numbers, self.board, self.why = job, numbers, Board(numbers.start), ""
        self.pipe, writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            self._work(root, writing)
        os.close(writing)

    def _work(self, root: Path, writing: int) -> None:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libtiff prints what it thinks of a file
            tally, reached = run(self.job, self.numbers, root, self.board.show)
            answer: Any = {"tally": vars(tally), "reached": reached}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        try:
            os.write(writing, json.dumps(answer).encode())
        finally:
            os._exit(0)

    def follow(self, report: Report) -> tuple[Tally, int]:
        """Wait for the process; return its counts and the next number."""
        try:
            data = self._wait(report)
        except BaseException:
            os.kill(self.pid, signal.SIGKILL)
            raise
        finally:
            os.close(self.pipe)
            status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        answer = json.loads(data) if data else {}
        number, tally = self.board.read()
        if "tally" in answer:
            return Tally(**answer["tally"]), answer["reached"]
        tally.inputs, tally.violations = tally.inputs + 1, tally.violations + 1
        if "error" in answer:  # not by an input: the reader cannot be prepared, or the fuzzer has a mistake
            tally.problems.append(f"{self.job.name}: the fuzzer failed at number {number}\n{answer['error']}")
            return tally, self.numbers.stop
        tally.problems.append(f"{repeat(self.job, number)}\n{self.why or f'the process ended with {status}'}")
        return tally, number + 1

    def _wait(self, report: Report) -> bytes:
        data, last, moved = b"", -1, time.monotonic()
        while True:
            if select.select([self.pipe], [], [], 0.1)[0]:
                part = os.read(self.pipe, 1 << 16)
                if not part:
                    return data
                data += part
            number, tally = self.board.read()
            if number != last:
                last, moved = number, time.monotonic()
            self._kill_if(memory_of(self.pid) > KILL_MB, f"it takes more memory than {KILL_MB} MB")
            self._kill_if(time.monotonic() - moved > KILL_SECONDS, f"it takes longer than {KILL_SECONDS} s")
            report(tally)

    def _kill_if(self, harm: bool, why: str) -> None:
        if harm and not self.why:
            self.why = why
            os.kill(self.pid, signal.SIGKILL)
