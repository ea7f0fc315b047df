"""What the exit code of a command means."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of all commands. Programs may rely on them; ``equipoise --help`` lists them in one line.

    A server or launcher that starts processes exits with the code of the problem that occurred in them.
    """

    OK = 0
    """The command succeeded."""
    PROBLEM = 1
    """`data check` or `doctor` found a problem, the output could not be written, or there is a bug (a traceback)."""
    ERROR = 2
    """The command failed; one sentence on standard error says why."""
    STOPPED = 130
    """Ctrl-C or SIGTERM stopped the command."""


SUMMARY = "Exit codes: 0 done, 1 problem found or output lost, 2 error, 130 stopped."
"""The last line of ``equipoise --help``."""
