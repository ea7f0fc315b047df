"""The command-line app; the other modules add their commands."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Group, Parameter

from equipoise.version import __version__

app = App(
    name="equipoise",
    help="Class-incremental learning: learn new classes without forgetting the old ones.",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # cyclopts would exit silently
)

Flag = Annotated[bool, Parameter(negative=())]

MODELS = Group("Your own classifier", sort_key=1)
STUDIES = Group("Experiments", sort_key=2)
