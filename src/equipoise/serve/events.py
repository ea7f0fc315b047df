"""Server-sent events: notify all listeners when a job or the model changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import HTTPException
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from equipoise.serve.limits import STREAMS

PING_SECONDS = 15
Event = tuple[str, dict[str, Any]]
Queue = asyncio.Queue[Event | None]


class Events:
    """Passes events to all listeners; one that does not keep up misses the oldest."""

    def __init__(self) -> None:
        self._queues: set[Queue] = set()
        self._closed = False

    def send(self, kind: str, data: dict[str, Any]) -> None:
        """Send an event to all listeners."""
        for queue in self._queues:
            self._put(queue, (kind, data))

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        self._closed = True
        for queue in self._queues:
            self._put(queue, None)

    def _put(self, queue: Queue, event: Event | None) -> None:
        if queue.full():
            queue.get_nowait()
        queue.put_nowait(event)

    def follow(self, first: Callable[[], Event], job: str | None = None) -> StreamingResponse:
        """Return an answer with all events from now on; with those of one job, if it is named, until it is finished.

        Raises
        ------
        HTTPException
            If too many clients listen.
        """
        if len(self._queues) >= STREAMS:
            raise HTTPException(503, "too many pages are connected to this server: close some")
        queue = Queue(1000)
        if self._closed:
            queue.put_nowait(None)
        self._queues.add(queue)  # at once: other requests may come before the first event is sent
        return _Following(self._stream(queue, first, job), lambda: self._queues.discard(queue))

    async def _stream(self, queue: Queue, first: Callable[[], Event], job: str | None) -> AsyncIterator[str]:
        """Yield events as text."""
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

    async def _next(self, queue: Queue, job: str | None) -> Event | None:
        while True:
            try:
                event = await asyncio.wait_for(queue.get(), PING_SECONDS)
            except TimeoutError:
                return "ping", {}
            if event is None or job is None or (event[0] == "job" and event[1]["id"] == job):
                return event


class _Following(StreamingResponse):
    """Calls ``leave`` at the end, also if the client has gone before the first event."""

    def __init__(self, events: AsyncIterator[str], leave: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self.leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.leave()
