"""Runs in processes of this machine, as many at a time as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from threading import Thread

from equipoise.core.safe_path import use_safe_path
from equipoise.study.launch.remote import Remote, RemoteJob, execute_job

POLL = 0.5
"""Seconds between two looks at the run directories."""


class Processes(Remote):
    """One process per run: if one is killed, the others continue."""

    def submit(self, jobs: Mapping[int, RemoteJob]) -> None:
        self._queue, self._jobs = dict(jobs), dict(jobs)
        self._running: dict[int, tuple[SpawnProcess, Connection[None, str | None]]] = {}
        self._at_once = max((os.cpu_count() or 1) // max(job.cpus for job in jobs.values()), 1)
        self._fill()

    def _fill(self) -> None:
        use_safe_path()
        context = multiprocessing.get_context("spawn")  # a forked process would share torch's threads and hang
        while self._queue and len(self._running) < self._at_once:
            index = self._next()
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_execute, args=(self._queue.pop(index), theirs), daemon=False)
            process.start()
            theirs.close()
            self._running[index] = process, ours

    def _next(self) -> int:
        """Return a job that shares nothing with running ones, if there is one: only finished training can be shared."""
        busy = {self._jobs[index].trained for index in self._running}
        apart = (index for index, job in self._queue.items() if job.trained is None or job.trained not in busy)
        return next(apart, next(iter(self._queue)))

    def ended(self) -> Iterator[tuple[int, str | None]]:
        over = wait([process.sentinel for process, _ in self._running.values()], POLL)
        for index, (process, answer) in list(self._running.items()):
            if process.sentinel in over:
                del self._running[index]
                process.join()
                self._fill()
                yield index, _error(process, answer)

    def stop(self) -> None:
        if not hasattr(self, "_running"):
            return
        for process, _ in self._running.values():
            process.kill()  # a run directory is consistent at any time
        for process, _ in self._running.values():
            process.join()


def _execute(job: RemoteJob, answer: Connection[str | None, None]) -> None:
    """Execute a run in a new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent stops this one
    Thread(target=_end_with_parent, daemon=True).start()
    with suppress(OSError):
        answer.send(execute_job(job))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _error(process: SpawnProcess, answer: Connection[None, str | None]) -> str | None:
    """Return why the run failed, if it did."""
    with answer:
        if answer.poll():
            with suppress(EOFError):  # it died before it could report
                return answer.recv()
    code = process.exitcode or 0
    why = f"killed by {signal.Signals(-code).name}; out of memory?" if code < 0 else f"exit code {code}"
    return f"its process ended unexpectedly ({why}): run the same command again to continue it"
