"""The command line. Only strings and numbers live here: torch is imported when a command runs, not for ``--help``."""

from __future__ import annotations

import importlib
import io
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from cyclopts import CycloptsError

from equipoise.cli import data, model, study  # noqa: F401 - they add their commands
from equipoise.cli.base import app
from equipoise.errors import EquipoiseError, ToldError, sentence
from equipoise.signals import undisturbed
from equipoise.started import speaks

RESUMED = ("run", "compare", "ablate", "learn")
"""Commands that go on where they stopped."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command; a mistake of the user's is one sentence and exit code 2."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a γ must not end a run whose terminal has no Greek
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill is a Ctrl-C
    try:
        if not {"--help", "-h", "--version"} & set(tokens) and tokens:
            _load_engine(tokens[0])
        app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        _fail(" ".join(str(error).split()) + f" (see equipoise {_command(tokens)}--help)", silent=not speaks())
    except EquipoiseError as error:
        _fail(str(error), silent=isinstance(error, ToldError))
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # whoever read our output has left
            _mute()
            sys.exit(1)
        _mute()
        _fail(sentence(error))
    except KeyboardInterrupt:
        print(f"\nstopped{_how_to_go_on(tokens)}", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)


def _mute() -> None:
    """Point stdout elsewhere, so that Python's own flush at exit does not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _load_engine(command: str) -> None:
    """Import torch where a command will; interrupted in the middle of that, it would leave ruins and tracebacks."""
    if command in ("methods", "datasets", "recipes", "report", "history", "card") or command not in app:
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # see study/processes.py; torch reads it once
    with undisturbed():
        importlib.import_module("torch")


def _how_to_go_on(tokens: Sequence[str]) -> str:
    if _command(tokens).strip() not in RESUMED:
        return ""
    return (
        f"; every finished epoch is saved, and the same command goes on from there:\n  equipoise {shlex.join(tokens)}"
    )


def _command(tokens: Sequence[str]) -> str:
    return f"{tokens[0]} " if tokens and not tokens[0].startswith("-") else ""


def _fail(why: str, silent: bool = False) -> NoReturn:
    if not silent:
        print(f"equipoise: {why}", file=sys.stderr)
    sys.exit(2)
