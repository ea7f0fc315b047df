"""The command-line app; the other modules add their commands."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Annotated, TypeVar

from cyclopts import App, Group, Parameter

from equipoise.version import __version__

app = App(
    name="equipoise",
    help="Class-incremental learning: learn new classes without forgetting the old ones.",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # cyclopts would exit silently
)

F = TypeVar("F", bound=Callable[..., None])
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]

MODELS = Group("Your own classifier", sort_key=1)
STUDIES = Group("Experiments", sort_key=2)

_order = itertools.count()


def command(group: Group) -> Callable[[F], F]:
    """Return a decorator that adds a command; ``--help`` lists them in the order in which they are defined."""
    return app.command(group=group, sort_key=next(_order))
