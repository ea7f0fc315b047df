"""The command line. Modules here use plain types only: torch is imported when a command runs, not for ``--help``."""

from __future__ import annotations

import importlib
import io
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from cyclopts import CycloptsError

from equipoise.cli import corrections, data, experiments, models, reports, sharing  # noqa: F401 - they add their commands
from equipoise.cli.app import app
from equipoise.core.launch_env import is_main_process
from equipoise.core.signals import defer_signals
from equipoise.errors import EquipoiseError, ReportedError, describe_os_error

EPOCHS = "every finished epoch is saved, run the same command to continue"
RESUMABLE = dict.fromkeys(("run", "compare", "ablate"), EPOCHS) | {
    "learn": "the model is as it was before, run the same command to continue"
}
"""What to say when a command is stopped that can continue where it stopped."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command; a user error prints one sentence and exits with 2."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a γ must not end a run in a terminal without Greek letters
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM acts like Ctrl-C
    try:
        if not {"--help", "-h", "--version"} & set(tokens) and tokens:
            _load_engine(tokens[0])
        app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        _fail(" ".join(str(error).split()) + f" (see equipoise {_command(tokens)}--help)", silent=not is_main_process())
    except EquipoiseError as error:
        _fail(str(error), silent=isinstance(error, ReportedError))
    except OSError as error:
        _mute()
        if isinstance(error, BrokenPipeError):  # the reader of our output has exited
            sys.exit(1)
        _fail(describe_os_error(error))
    except KeyboardInterrupt:
        hint = RESUMABLE.get(_command(tokens).strip())
        again = f"; {hint}:\n  equipoise {shlex.join(tokens)}" if hint else ""
        if _command(tokens).strip() == "sort":
            again = "; photos that were not sorted yet are where they were: sort them into another directory"
        print(f"\nstopped{again}", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)


def _mute() -> None:
    """Redirect stdout, so that Python's flush at exit does not fail."""
    with suppress(OSError):  # stdout may be no file, or closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _load_engine(command: str) -> None:
    """Import torch for commands that need it; an interruption inside torch would print a traceback."""
    if command in ("methods", "datasets", "recipes", "report", "history", "card") or command not in app:
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # see study/process_group.py; torch reads it once
    with defer_signals():
        importlib.import_module("torch")
        importlib.import_module("equipoise.learn.runtime").keep_freed_memory()


def _command(tokens: Sequence[str]) -> str:
    return f"{tokens[0]} " if tokens and tokens[0] in app else ""


def _fail(why: str, silent: bool = False) -> NoReturn:
    if not silent:
        print(f"equipoise: {why}", file=sys.stderr)
    sys.exit(2)
