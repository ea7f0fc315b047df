"""Output of all commands, escaped so that no name or value can control a terminal.

Control characters in lines for people are escaped; JSON and CSV are escaped in their own ways. Tables and progress
bars go through ``console``, which does the same. ruff rejects ``print`` everywhere else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from equipoise.core.escape import csv_line, json_text
from equipoise.core.open_dir import printable


class OutputError(OSError):
    """Standard output cannot be written, for example because a disk is full."""


@contextmanager
def writing_output() -> Iterator[None]:
    """Distinguish errors of standard output from errors of other files."""
    try:
        yield
    except BrokenPipeError:  # its reader has exited, which is no error
        raise
    except OSError as error:
        raise OutputError(*error.args) from error


@writing_output()
def say(*lines: object, flush: bool = False) -> None:
    """Print lines for people on standard output."""
    for line in lines:
        print(printable(str(line)), flush=flush)


def warn(*lines: object) -> None:
    """Print lines for people on standard error; ignore failures."""
    _to_stderr("".join(f"{printable(str(line))}\n" for line in lines))


def overwrite_line(line: str) -> None:
    """Show progress in the current line of the terminal, on standard error."""
    _to_stderr(f"\r{printable(line)}")


def _to_stderr(text: str) -> None:
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


@writing_output()
def print_json(value: Any) -> None:
    """Print one line of JSON and flush it: a program may be waiting for it."""
    print(json_text(value), flush=True)


@writing_output()
def print_csv(cells: Iterable[object]) -> None:
    """Print one line of CSV."""
    print(csv_line(cells))


def silence(stream: TextIO) -> None:
    """Redirect a stream that cannot be written to, so that Python's flush at exit does not fail."""
    with suppress(OSError):  # it may be no file, or closed
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
        finally:
            os.close(null)


def open_standard_streams() -> None:
    """Connect standard streams that are closed to the null device.

    Otherwise the next file that is opened would get the number of one of them, and messages would be written into it.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
