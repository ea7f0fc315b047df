"""The command line. Modules here use plain types only: torch is imported when a command runs, not for ``--help``."""

from __future__ import annotations

import importlib
import io
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NoReturn

from cyclopts import CycloptsError

from equipoise.cli import (  # noqa: F401 - they add their commands
    corrections,
    data,
    experiments,
    models,
    reports,
    serving,
    setup,
    sharing,
)
from equipoise.cli.app import app
from equipoise.cli.exit_codes import ExitCode
from equipoise.core.launch_env import is_main_process
from equipoise.core.output import OutputError, silence, warn, writing_output
from equipoise.core.signals import defer_signals
from equipoise.errors import EquipoiseError, ReportedError, describe_os_error

EPOCHS = "every finished epoch is saved, run the same command to continue"
RESUMABLE = dict.fromkeys(("run", "compare", "ablate"), EPOCHS) | {
    "learn": "the model is as it was before, run the same command to continue"
}
"""What to say when a command is stopped that can be resumed."""
WITHOUT_ENGINE = ("methods", "datasets", "recipes", "report", "history", "card", "doctor", "completion")
"""Commands that import torch late, or never."""
NO_MEMORY = "not enough memory: use smaller images, a smaller network or smaller batches, or close other programs"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with an ``ExitCode``; a user error prints one sentence."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a γ must not end a run in a terminal without Greek letters
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM acts like Ctrl-C
    try:
        warnings.filterwarnings("ignore", module=r"PIL\.")  # our own errors and limits say what is wrong with a picture
        helps = not tokens or bool({"--help", "-h", "--version"} & set(tokens))
        if not helps:
            _load_engine(tokens[0])
        with writing_output() if helps else nullcontext():  # cyclopts prints the help
            app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        _fail(" ".join(str(error).split()) + f" (see equipoise {_command(tokens)}--help)", silent=not is_main_process())
    except EquipoiseError as error:
        _fail(str(error), silent=isinstance(error, ReportedError))
    except (BrokenPipeError, OutputError) as error:
        _give_up_output(error)
        sys.exit(int(ExitCode.PROBLEM))
    except OSError as error:
        _fail(describe_os_error(error))
    except MemoryError:
        _fail(NO_MEMORY)
    except RuntimeError as error:
        if not any(words in str(error) for words in ("can't allocate memory", "out of memory")):  # as torch says it
            raise
        _fail(NO_MEMORY)
    except KeyboardInterrupt:
        hint = RESUMABLE.get(_command(tokens).strip())
        again = [f"stopped; {hint}:", f"  equipoise {shlex.join(tokens)}"] if hint else ["stopped"]
        if _command(tokens).strip() == "sort":
            again = [
                "stopped; photos that were not sorted yet are still in their folder: sort them into another directory"
            ]
        warn("", *again)
        _exit(ExitCode.STOPPED)
    except SystemExit as end:
        _exit(end.code if isinstance(end.code, int) else ExitCode.PROBLEM)
    _exit(ExitCode.OK)


def _exit(code: int) -> NoReturn:
    """Write the rest of the output and exit: after main, Python would print a traceback if it cannot be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _give_up_output(error)
        code = code or ExitCode.PROBLEM
    sys.exit(int(code))


def _give_up_output(error: OSError) -> None:
    """Discard the rest of the output, quietly if its reader has exited."""
    silence(sys.stdout)
    if not isinstance(error, BrokenPipeError):
        warn(f"equipoise: cannot write the output ({error.strerror}): redirect it to another place")


def _load_engine(command: str) -> None:
    """Import torch for commands that need it; an interruption inside torch would print a traceback."""
    if command in WITHOUT_ENGINE or command not in app:
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # see study/process_group.py; torch reads it once
    with defer_signals():
        importlib.import_module("torch")
        importlib.import_module("equipoise.learn.runtime").keep_freed_memory()


def _command(tokens: Sequence[str]) -> str:
    return f"{tokens[0]} " if tokens and tokens[0] in app else ""


def _fail(why: str, silent: bool = False) -> NoReturn:
    if not silent:
        warn(f"equipoise: {why}")
    _exit(ExitCode.ERROR)
