"""Everything that the routes share, and the tasks that run in the background."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import HTTPException

from equipoise.app.model_dir import ModelDir
from equipoise.serve.current import CurrentModel
from equipoise.serve.events import Events
from equipoise.serve.jobs import Jobs
from equipoise.serve.metrics import CLASSES, STEPS
from equipoise.serve.pictures import Pictures
from equipoise.serve.snapshot import Snapshot
from equipoise.serve.tray import Tray
from equipoise.serve.worker_process import Worker

POLL_SECONDS = 0.3
"""How often the directory is looked at: the command line may have changed the model."""
PAUSE_SECONDS = 5
"""Pause after an unexpected error."""
T = TypeVar("T")
log = logging.getLogger("equipoise.serve")


class Service:
    """A model, the pictures that wait to be learned, and the jobs that change the model."""

    def __init__(self, model: Path, folder: Path, demo: bool = False, inherited: tuple[int, ...] = ()) -> None:
        self.model, self.demo = model, demo
        self.current = CurrentModel(ModelDir(model.absolute()))  # see Worker
        self.pictures, self.events = Pictures(folder), Events()
        self.worker = Worker(model, folder, inherited)
        self.jobs = Jobs(self.current, self.pictures, self.worker, self.events)
        self.jobs.on_change = self.refresh
        self.tray = Tray(self.pictures)
        self._computing: CapacityLimiter | None = None
        self._grouping: CapacityLimiter | None = None
        self._tray_task: asyncio.Task[None] | None = None

    @property
    def size(self) -> int:
        """Pixels per side of a picture."""
        return self.current.size

    @property
    def bicubic(self) -> bool:
        snapshot = self.current.snapshot  # another thread may replace it
        return snapshot is None or snapshot.model.bicubic

    def snapshot(self) -> Snapshot:
        """Return the version that answers, or an error if there is none."""
        snapshot = self.current.snapshot  # another thread may replace it
        if snapshot is None:
            raise HTTPException(409, self.current.problem or "there is no model yet: teach it some classes first")
        return snapshot

    async def compute(self, work: Callable[[], T]) -> T:
        """Decode or predict in a thread, as many at a time as there are cores."""
        if self._computing is None:
            self._computing = CapacityLimiter(max(2, os.cpu_count() or 1))
        return await to_thread.run_sync(work, limiter=self._computing)

    async def refresh(self) -> None:
        """Load a new version if there is one, and notify all listeners."""
        if not await to_thread.run_sync(self.current.refresh):
            return
        snapshot = self.current.snapshot
        CLASSES.set(len(snapshot.model.classes) if snapshot else 0)
        STEPS.set(len(snapshot.model.steps) if snapshot else 0)
        self.events.send("model", self.version())
        if snapshot is not None:
            self._tray_task = asyncio.create_task(self._update_tray())

    async def _update_tray(self) -> None:
        """Remove pictures from the tray that a new version recognises, in the background."""
        if await self.group(self.tray.predict_again, False):
            self.events.send("model", self.version())

    async def group(self, work: Callable[[Snapshot], T], nothing: T) -> T:
        """Work on the tray in a separate thread, so that predictions do not wait for it.

        The work uses the version that answers when its turn comes; if there is none, ``nothing`` is returned.
        """

        def run() -> T:
            snapshot = self.current.snapshot
            return nothing if snapshot is None else work(snapshot)

        if self._grouping is None:
            self._grouping = CapacityLimiter(1)
        return await to_thread.run_sync(run, limiter=self._grouping)

    def version(self) -> dict[str, str | None]:
        """Return the data of a ``model`` event."""
        return {"version": self.current.snapshot.version if self.current.snapshot else None}

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.refresh()
                await self.jobs.keep_warm()
            except Exception as error:  # whatever happens, the directory has to be followed
                log.error("unexpected error", exc_info=error)
                self.current.problem = "an unexpected error; details are in the server's log"
                await asyncio.sleep(PAUSE_SECONDS)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run jobs and follow the directory meanwhile."""
        await self.refresh()
        await self.worker.start()
        tasks = [asyncio.create_task(self.jobs.run()), asyncio.create_task(self._watch())]
        try:
            yield
        finally:
            await self.jobs.close()
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
