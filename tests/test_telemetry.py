"""Packages that would send usage data are kept from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.core.extras import NO_TELEMETRY, require

ROOT = Path(__file__).parent.parent
VARIABLES = {variable for variable, _ in NO_TELEMETRY.values()}
IMPORT = "from equipoise.core.extras import require; require('onnxruntime', 'pretrained', 'this'); "
LOOK_UP = """
import socket, time
from contextlib import suppress
with suppress(OSError):
    socket.getaddrinfo("looked-up.example", 80)
time.sleep(12)
"""


def run(*command: str, temporary: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {"TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("start", [IMPORT, "import runpy; runpy.run_path('examples/onnx_predict.py'); "])
def test_onnx_runtime_does_not_start_its_client(start: str, tmp_path: Path) -> None:
    """The client leaves a file among the temporary ones as soon as it is started."""
    pytest.importorskip("onnxruntime")
    show = "import os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    assert run(sys.executable, "-c", start + show, temporary=tmp_path) == "1\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("EQUIPOISE_WATCH"), reason="waits for twelve seconds: `make audit` runs it")
@pytest.mark.skipif(not shutil.which("unshare"), reason="needs unshare, to give a process a network of its own")
def test_onnx_runtime_contacts_nobody(tmp_path: Path) -> None:
    """Without the variable, version 1.31 asks for the address of its makers after about ten seconds."""
    pytest.importorskip("onnxruntime")
    alone = ("unshare", "--net", "--map-root-user")
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let a process have a network of its own")
    watched = (*alone, sys.executable, "-m", "tests.asked_names", sys.executable, "-c", IMPORT + LOOK_UP)
    assert json.loads(run(*watched, temporary=tmp_path)) == ["looked-up.example"]


@pytest.mark.parametrize("package", sorted(NO_TELEMETRY))
def test_the_choice_of_the_user_counts(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.core.extras.available", lambda package: True)
    monkeypatch.setattr("importlib.import_module", lambda name: os)
    variable, off = NO_TELEMETRY[package]
    monkeypatch.delenv(variable, raising=False)
    require(package, "this", "that")
    assert os.environ[variable] == off
    monkeypatch.setenv(variable, "something else")
    require(package, "this", "that")
    assert os.environ[variable] == "something else"
