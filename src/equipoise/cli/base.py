"""The command line itself; commands are added by the modules beside this one."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Group, Parameter

from equipoise.version import __version__

app = App(
    name="equipoise",
    help="Learn new classes step by step, without forgetting the old ones or favouring the new.",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # cyclopts would exit without a word
)

Flag = Annotated[bool, Parameter(negative=())]

MODELS = Group("A classifier of your own", sort_key=1)
STUDIES = Group("Experiments", sort_key=2)
