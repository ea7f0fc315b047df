"""Runs in processes of this machine, as many at a time as its cores allow: nothing to install, nothing to start."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from threading import Thread

from equipoise.study.launch.remote import Order, Remote, carry_out

MOMENT = 0.5
"""Seconds between two looks at the run directories."""


class Processes(Remote):
    """A process a run: one that is killed takes no other with it."""

    def submit(self, orders: Mapping[int, Order]) -> None:
        self._queue = dict(orders)
        self._running: dict[int, tuple[SpawnProcess, Connection[None, str | None]]] = {}
        self._at_once = max((os.cpu_count() or 1) // max(order.cpus for order in orders.values()), 1)
        self._fill()

    def _fill(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share torch's threads, and hang
        while self._queue and len(self._running) < self._at_once:
            index = next(iter(self._queue))
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(self._queue.pop(index), theirs), daemon=False)
            process.start()
            theirs.close()
            self._running[index] = process, ours

    def ended(self) -> Iterator[tuple[int, str | None]]:
        over = wait([process.sentinel for process, _ in self._running.values()], MOMENT)
        for index, (process, answer) in list(self._running.items()):
            if process.sentinel in over:
                del self._running[index]
                process.join()
                self._fill()
                yield index, _last_words(process, answer)

    def stop(self) -> None:
        if not hasattr(self, "_running"):
            return
        for process, _ in self._running.values():
            process.kill()  # a run directory is whole at any moment
        for process, _ in self._running.values():
            process.join()


def _work(order: Order, answer: Connection[str | None, None]) -> None:
    """What each process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; whoever started us stops us
    Thread(target=_end_with_parent, daemon=True).start()
    with suppress(OSError):
        answer.send(carry_out(order))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _last_words(process: SpawnProcess, answer: Connection[None, str | None]) -> str | None:
    """Why the run could not be made, if it could not."""
    with answer:
        if answer.poll():
            with suppress(EOFError):  # it died before it could say anything
                return answer.recv()
    code = process.exitcode or 0
    why = f"killed by {signal.Signals(-code).name}; out of memory?" if code < 0 else f"exit code {code}"
    return f"its process ended unexpectedly ({why}): the same command goes on with it"
