"""What tests share. Nets are tiny and single-threaded: two xdist workers fill two cores."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.cli import main
from equipoise.data.dataset import Dataset
from equipoise.data.sources import load
from equipoise.study.experiment import Result
from equipoise.study.run import run

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cifar_root() -> Path:
    """The directory of real CIFAR-100, or a skip that says why."""
    root = os.environ.get("EQUIPOISE_DATA")
    if not root:
        pytest.skip("real CIFAR-100 is not here: set EQUIPOISE_DATA to the directory of cifar-100-python.tar.gz")
    return Path(root)


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load("digits")


Quick = Callable[..., Result]


@pytest.fixture
def quick(tmp_path: Path) -> Quick:
    """A run on digits in a second or two, into a directory of its own."""
    count = 0

    def go(**options: Any) -> Result:
        nonlocal count
        count += 1
        options.setdefault("out", tmp_path / f"run-{count}")
        overrides = {"train": {"epochs": 2}, **options.pop("overrides", {})}
        return run("digits", overrides=overrides, **options)

    return go


def interruptible() -> None:
    """For ``Popen``: a suite that was started in the background may hand on an ignored SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)

    def go(*arguments: object) -> Ran:
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(int(exit_.value.code or 0), captured.out, captured.err)

    return go
