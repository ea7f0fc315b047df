"""The process that changes a model: ``python -m equipoise.serve.worker MODEL FOLDER``.

It reads one task per line from standard input (JSON) and writes messages, one per line: ``begun``, ``progress``,
``committing`` just before the model changes, and at the end ``done`` or ``failed``. It ends when its input does, after
the current task.
It may be killed at any time: a model directory is always either before or after a change.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from equipoise.app.model_dir import ModelDir
from equipoise.errors import EquipoiseError, describe_os_error
from equipoise.learn.runtime import keep_freed_memory
from equipoise.serve.tasks import run_task, warm_up
from equipoise.serve.words import for_the_page, without_paths


def main(model: str, folder: str) -> None:
    """Work until standard input ends."""
    for kind in (signal.SIGINT, signal.SIGTERM):  # they are for the server, which ends this process in order
        signal.signal(kind, signal.SIG_IGN)
    if hasattr(os, "nice"):  # not on Windows
        with suppress(OSError):
            os.nice(5)  # predictions come first
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)  # torch makes a directory for it when it exports a model
    send = _messages()
    keep_freed_memory()
    place = ModelDir(Path(model), before_commit=lambda version: send({"committing": version}))
    with suppress(EquipoiseError, OSError):  # a model that cannot be read is reported by the first task
        warm_up(place)
    send({"ready": True})
    for line in sys.stdin:
        send({"begun": True})
        send(answer(place, json.loads(line), Path(folder), send))


def _messages() -> Callable[[dict[str, Any]], None]:
    """Keep standard output for messages; what libraries print goes to standard error."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: dict[str, Any]) -> None:
        with suppress(OSError):  # the server was killed; finish what was begun
            output.write(json.dumps(message) + "\n")
            output.flush()

    return send


def answer(place: ModelDir, task: dict[str, Any], folder: Path, send: Callable[[dict[str, Any]], None]) -> Any:
    try:
        return {"done": run_task(place, task, folder, send)}
    except EquipoiseError as error:
        failed = str(error)
    except OSError as error:
        failed = describe_os_error(error)
    except MemoryError:
        failed = "there is not enough memory: learn fewer pictures at a time"
    except Exception as error:
        traceback.print_exc()
        failed = f"an unexpected error ({type(error).__name__}: {error}); details are in the server's log"
    return {"failed": for_the_page(without_paths(failed, place.path, folder))}


if __name__ == "__main__":
    main(*sys.argv[1:])
