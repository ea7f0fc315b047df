"""Errors that the user can fix.

Each message is one sentence with the cause, what was seen and the remedy. The command line prints it and exits with 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHOWN = 50
"""Known names that an error lists, at most."""


class EquipoiseError(Exception):
    """Base class of all errors that equipoise raises on purpose."""


class UsageError(EquipoiseError, ValueError):
    """Invalid setting, name or argument."""


class DataError(EquipoiseError, ValueError):
    """Data that is missing, damaged or not what it claims to be."""


class RunError(EquipoiseError):
    """A run, model directory or training that cannot continue."""


class LockedError(RunError):
    """A directory that another process is writing to."""


class ReportedError(EquipoiseError):
    """An error that the main process reports to the user; the other processes only exit."""


def describe_os_error(error: OSError) -> str:
    """Return the system's message with the file it is about."""
    return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Return an error for an unknown name that suggests the closest known one.

    >>> str(unknown_name("method", "wq", ["wa", "ce"]))
    "unknown method 'wq': did you mean 'wa'? (known: ce, wa)"
    >>> str(unknown_name("class", "a", ["A", "b"]))
    "unknown class 'a': did you mean 'A'? (known: A, b)"
    """
    names, name = sorted(known), name if len(name) <= 100 else f"{name[:99]}…"
    lower = {known_name.lower(): known_name for known_name in names}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.4)
    hint = f": did you mean '{lower[close[0]]}'?" if close else ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return UsageError(f"unknown {kind} '{name}'{hint} (known: {', '.join(names[:SHOWN])}{more})")
