"""Give inputs to a reader, and count what it does with them."""

from __future__ import annotations

import mmap
import os
import resource
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from equipoise.errors import EquipoiseError
from tests.fuzz.watch import WATCH, Sentinel, TimeLimitError, time_limit, watched

SECONDS = 10
"""Time for one input."""
MEMORY = 1536
"""Megabytes that a reader may take, torch included."""
OWN_MB = 512
"""Megabytes that a process of the fuzzer takes before its first input, at most."""
SHOWN = 20
"""Problems that are shown for each reader."""


class RefusedError(Exception):
    """A reader that returns what is wrong, instead of raising an error, has refused an input."""


@dataclass(frozen=True)
class Case:
    """One input, and the call that reads it; ``refused`` are the errors that it may end in."""

    data: bytes
    read: Callable[[], object]
    about: str = ""
    refused: tuple[type[BaseException], ...] = (EquipoiseError, RefusedError)
    stop_after: float | None = None
    """Seconds after which a command that may be told to do a lot of work is stopped, which is no violation."""


Make = Callable[[Random], Case]
"""Makes one input from random numbers."""
Prepare = Callable[[Path], Make]
"""Gets a directory to work in, reads all unchanged inputs once, and returns what makes changed ones."""


@dataclass
class Tally:
    """What a reader did with its inputs."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    stopped: int = 0
    """Commands that were told to do a lot of work, and did it until their time was over."""
    tracebacks: int = 0
    violations: int = 0
    memory_mb: int = 0
    slowest: float = 0.0
    """Seconds for one input."""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def harm(self) -> bool:
        return bool(self.tracebacks or self.violations)

    @property
    def rate(self) -> float:
        return round(self.inputs / max(self.seconds, 1e-3), 1)

    def facts(self) -> dict[str, Any]:
        """Return the counts."""
        facts = asdict(self) | {"seconds": round(self.seconds, 1), "rate": self.rate}
        del facts["problems"]
        return facts

    def __add__(self, other: Tally) -> Tally:
        total = Tally(**{name: value + getattr(other, name) for name, value in vars(self).items()})
        total.memory_mb, total.slowest = max(self.memory_mb, other.memory_mb), max(self.slowest, other.slowest)
        return total


@dataclass(frozen=True)
class Job:
    """A reader and the inputs that it gets.

    Parameters
    ----------
    name
        Of the reader; together with ``seed`` and the number, it decides an input.
    prepare
        The reader.
    seed
        Of all random numbers.
    keep
        Where inputs are saved that do harm.
    seconds
        After which no further input is read.
    """

    name: str
    prepare: Prepare
    seed: int
    keep: Path | None = None
    seconds: float = float("inf")

    def random(self, number: int) -> Random:
        return Random(f"{self.seed} {self.name} {number}")


@contextmanager
def work_directory(root: Path) -> Iterator[tuple[Path, Sentinel]]:
    """Make the directory of a reader and the sentinel beside it, and work there.

    Names relative to an open directory seem relative to the current one to the audit hook, so both have to be the same.
    """
    place, before = root / "work", os.environ.get("EQUIPOISE_CACHE")
    place.mkdir(parents=True)
    sentinel = Sentinel(root)
    os.environ["EQUIPOISE_CACHE"] = str(place / "cache")
    try:
        with chdir(place), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield place, sentinel
    finally:
        os.environ.pop("EQUIPOISE_CACHE")
        if before is not None:
            os.environ["EQUIPOISE_CACHE"] = before


def run(job: Job, numbers: range, root: Path, begin: Callable[[int, Tally], object]) -> tuple[Tally, int]:
    """Give a reader the inputs of these numbers, until one of them takes too much memory.

    ``begin`` is called before each input. Returns the counts, and the number after the last input.
    """
    tally, kinds, next_number = Tally(), Counter[str](), numbers.start
    _inherited(os.getpid())  # before the first input
    with work_directory(root) as (place, sentinel):
        make = job.prepare(place)
        started = time.monotonic()
        for number in numbers:
            if time.monotonic() - started > job.seconds:
                next_number = numbers.stop
                break
            begin(number, tally)
            case, problem = _made(make, job.random(number), tally)
            if case is not None:
                problem = _read(case, place, sentinel, tally)
            next_number = number + 1
            if problem is not None:
                _record(job, number, case, problem, kinds, tally)
            if tally.memory_mb > MEMORY:
                break
        tally.seconds = time.monotonic() - started
    return tally, next_number


def _made(make: Make, random: Random, tally: Tally) -> tuple[Case | None, str | None]:
    """Make an input; that this fails is a mistake of the fuzzer, which must not hide what comes after."""
    tally.inputs += 1
    try:
        return make(random), None
    except Exception as error:
        tally.violations += 1
        return None, f"the fuzzer cannot make this input: {_where(error)}"


def _record(job: Job, number: int, case: Case | None, problem: str, kinds: Counter[str], tally: Tally) -> None:
    """Keep a problem, unless there are others of its kind already."""
    kind = problem.partition("\n")[0]
    kinds[kind] += 1
    if kinds[kind] > 2 or len(tally.problems) >= SHOWN:
        return
    tally.problems.append(f"{repeat(job, number)}\n{case.about if case else ''}\n{problem}")
    if job.keep is not None and case is not None:
        job.keep.mkdir(parents=True, exist_ok=True)
        (job.keep / f"{job.name}-{job.seed}-{number}").write_bytes(case.data)


def repeat(job: Job, number: int) -> str:
    """Return the command that reads one input again."""
    return f"python -m tests.fuzz --only '{job.name}' --seed {job.seed} --number {number}"


def _read(case: Case, place: Path, sentinel: Sentinel, tally: Tally) -> str | None:
    """Read one input; return what is wrong, the place first and the message in the last line."""
    started, problem, limit = time.monotonic(), None, case.stop_after or SECONDS
    try:
        with time_limit(limit), watched(place):
            case.read()
        tally.accepted += 1
    except case.refused:
        tally.refused += 1
    except TimeLimitError:
        if case.stop_after is None:
            problem = f"it takes longer than {limit} s"
        else:
            tally.stopped += 1
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too
        tally.tracebacks += 1
        return _where(error)
    seconds = time.monotonic() - started
    tally.slowest = max(tally.slowest, round(seconds, 2))
    problem = problem or _cost(seconds, limit, tally) or next(iter(WATCH.found), None) or sentinel.problem()
    tally.violations += problem is not None
    return problem


def memory_of(process: int) -> int:
    """Return the megabytes that a process takes now; 0 if it has ended, or the system cannot tell."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * mmap.PAGESIZE >> 20
    except (OSError, IndexError, ValueError):
        return 0


@cache
def _inherited(process: int) -> int:
    """Return the megabytes that this process, which was forked, has from a larger one, such as that of pytest."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak, which is inherited, too
    return max(0, peak_mb() - OWN_MB)


def peak_mb() -> int:
    """Return the most memory that this process has taken, in megabytes."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) >> 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _cost(seconds: float, limit: float, tally: Tally) -> str | None:
    """Return whether an input took too long in C, where no signal stops it, or too much memory."""
    tally.memory_mb = peak_mb() - _inherited(os.getpid())
    if tally.memory_mb > MEMORY:
        return f"it takes more memory than {MEMORY} MB\n{tally.memory_mb} MB"
    return f"it takes longer than {limit} s\n{seconds:.0f} s" if seconds > limit + 2 else None


def _where(error: BaseException) -> str:
    """Return the last places of a traceback, and the message in the last line."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames))
    return f"{where}\n{type(error).__name__}: {str(error)[:200]!r}"
