"""Helpers for tests of `equipoise serve`: a real server in a process of its own, and a client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from equipoise.serve.demo import KINDS, draw

JOB_SECONDS = 120


def demo_files(kind: int, numbers: Sequence[int]) -> list[bytes]:
    """Return drawn pictures as JPEG files."""
    return [draw(KINDS[kind], number) for number in numbers]


class Server:
    """A running server, and what a client does with it."""

    def __init__(self, process: subprocess.Popen[str], link: str, model: Path, token: str | None) -> None:
        self.process, self.model = process, model
        self.link = link
        """The address that the server printed, with its token."""
        self.url = link.partition("#")[0]
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.client = httpx.Client(base_url=self.url, timeout=60, headers=headers)

    def get(self, path: str) -> Any:
        """Return a JSON answer."""
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post_files(self, path: str, files: Sequence[bytes], **query: Any) -> httpx.Response:
        return self.client.post(path, params=query, files=[("files", ("x.jpg", data)) for data in files])

    def upload(self, files: Sequence[bytes]) -> list[str]:
        """Upload pictures; return their names."""
        answer = self.post_files("/api/pictures", files)
        assert answer.status_code == 200, answer.text
        return [one["id"] for one in answer.json()["pictures"]]

    def predict(self, files: Sequence[bytes], **query: Any) -> dict[str, Any]:
        answer = self.post_files("/api/predict", files, **query)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def start(self, **task: Any) -> str:
        """Start a job; return its id."""
        answer = self.client.post("/api/jobs", json=task)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def events(self, job: str) -> list[dict[str, Any]]:
        """Follow a job to its end."""
        until = time.monotonic() + JOB_SECONDS
        found: list[dict[str, Any]] = []
        with self.client.stream("GET", f"/api/jobs/{job}/events") as stream:
            for line in stream.iter_lines():  # also comments, which keep the connection alive
                assert time.monotonic() < until, found
                if line.startswith("data:"):
                    found.append(json.loads(line[5:]))
        return found

    def finish(self, **task: Any) -> dict[str, Any]:
        """Start a job and wait for its end."""
        return self.events(self.start(**task))[-1]

    def do(self, **task: Any) -> dict[str, Any]:
        """Start a job that has to succeed."""
        job = self.finish(**task)
        assert job["state"] == "done", job
        return job

    def learn(self, kinds: Sequence[int], numbers: Sequence[int]) -> dict[str, Any]:
        """Learn drawn pictures."""
        return self.do(
            kind="learn", classes={KINDS[kind]: self.upload(demo_files(kind, numbers)) for kind in kinds}, extend=True
        )

    @property
    def port(self) -> str:
        return self.url.rstrip("/").rpartition(":")[2]

    @property
    def version(self) -> str | None:
        found: str | None = self.get("/api/model")["version"]
        return found

    def worker(self) -> int:
        """Return the process that learns, as soon as there is one: it may be starting again."""
        found: list[int] = []

        def look() -> bool:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            for child in children:
                with suppress(FileNotFoundError):  # it has ended
                    if b"equipoise.serve.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                        found.append(int(child))
            return bool(found)

        wait_until(look)
        return found[0]

    def folder(self) -> Path:
        """Return the directory of the pictures that were uploaded."""
        return Path(os.fsdecode(Path(f"/proc/{self.worker()}/cmdline").read_bytes().split(b"\0")[-2]))

    def stop(self, kind: int = signal.SIGTERM) -> int:
        """Stop the server; return its exit code."""
        self.client.close()
        self.process.send_signal(kind)
        return self.process.wait(30)


@contextmanager
def serving(model: Path | None, *options: str, token: str | None = None, **environment: str) -> Iterator[Server]:
    """Run `equipoise serve` on a free port, as the leader of a process group."""
    arguments = [sys.executable, "-P", "-m", "equipoise", "serve", *([str(model)] if model else []), "--json"]
    arguments += [*([] if "--port" in options else ["--port", "0"]), *options, *(["--token", token] if token else [])]
    process = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        assert process.stderr is not None
        raise AssertionError(process.stderr.read())
    server = Server(process, json.loads(line)["url"], model or Path(), token)
    try:
        yield server
    finally:
        if process.poll() is None:
            server.stop()
        process.stdout.close()
        if process.stderr is not None:
            process.stderr.close()


def wait_until(condition: Any, seconds: float = 60) -> None:
    """Wait for something to become true."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
