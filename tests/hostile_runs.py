"""Fixtures and helpers for tests with run directories from strangers."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from equipoise.study.compare import CompareListener, compare, plan
from tests.conftest import Ran

SETTINGS: dict[str, dict[str, Any]] = {
    "train": {"epochs": 2},
    "stream": {"steps": "5,5"},
    "memory": {"size": 20},
    "net": {"backbone": "tiny"},
    "runtime": {"threads": 1},
}
OPTIONS = ("--epochs", 2, "--steps", "5,5", "--memory", 20, "--backbone", "tiny", "--threads", 1)
FIRST, SECOND = Path("wa/steps-5_5/seed-0"), Path("wa/steps-5_5/seed-1")
"""The runs of the comparison; the first is the hostile one."""

FILES = ("config.json", "metrics.jsonl", "summary.json", "report.html", ".lock", "checkpoint/manifest.json")
DIRECTORIES = ("predictions", "gallery", "tracking", "checkpoint", "checkpoint/step")
"""Names that every command checks before it does anything else."""
INNER = (
    "predictions/step-2.safetensors",
    "gallery/gallery.json",
    "gallery/exemplars.webp",
    "checkpoint/step-2.safetensors",
    "checkpoint/step-1.safetensors",
    "checkpoint/step/stages.json",
    "checkpoint/step/stage-0-epoch-1.safetensors",
)
"""Names that a command may or may not use."""


class StopInSecondStep(CompareListener):
    """Interrupts a comparison when one epoch of the second step is saved."""

    epochs = 0

    def epoch(self, epoch: int, loss: float, lr: float) -> None:
        self.epochs += 1

    def batch(self, images: int) -> None:
        if self.epochs == 3:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two comparisons of two runs each: finished, and stopped in the second step of the first."""
    folder = tmp_path_factory.mktemp("originals")
    cells = plan("digits", ["wa"], [0, 1], overrides=SETTINGS)
    compare(cells, folder / "finished")
    with pytest.raises(KeyboardInterrupt):
        compare(cells[:1], folder / "stopped", listener=StopInSecondStep())
    shutil.copytree(folder / "finished" / SECOND, folder / "stopped" / SECOND)
    assert (folder / "stopped" / FIRST / "checkpoint" / "step" / "stages.json").exists()
    assert (folder / "stopped" / FIRST / "checkpoint" / "step-1.safetensors").exists()
    return folder


def snapshot(path: Path) -> dict[str, Any]:
    """Return everything below a directory: type, permissions, time and content."""
    found: dict[str, Any] = {}
    for file in [path, *sorted(path.rglob("*"))]:
        state = file.lstat()
        content = file.read_bytes() if stat.S_ISREG(state.st_mode) else None
        found[str(file)] = (state.st_mode, state.st_nlink, state.st_mtime_ns, state.st_size, content)
    return found


@pytest.fixture
def outside(originals: Path, tmp_path: Path) -> Iterator[Path]:
    """Return a copy of a whole run, which links lead to; it must be unchanged in the end."""
    shutil.copytree(originals / "stopped" / FIRST, tmp_path / "outside")
    for name in ("summary.json", "report.html", "tracking", "gallery", "predictions/step-2.safetensors"):
        source = originals / "finished" / FIRST / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / "outside" / name)
        elif source.exists():
            shutil.copy(source, tmp_path / "outside" / name)
    (tmp_path / "outside" / "tracking").mkdir(exist_ok=True)
    (tmp_path / "outside" / "report.html").write_text("mine")
    shutil.copy(originals / "finished" / FIRST / "checkpoint" / "step-2.safetensors", tmp_path / "outside/checkpoint")
    before = snapshot(tmp_path / "outside")
    yield tmp_path / "outside"
    assert snapshot(tmp_path / "outside") == before


@pytest.fixture
def no_hang() -> Iterator[None]:
    """Fail instead of waiting for a pipe for ever."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise AssertionError("the command hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def make_link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def make_broken_link(path: Path, target: Path) -> None:
    path.symlink_to(target.with_name("nothing"))


def make_pipe(path: Path, target: Path) -> None:
    os.mkfifo(path)


def make_wrong_type(path: Path, target: Path) -> None:
    if target.is_dir():
        path.write_text("not a directory")
    else:
        (path / "deep").mkdir(parents=True)
        (path / "deep" / "precious").write_text("mine")


ODD: dict[str, Callable[[Path, Path], None]] = {
    "link": make_link,
    "broken link": make_broken_link,
    "pipe": make_pipe,
    "wrong type": make_wrong_type,
}


def plant(run: Path, name: str, odd: str, outside: Path) -> None:
    """Replace a part of a run by something that does not belong there."""
    (run / name).parent.mkdir(exist_ok=True)
    remove(run / name)
    ODD[odd](run / name, outside / name)


def fails(ran: Ran) -> str:
    """Assert that a command failed with one sentence, and return it."""
    assert ran.code == 2, (ran.out, ran.err)
    (line,) = ran.err.splitlines()
    assert line.startswith("equipoise: ")
    assert "Traceback" not in line
    return line


def all_fail(ran: Ran) -> None:
    """Assert that a comparison failed, with one sentence for each run that did and one about all of them."""
    assert ran.code == 2, (ran.out, ran.err)
    lines = ran.err.splitlines()
    assert lines[-1].startswith("equipoise: ")
    assert all(line.startswith("equipoise: wa, seed 0 failed: ") for line in lines[:-1])
    assert len(lines) <= 2


def copy_of(originals: Path, state: str, tmp_path: Path) -> Path:
    shutil.copytree(originals / state, tmp_path / "comparison", symlinks=True)
    return tmp_path / "comparison"


def call(cli: Callable[..., Ran], command: str, comparison: Path) -> Ran:
    if command == "run":
        return cli("run", "digits", *OPTIONS, "--quiet", "--out", comparison / FIRST)
    if command == "compare":
        return cli("compare", "digits", "--methods", "wa", "--seeds", "0,1", *OPTIONS, "--quiet", "--out", comparison)
    return cli("report", comparison / FIRST if command == "report of the run" else comparison)


COMMANDS = ("run", "compare", "report of the run", "report")


def check_rejected(ran: Ran, command: str) -> str:
    """Assert that a command fails, or that a report of a comparison skips the run; return the sentence."""
    if command != "report":
        return fails(ran)
    assert ran.code == 0, ran.err
    (line,) = ran.err.splitlines()
    assert line.startswith(f"equipoise: skipped {FIRST}: ")
    return line
