"""Jobs of `equipoise serve` that fail, are cancelled or change the model in the end, and the process that runs them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from equipoise.app.model_dir import ModelDir
from equipoise.serve import worker_process
from equipoise.serve.demo import KINDS
from tests.hostile_clients import FORM, connected, log_of, request
from tests.serving import Server, demo_files, serving, wait_until

pytest.importorskip("fastapi", reason="the extra serve is not installed")
from equipoise.serve.current import CurrentModel
from equipoise.serve.events import Events
from equipoise.serve.jobs import Jobs
from equipoise.serve.limits import SHUTDOWN_SECONDS
from equipoise.serve.pictures import Pictures
from equipoise.serve.schema import Job, Learn, Rename, Undo
from equipoise.serve.worker_process import Worker

ROOT = Path(__file__).parent.parent
FAULTS = ROOT / "tests" / "faults" / "served"
T = TypeVar("T")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which servers keep their temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def in_loop(work: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine in a thread of its own: Playwright's event loop may be running in this one."""

    async def run() -> T:
        async with asyncio.timeout(60):
            return await work()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(run())).result()


def make_jobs(model: Path, folder: Path) -> Jobs:
    current = CurrentModel(ModelDir(model))
    current.refresh()
    return Jobs(current, Pictures(folder), Worker(model, folder), Events())


async def ended(job: Job) -> str:
    while not job.finished:
        await asyncio.sleep(0.01)
    return job.state


# ---- the model is deleted


def test_start_again(tmp_path: Path, temporary: Path) -> None:
    with serving(tmp_path / "model") as server:
        server.learn([0, 1], range(4))
        unknown = server.predict(demo_files(3, [9, 10]), keep=True)["predictions"]
        export = server.do(kind="export", format="directory")["id"]
        job = server.do(kind="start_again")
        assert job["title"] == "Starting again"
        assert job["message"] == "deleted the model, with all its classes and pictures"
        assert job["version"] is None
        assert [path.name for path in (tmp_path / "model").iterdir()] == [".lock"]
        assert server.client.get(f"/api/jobs/{export}/file").status_code == 404  # the classes were in it
        shown = server.get("/api/model")
        assert (shown["version"], shown["classes"], shown["history"], shown["problem"]) == (None, [], [], None)
        assert server.get("/api/tray") == {"version": None, "groups": []}
        assert server.finish(kind="start_again")["error"] == "there is no model: teach it some classes first"
        server.do(kind="learn", classes={"a": [unknown[0]["picture"]], "b": server.upload(demo_files(4, [0]))})
        assert [one["step"] for one in server.get("/api/classes")] == [1, 1]
        assert server.get("/api/model")["can_undo"] is False


# ---- messages


def test_a_model_that_is_called_like_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(Path("pets")) as server:
        classes = {name: server.upload(demo_files(kind, range(2))) for kind, name in enumerate(("pets", "cars"))}
        server.do(kind="learn", classes=classes)
        refused = server.finish(kind="rename", name="cars", to="pets")
        assert refused["error"] == "there is already a class 'pets': merge the two instead"
        for file in ("config.json", "versions"):
            shutil.move(tmp_path / "pets" / file, tmp_path / file)
        (tmp_path / "pets" / "config.json").write_text("{}")
        wait_until(lambda: server.get("/api/model")["problem"])
        problem = server.get("/api/model")["problem"]
        assert problem.startswith("the model/config.json is damaged (")
        failed = server.finish(kind="undo")["error"]
        assert failed.startswith("the model/config.json is damaged (")
    with serving(Path("pets")) as server:
        refusal = server.post_files("/api/predict", demo_files(0, [0]))
        assert (refusal.status_code, refusal.json()["detail"]) == (409, problem)


def test_paths_are_not_told(tmp_path: Path) -> None:
    """A block of features that is damaged is named in an error of a GET request."""
    with serving(tmp_path / "my model") as server:
        server.learn([0, 1], range(2))
        for block in (tmp_path / "my model" / "memory").rglob("*.safetensors"):
            block.write_bytes(b"damaged")
        answer = server.client.get("/api/classes/0/images")
        assert answer.status_code == 409
        assert answer.json()["detail"].startswith("the stored features the model/memory/")
        assert str(tmp_path) not in answer.text


def test_a_job_that_fails_after_its_change_is_done(tmp_path: Path) -> None:
    with serving(tmp_path / "model") as server:
        server.learn([0, 1, 2], range(3))
        before = server.version
        (block,) = (tmp_path / "model" / "memory" / KINDS[0]).iterdir()
        (tmp_path / "model" / "copies").mkdir()
        shutil.copy(block, tmp_path / "model" / "copies" / "mine")
        job = server.do(kind="forget", names=[KINDS[0]])
        assert job["message"] == (
            "the model was changed, with a problem: the classes are forgotten, but the model/copies/mine still "
            "contains traces of them: check that file"
        )
        assert job["version"] == server.version != before
        assert [one["name"] for one in server.get("/api/classes")] == list(KINDS[1:3])


def test_ids_of_jobs_are_not_used_again(tmp_path: Path) -> None:
    found = set()
    for _ in range(2):
        with serving(tmp_path / "model") as server:
            found |= {server.finish(kind="undo")["id"] for _ in range(2)}
    assert len(found) == 4


def test_titles(taught: Server) -> None:
    listed = taught.get("/api/classes/0/images")["images"]
    with ModelDir(taught.model).writing():
        jobs = [taught.start(kind="move", images=listed[:1], to="cat"), taught.start(kind="undo")]
        titles = [taught.get(f"/api/jobs/{job}")["title"] for job in jobs]
        for job in reversed(jobs):
            taught.client.delete(f"/api/jobs/{job}")
    assert titles == ["Moving pictures to cat", "Undoing the last step"]


# ---- downloads that are not finished

STOP_AT = """
import sys, time

def stop(event, arguments):  # when the file is complete, but not under its name, or not alone
    if event == {event!r} and {where!r} in str(arguments[0]):
        print("stopped", file=sys.stderr, flush=True)
        time.sleep(600)

if "equipoise.serve.worker" in sys.orig_argv:
    sys.addaudithook(stop)
"""


@pytest.mark.parametrize(
    ("format", "event", "where"), [("directory", "shutil.rmtree", "export-"), ("onnx", "os.rename", ".equipoise-")]
)
def test_a_cancelled_export_leaves_no_file(
    format: str, event: str, where: str, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if format == "onnx":
        pytest.importorskip("onnxscript")
    (tmp_path / "sitecustomize.py").write_text(STOP_AT.format(event=event, where=where))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with serving(tmp_path / "model") as server:
        server.learn([0, 1], range(2))
        job = server.start(kind="export", format=format)
        wait_until(lambda: "stopped" in log_of(server), 60)
        (folder,) = temporary.iterdir()  # nothing of torch's beside it
        assert [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 10**6]
        assert server.client.delete(f"/api/jobs/{job}").status_code == 200
        assert server.events(job)[-1]["state"] == "cancelled"
        assert [path.name for path in folder.rglob("*")] == ["lock"]
        server.predict(demo_files(0, [9]))


@pytest.mark.parametrize("at", [3, 30])
def test_a_download_that_does_not_fit_leaves_the_disk_empty(at: int, tmp_path: Path, temporary: Path) -> None:
    order = tmp_path / "order.json"
    with serving(tmp_path / "model", EQUIPOISE_FAULT=str(order), PYTHONPATH=str(FAULTS)) as server:
        server.learn([0, 1], range(2))
        order.write_text(json.dumps({"since": ["open", ".lock"], "at": at, "fault": "ENOSPC"}))
        job = server.finish(kind="export", format="directory")
        assert job["state"] == "failed"
        assert "No space left on device" in job["error"]
        assert str(tmp_path) not in job["error"]
        assert not job["file"]
        (folder,) = temporary.glob("equipoise-serve-*")
        assert [path.name for path in folder.rglob("*")] == ["lock"]
        order.unlink()
        done = server.do(kind="export", format="directory")["id"]
        assert server.client.get(f"/api/jobs/{done}/file").content.startswith(b"PK")
        server.do(kind="export", format="directory")
        assert len([path for path in folder.rglob("*") if path.is_file()]) == 2  # the lock and the last download


# ---- the process


def test_answers_of_a_job_are_not_those_of_the_one_before(
    two_steps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that is too long ends a job; the next job must not read what comes after it."""
    monkeypatch.setattr(worker_process, "LINE", 400)
    model = shutil.copytree(two_steps, tmp_path / "model")

    async def run() -> tuple[str | None, str | None]:
        jobs = make_jobs(model, tmp_path)
        pictures = [np.full((24, 24, 3), number, np.uint8) for number in range(9)]
        names = [jobs.pictures.add(picture).id for picture in pictures]
        for name in names:
            (tmp_path / f"{name}.png").write_bytes(b"damaged")
        running = asyncio.create_task(jobs.run())
        first = jobs.submit(Learn(kind="learn", classes={"new": names}))  # a problem of each picture
        second = jobs.submit(Undo(kind="undo", version=None))
        assert await ended(first) == "failed"
        assert await ended(second) == "done"
        running.cancel()
        await jobs.worker.end()
        return first.error, second.message

    assert in_loop(run) == ("an unexpected error; details are in the server's log", "undid: learned D, E, F")


def test_a_job_that_is_cancelled_while_the_process_is_started(two_steps: Path, tmp_path: Path) -> None:
    model = shutil.copytree(two_steps, tmp_path / "model")
    before = ModelDir(model).config().version

    async def run() -> str:
        jobs = make_jobs(model, tmp_path)
        running = asyncio.create_task(jobs.run())
        job = jobs.submit(Rename(kind="rename", name="A", to="renamed"))
        while jobs.worker.process is not None or job.state == "queued":
            await asyncio.sleep(0)
        assert jobs.worker._starting.locked()
        jobs.cancel(job.id)
        state = await ended(job)
        running.cancel()
        await jobs.worker.stop()
        return state

    assert in_loop(run) == "cancelled"
    assert ModelDir(model).config().version == before


def test_jobs_are_listed_while_others_are_added(tmp_path: Path) -> None:
    """The route that lists them runs in a thread of its own."""
    jobs, stop = make_jobs(tmp_path / "model", tmp_path), threading.Event()

    def add() -> None:
        while not stop.is_set():
            jobs.cancel(jobs.submit(Undo(kind="undo", version=None)).id)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    adding = threading.Thread(target=add)
    adding.start()
    try:
        for _ in range(20_000):
            jobs.recent()
    finally:
        stop.set()
        adding.join()
        sys.setswitchinterval(usual)


@pytest.fixture
def on_hangup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that says what servers inherit for SIGHUP: these tests themselves may run under nohup."""
    if not hasattr(signal, "SIGHUP"):
        pytest.skip("needs SIGHUP")

    def inherit(action: str) -> None:
        python = tmp_path / "python"
        start = f"signal.signal(signal.SIGHUP, signal.{action}); os.execv(python, [python, *sys.argv[1:]])"
        python.write_text(f"#!{sys.executable}\nimport os, signal, sys\npython = {sys.executable!r}\n{start}\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))

    return inherit


def test_the_end_of_the_terminal_ends_the_server_in_order(
    on_hangup: Callable[[str], None], tmp_path: Path, temporary: Path
) -> None:
    on_hangup("SIG_DFL")
    with serving(tmp_path / "model") as server:
        server.upload(demo_files(0, [0]))
        assert len(list(temporary.iterdir())) == 1
        assert server.stop(signal.SIGHUP) == 0
    assert list(temporary.iterdir()) == []


def test_nohup_keeps_the_server_alive(on_hangup: Callable[[str], None], tmp_path: Path) -> None:
    on_hangup("SIG_IGN")
    with serving(tmp_path / "model") as server:
        os.kill(server.process.pid, signal.SIGHUP)
        server.learn([0, 1], range(2))
        assert server.stop(signal.SIGTERM) == 0


def test_an_upload_that_does_not_end_does_not_delay_the_end(tmp_path: Path) -> None:
    with serving(tmp_path / "model") as server, connected(server) as client:
        client.sendall(request("POST /api/pictures", f"Content-Type: {FORM}", "Content-Length: 1000", body=b"--"))
        server.get("/api/health")  # the server has read both
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < SHUTDOWN_SECONDS / 2
        assert log_of(server) == ""


# ---- Windows

PLAY_WINDOWS = """
import asyncio, os, runpy, subprocess, sys

class WindowsPopen(subprocess.Popen):
    def __init__(self, *arguments, pass_fds=(), **options):
        if pass_fds:
            raise ValueError("pass_fds not supported on Windows.")
        super().__init__(*arguments, **options)

subprocess.Popen = WindowsPopen
del os.nice
name, os.name = os.name, "nt"
import equipoise.serve.worker_process
os.name = name  # pathlib asks for it
sys.executable, module = sys.argv[1], sys.argv[4]
del sys.argv[1:5]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def test_it_works_without_what_windows_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    (tmp_path / "play.py").write_text(PLAY_WINDOWS)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "play.py"} {python} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with serving(tmp_path / "model") as server:
        server.learn([0, 1], range(2))
        assert server.predict(demo_files(0, [9]))["predictions"]
        server.stop()
        assert "Traceback" not in log_of(server)
