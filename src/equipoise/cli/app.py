"""The command-line app; the other modules add their commands."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Annotated, TypeVar

from cyclopts import App, Group, Parameter

from equipoise.cli.exit_codes import SUMMARY
from equipoise.version import __version__

app = App(
    name="equipoise",
    help="Class-incremental learning: learn new classes without forgetting the old ones.",
    help_epilogue=f"equipoise COMMAND --help shows options and examples.\n{SUMMARY}",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # cyclopts would exit silently
)

F = TypeVar("F", bound=Callable[..., None])
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]

MODELS = Group("Your own classifier", sort_key=1)
STUDIES = Group("Experiments", sort_key=2)
SETUP = Group("Installation", sort_key=3)

_order = itertools.count()


def command(group: Group, *examples: str, parent: App = app) -> Callable[[F], F]:
    """Return a decorator that adds a command; ``--help`` lists them in the order in which they are defined.

    Parameters
    ----------
    group
        Where ``--help`` lists the command.
    *examples
        Command lines without ``equipoise``, which its own help ends with.
    parent
        The app to add it to.
    """

    def add(function: F) -> F:
        if function.__doc__:  # there is none with python -OO
            function.__doc__ = _unwrap(function.__doc__)
        return parent.command(
            function, group=group, sort_key=next(_order), help_epilogue="\n".join(["Examples:", *map(_shown, examples)])
        )

    return add


def _shown(example: str) -> str:
    return f"  equipoise {example}"


def _unwrap(doc: str) -> str:
    """Join the lines of each parameter's description: the help wraps them again, at the terminal's width."""
    lines: list[str] = []
    for line in inspect.cleandoc(doc).split("\n"):
        if lines and line.startswith("    ") and lines[-1].startswith("    "):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(lines)
