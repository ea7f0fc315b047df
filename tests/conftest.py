"""Shared fixtures. Networks are tiny and single-threaded, so that two pytest-xdist workers use two cores."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.data.dataset import Dataset
from equipoise.data.sources import load
from equipoise.study.experiment import RunResult
from equipoise.study.run import run
from tests.folders import glyph_folder, save_variants
from tests.guard import guard_processes, guarded
from tests.models import learn
from tests.pages import Open, Page

torch.set_num_threads(1)

MEMORY = Path("/dev/shm")
"""A file system in memory."""
ROOM = 6 * 2**30
"""How much of it may be used; the files of all tests together take half of that."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files in memory if there is room: on a disk, every ``fsync`` takes milliseconds.

    They are removed in the end. To keep them, or to use a disk, set ``--basetemp`` or ``TMPDIR``.
    """
    if config.getoption("basetemp") or os.environ.get("TMPDIR") or not memory_has_room():
        return
    place = tempfile.mkdtemp(prefix="equipoise-", dir=MEMORY)
    config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))
    os.environ["TMPDIR"] = tempfile.tempdir = place  # workers and commands inherit the variable


def memory_has_room() -> bool:
    """Return whether files in memory can be written and executed, and do not take memory that others need."""
    try:
        state = os.statvfs(MEMORY)
        memory = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
    except (AttributeError, OSError):  # not Linux
        return False
    free = min(state.f_bavail * state.f_frsize, int(memory.get("MemAvailable:", 0)) * 1024)
    return free >= ROOM and not state.f_flag & os.ST_NOEXEC and os.access(MEMORY, os.W_OK)


@pytest.fixture(scope="session", autouse=True)
def _guarded_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Guard every command that a test starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", guard_processes(tmp_path_factory.mktemp("guard")))
        yield


@pytest.fixture(scope="session")
def cifar_root() -> Path:
    """Return the directory of the real CIFAR-100, or skip the test."""
    root = os.environ.get("EQUIPOISE_DATA")
    if not root:
        pytest.skip("needs the real CIFAR-100: set EQUIPOISE_DATA to the directory of cifar-100-python.tar.gz")
    return Path(root)


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load("digits")


Quick = Callable[..., RunResult]


@pytest.fixture
def quick(tmp_path: Path) -> Quick:
    """Return a function that runs an experiment on digits in a second or two, in a new directory."""
    count = 0

    def go(**options: Any) -> RunResult:
        nonlocal count
        count += 1
        options.setdefault("out", tmp_path / f"run-{count}")
        overrides = {"train": {"epochs": 2}, **options.pop("overrides", {})}
        return run("digits", overrides=overrides, **options)

    return go


@pytest.fixture(scope="session")
def glyph_steps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return three folders with three classes of glyphs each: A, B, C; D, E, F; G, H, I."""
    root = tmp_path_factory.mktemp("glyphs")
    return [glyph_folder(root / str(step), range(3 * step, 3 * step + 3)) for step in range(3)]


@pytest.fixture(scope="session")
def variants(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the paths of photographs in many sizes, modes and orientations; they must not be changed."""
    return save_variants(tmp_path_factory.mktemp("variants") / "photos")


@pytest.fixture(scope="session")
def two_steps(glyph_steps: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that has learned six classes in two steps; it must not be changed."""
    place = tmp_path_factory.mktemp("models") / "two"
    for folder in glyph_steps[:2]:
        learn(place, folder)
    return place


@pytest.fixture
def model_path(two_steps: Path, tmp_path: Path) -> Path:
    """Return a copy of the model that has learned two steps."""
    return shutil.copytree(two_steps, tmp_path / "model")


@pytest.fixture
def switch_often() -> Iterator[None]:
    """Let threads take turns every 0.1 ms: more of what one does falls between two lines of the other."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(usual)


def interruptible() -> None:
    """Reset SIGINT, for ``Popen``: a test suite in the background may pass on that it is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class Ran:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


def run_command(*arguments: object) -> int:
    """Run a command in this process and return its exit code."""
    from equipoise.cli import main  # imported late, so that other tests do not need the command line

    handlers = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        with guarded(*arguments), pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
    finally:
        for kind, handler in handlers.items():
            signal.signal(kind, handler)
    return int(exit_.value.code or 0)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Return a function that runs a command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)

    def go(*arguments: object) -> Ran:
        code = run_command(*arguments)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return go


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a server with a model of three classes, for tests that leave it as it was."""
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    from tests.serving import serving

    with serving(tmp_path_factory.mktemp("serve") / "my model") as server:
        server.learn([0, 1, 2], range(6))
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return Chromium, controlled by playwright, or skip the test."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no browser tests: playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no browser tests: chromium is not installed (Debian: apt-get install chromium)")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    flags += ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]  # a webcam that shows a pattern
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=[*flags, "--disable-sync", "--no-first-run"])
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Return a function that opens a report and waits for its charts; it may not log or request anything."""
    messages: list[str] = []
    requests: list[str] = []
    pages = []

    def go(place: Path, width: int = 1280, scheme: str = "light") -> Page:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        pages.append(page)
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        file = place / "report.html" if place.is_dir() else place
        page.goto(file.resolve().as_uri())
        page.wait_for_selector("html[data-drawn=yes]", timeout=20_000)
        return page

    yield go
    for page in pages:
        page.close()
    assert messages == []
    assert [url for url in requests if not url.startswith(("data:", "file:"))] == []
    assert sum(url.startswith("file:") for url in requests) == len(pages)
