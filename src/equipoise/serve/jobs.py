"""Jobs: one runs at a time, some may wait, and what became of each can be asked for."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import HTTPException

from equipoise.core.open_dir import printable
from equipoise.serve.current import CurrentModel
from equipoise.serve.events import Events
from equipoise.serve.limits import KEPT_JOBS, SHUTDOWN_SECONDS, WAITING_JOBS
from equipoise.serve.metrics import JOBS
from equipoise.serve.pictures import Pictures
from equipoise.serve.schema import Job, PictureProblem, Progress, Task
from equipoise.serve.tasks import export_folder
from equipoise.serve.worker_process import Message, Worker, WorkerDiedError

log = logging.getLogger("equipoise.serve")


@dataclass
class Entry:
    """A job with what only the server knows."""

    job: Job
    task: dict[str, Any]
    pictures: list[str] = field(default_factory=list)
    """Pictures that it uses up."""
    file: Path | None = None
    cancelled: bool = False
    answered: bool = False
    """Whether the worker has finished it."""


class Jobs:
    """Runs jobs in the worker process, one after the other."""

    def __init__(self, current: CurrentModel, pictures: Pictures, worker: Worker, events: Events) -> None:
        self.current, self.pictures, self.worker, self.events = current, pictures, worker, events
        self.on_change: Callable[[], Awaitable[None]] | None = None
        """Called when the model may have changed."""
        self._entries: dict[str, Entry] = {}
        self._waiting: asyncio.Queue[Entry] = asyncio.Queue()
        self._running: Entry | None = None
        self._closed = False

    def submit(self, task: Task) -> Job:
        """Add a job to the queue."""
        if self._closed:
            raise HTTPException(503, "the server is stopping: try again later")
        if sum(entry.job.state == "queued" for entry in self._entries.values()) >= WAITING_JOBS:
            raise HTTPException(429, f"{WAITING_JOBS} jobs are waiting already: try again when some are finished")
        fields = task.model_dump()
        pictures = self._resolve(fields)
        # random, because a page may still wait for the jobs of a server that was started again
        job = Job(id=secrets.token_hex(8), kind=task.kind, title=title(fields))
        entry = Entry(job, fields | {"id": job.id}, pictures)
        self._entries[job.id] = entry
        self._forget_old()
        self._waiting.put_nowait(entry)
        self._tell(entry)
        return job

    def _resolve(self, task: dict[str, Any]) -> list[str]:
        """Replace pictures by their files; return the names of the pictures."""
        if task["kind"] == "learn":
            names = [name for mine in task["classes"].values() for name in mine]
            task["classes"] = {c: [self._file(name) for name in mine] for c, mine in task["classes"].items()}
            return names
        if task["kind"] == "correct":
            task["file"] = self._file(task["picture"])
            return [task["picture"]]
        return []

    def _file(self, name: str) -> str:
        picture = self.pictures.get(name)
        if picture.size != self.current.size:
            raise HTTPException(409, "the model now takes pictures of another size: upload them again")
        return str(picture.file)

    def get(self, number: str) -> Entry:
        """Return a job by its id."""
        if number not in self._entries:
            raise HTTPException(404, "there is no such job: it is unknown, or was finished long ago")
        return self._entries[number]

    def recent(self) -> list[Job]:
        """Return the jobs that are known, oldest first."""
        return [entry.job for entry in list(self._entries.values())]  # a copy: others may be added meanwhile

    def cancel(self, number: str) -> Job:
        """Cancel a job; the model stays as it is."""
        entry = self.get(number)
        if entry.job.finished or entry.answered:
            changed = entry.answered or entry.job.state == "done"
            raise HTTPException(409, "the job has already finished" + (": use undo to take it back" if changed else ""))
        entry.cancelled = True
        if entry is self._running:
            self.worker.kill()  # the loop below notices
        else:
            self._finish(entry, "cancelled")
        return entry.job

    async def run(self) -> None:
        """Work until the task is cancelled."""
        while True:
            entry = await self._waiting.get()
            if entry.job.finished:
                continue
            self._running = entry
            try:
                await self._execute(entry)
            except Exception as error:  # whatever happens, the next job has to run
                log.error("unexpected error in job %s", entry.job.id, exc_info=error)
                self.worker.kill()  # the next job must not read its other messages
                entry.job.error = "an unexpected error; details are in the server's log"
                self._finish(entry, "failed")
            finally:
                self._running = None

    async def keep_warm(self) -> None:
        """Start the worker if it has died, so that the next job does not wait for it."""
        if self._running is None and not self._closed:
            await self.worker.start()

    async def _execute(self, entry: Entry, once_more: bool = True) -> None:
        entry.job.state = "running"
        self._tell(entry)

        def on_progress(message: dict[str, Any]) -> None:
            if "progress" in message:
                entry.job.progress = Progress(**message["progress"])
            else:
                entry.job.problems = to_problems(message["problems"])
            self._tell(entry)

        await self.worker.start()
        if entry.cancelled:  # while the process was being started: there was nothing to kill
            self._finish(entry, "cancelled")
            return
        try:
            answer = await self.worker.run(entry.task, on_progress)
        except WorkerDiedError as error:
            if entry.cancelled and not self._is_committed(error.told):
                self._finish(entry, "cancelled")
                return
            if once_more and not error.begun and not self._closed:  # then nothing can have changed
                await self._execute(entry, once_more=False)
                return
            answer = {"failed": f"the learning process ended ({error})"} | error.told
            if not self._is_committed(answer):
                answer["failed"] += "; the model is unchanged: try again"
        entry.answered = True
        if "failed" in answer and not self._is_committed(answer):
            entry.job.error = printable(str(answer["failed"]))
            self._finish(entry, "failed")
            return
        await self._changed()  # whoever hears that the job is done gets answers of the new version
        done = answer.get("done") or {"message": f"the model was changed, with a problem: {answer['failed']}"}
        entry.job.message, entry.job.problems = printable(done["message"]), to_problems(done.get("problems", []))
        entry.file = Path(done["file"]) if "file" in done else None
        entry.job.file = entry.file is not None
        if entry.job.kind in ("export", "forget", "start_again"):
            self._delete_exports(but=entry)
        self.pictures.remove(entry.pictures)
        self._finish(entry, "done")

    def _is_committed(self, answer: Message) -> bool:
        """Return whether the version on disk is the one that a job was about to commit."""
        return "committing" in answer and self.current.version_on_disk() == answer["committing"]

    async def _changed(self) -> None:
        """Load the new version; if that fails, the model has changed all the same, and it is tried again later."""
        try:
            if self.on_change is not None:
                await self.on_change()
        except Exception as error:
            log.error("cannot load the new version", exc_info=error)

    def _version(self) -> str | None:
        return self.current.snapshot.version if self.current.snapshot else None

    def _delete_exports(self, but: Entry) -> None:
        """Delete older downloads: they take room, and a forgotten class may be in them."""
        for entry in self._entries.values():
            if entry.file is not None and entry is not but:
                self._delete_export(entry)

    def _delete_export(self, entry: Entry) -> None:
        shutil.rmtree(export_folder(self.pictures.folder, entry.job.id), ignore_errors=True)
        entry.file, entry.job.file = None, False

    def _finish(self, entry: Entry, state: Any) -> None:
        if state != "done":  # what is there of a download would keep a full disk full
            self._delete_export(entry)
        entry.job.state, entry.job.progress, entry.job.version = state, None, self._version()
        JOBS.labels(entry.job.kind, state).inc()
        log.info("job %s: %s (%s) %s", entry.job.id, entry.job.title, state, entry.job.error or "")
        self._tell(entry)

    def _tell(self, entry: Entry) -> None:
        self.events.send("job", entry.job.model_dump())

    def _forget_old(self) -> None:
        done = [entry for entry in self._entries.values() if entry.job.finished]
        for entry in done[: max(0, len(done) - KEPT_JOBS)]:
            del self._entries[entry.job.id]
            self._delete_export(entry)

    async def close(self) -> None:
        """Refuse new jobs, cancel those that wait, and give the running one some time."""
        self._closed = True
        for entry in list(self._entries.values()):
            if not entry.job.finished and entry is not self._running:
                self.cancel(entry.job.id)
        if self._running is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.worker.stop(), SHUTDOWN_SECONDS)
        await self.worker.end()


def to_problems(found: list[dict[str, str]]) -> list[PictureProblem]:
    """Return the problems that the worker reports."""
    return [PictureProblem(**one) for one in found]


def title(task: dict[str, Any]) -> str:
    """Say what a job does."""
    kind = task["kind"]
    if kind == "learn":
        return f"Learning {_names(list(task['classes']))}"
    if kind == "correct":
        return f"Learning {_names([task['to']])}"
    if kind == "move":
        return f"Moving pictures to {_names([task['to']])}"
    if kind == "rename":
        return f"Renaming {_names([task['name']])}"
    if kind == "merge":
        return f"Merging {_names(task['names'])} into {_names([task['to']])}"
    if kind == "forget":
        return f"Forgetting {_names(task['names'])}"
    return {"undo": "Undoing the last step", "start_again": "Starting again"}.get(kind, "Making a file to download")


def _names(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(printable(name) for name in names[:3]) + more
