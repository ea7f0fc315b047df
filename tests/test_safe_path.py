"""Modules in the current directory, which may be a stranger's model, are not imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import serving

QUICK = ("--steps", "2", "--epochs", "1", "--threads", "1", "--backbone", "tiny", "--memory", "20", "--out", "out")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a directory with modules that are called like ours and Python's; return the file that all of them make."""
    found = tmp_path / "imported"
    place = tmp_path / "model"
    place.mkdir()
    for name in ("equipoise", "json", "multiprocessing", "torch"):
        (place / f"{name}.py").write_text(f"open({os.fspath(found)!r}, 'w')\n")
    monkeypatch.chdir(place)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return found


@pytest.mark.parametrize(
    "command",
    [
        ("compare", "digits", "--methods", "ce", "--seeds", "0", "--launcher", "processes", *QUICK),
        ("run", "digits", "--method", "ce", "--devices", "2", *QUICK),
    ],
    ids=["processes", "devices"],
)
def test_runs_in_several_processes(command: tuple[str, ...], hostile: Path) -> None:
    if "--devices" in command:
        pytest.importorskip("lightning_fabric")
    script = Path(sys.executable).with_name("equipoise")
    done = subprocess.run([script, *command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert not hostile.exists()


def test_the_process_that_learns(hostile: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    with serving(Path("new")) as server:
        server.learn([0, 1], range(2))
    assert not hostile.exists()
