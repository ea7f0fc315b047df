"""Start the worker process, send it tasks, and notice if it dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from equipoise.errors import RunError

LINE = 64 << 20
"""Bytes of a message, at most."""
POSIX = os.name == "posix"
Message = dict[str, Any]


class WorkerDiedError(RunError):
    """The worker process ended before it had answered."""

    def __init__(self, reason: str, told: Message, begun: bool) -> None:
        super().__init__(reason)
        self.told = told
        """What is known of the commit, see ``Worker.run``."""
        self.begun = begun
        """Whether it had begun the task."""


class Worker:
    """A process that is kept warm: it is started again as soon as it has died."""

    def __init__(self, model: Path, folder: Path, inherited: Sequence[int] = ()) -> None:
        # the model's path is absolute, so that it can be told from words in a message
        self.command = [sys.executable, "-P", "-m", "equipoise.serve.worker", str(model.absolute()), str(folder)]
        self.options: dict[str, Any] = {"pass_fds": tuple(inherited), "start_new_session": True} if POSIX else {}
        self.process: asyncio.subprocess.Process | None = None
        self._killed = False
        self._starting = asyncio.Lock()

    async def start(self) -> asyncio.subprocess.Process:
        """Start the process unless it runs."""
        async with self._starting:
            if self.process is not None and self._killed:
                await self.process.wait()
            if self.process is None or self.process.returncode is not None:
                pipe = asyncio.subprocess.PIPE
                self.process = await asyncio.create_subprocess_exec(
                    *self.command, stdin=pipe, stdout=pipe, limit=LINE, **self.options
                )
                self._killed = False
            return self.process

    async def run(self, task: Message, on_progress: Callable[[Message], None]) -> Message:
        """Do a task; return the last message, ``{"done": …}`` or ``{"failed": …}``.

        With it comes ``{"committing": VERSION}`` if the worker was about to make this version the current one. Whether
        it did is on disk: it may die, or fail, between the change and any message about it.
        """
        process = await self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # it has died: reading tells
            process.stdin.write(json.dumps(task).encode() + b"\n")
            await process.stdin.drain()
        told: Message = {}
        begun = False
        while line := await process.stdout.readline():
            message: Message = json.loads(line)
            begun |= "begun" in message
            if "committing" in message:
                told = message
            if "progress" in message or "problems" in message:
                on_progress(message)
            elif "done" in message or "failed" in message:
                return message | told
        code = await process.wait()
        raise WorkerDiedError(f"killed by signal {-code}" if code < 0 else f"exit code {code}", told, begun)

    def kill(self) -> None:
        """End the process at once; the model is either before or after the change."""
        if self.process is not None and self.process.returncode is None:
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()

    async def stop(self) -> None:
        """End the process when it has finished its task."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            await self.process.wait()

    async def end(self) -> None:
        """End the process at once, and wait until it is gone."""
        self.kill()
        if self.process is not None:
            await self.process.wait()
