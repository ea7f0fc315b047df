"""Server-sent events: whoever listens is told when a job or the model changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import HTTPException

from equipoise.serve.limits import STREAMS

PING_SECONDS = 15
Event = tuple[str, dict[str, Any]]


class Events:
    """Passes events to all listeners; one that does not keep up misses the oldest."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[Event | None]] = set()
        self._closed = False

    def send(self, kind: str, data: dict[str, Any]) -> None:
        """Tell all listeners."""
        for queue in self._queues:
            self._put(queue, (kind, data))

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        self._closed = True
        for queue in self._queues:
            self._put(queue, None)

    def _put(self, queue: asyncio.Queue[Event | None], event: Event | None) -> None:
        if queue.full():
            queue.get_nowait()
        queue.put_nowait(event)

    def check_room(self) -> None:
        """Raise an error if too many clients listen."""
        if len(self._queues) >= STREAMS:
            raise HTTPException(503, "too many pages follow this server: close some")

    async def stream(self, first: Callable[[], Event], job: str | None = None) -> AsyncIterator[str]:
        """Yield events as text; those of one job only, if it is named, until it is finished."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue(1000)
        self._queues.add(queue)
        if self._closed:
            queue.put_nowait(None)
        try:
            event: Event | None = first()
            while event is not None:
                kind, data = event
                yield f"event: {kind}\ndata: {json.dumps(data)}\n\n"
                if job and data["state"] in ("done", "failed", "cancelled"):
                    return
                event = await self._next(queue, job)
                while event == ("ping", {}):
                    yield ": ping\n\n"  # a connection that is gone is noticed by writing to it
                    event = await self._next(queue, job)
        finally:
            self._queues.discard(queue)

    async def _next(self, queue: asyncio.Queue[Event | None], job: str | None) -> Event | None:
        while True:
            try:
                event = await asyncio.wait_for(queue.get(), PING_SECONDS)
            except TimeoutError:
                return "ping", {}
            if event is None or job is None or (event[0] == "job" and event[1]["id"] == job):
                return event
