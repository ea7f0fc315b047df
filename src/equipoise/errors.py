"""What can go wrong because of something the user can mend.

Every message is one sentence that names what was seen and what to do; the command line prints it and exits with 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EquipoiseError(Exception):
    """The root of all errors that equipoise raises on purpose."""


class UsageError(EquipoiseError, ValueError):
    """A setting, name or argument that cannot be."""


class DataError(EquipoiseError, ValueError):
    """Data that is missing, damaged or not what it claims to be."""


class RunError(EquipoiseError):
    """A run directory, checkpoint or training that cannot go on."""


class ToldError(EquipoiseError):
    """An error of the first of several processes, which tells it to the user; the others only end."""


def sentence(error: OSError) -> str:
    """What the system says is wrong, and with which file."""
    return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """An error for a name nobody knows, with the nearest one that exists.

    >>> str(unknown("method", "wq", ["wa", "ce"]))
    "there is no method 'wq': did you mean 'wa'? (known: ce, wa)"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return UsageError(f"there is no {kind} '{name}': {hint}(known: {', '.join(names)})")
