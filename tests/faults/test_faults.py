"""A sample of `make torture`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.inject import ERRORS, FAULTS, Injector

ROOT = Path(__file__).parent.parent.parent
SAMPLE = ("learn", "train", "forget", "job", "start again", "run")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.slow
def test_interrupted_commands_lose_nothing() -> None:
    pytest.importorskip("onnxruntime")
    command = [sys.executable, "-m", "tests.faults.torture", "--only", *SAMPLE, "--every", "197"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["harm"] == 0
    assert all(counts[fault] >= 2 for fault in FAULTS)


@pytest.mark.parametrize("fault", ["ENOSPC", "EROFS", "EIO"])
def test_what_fails_and_what_does_not(fault: str) -> None:
    injector = Injector(2, fault)
    injector.change("open")
    with pytest.raises(OSError, match=os.strerror(ERRORS[fault])):
        injector.change("fsync")
    if fault == "EIO":
        injector.change("open")
    else:
        with pytest.raises(OSError, match=r".+"):
            injector.change("open")
    if fault == "EROFS":
        with pytest.raises(OSError, match=r".+"):
            injector.change("os.remove")
    else:
        injector.change("os.remove")
    assert injector.events == ["open", "fsync", "open", "os.remove"]
