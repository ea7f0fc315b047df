"""Some hundred damaged and hostile inputs for every reader; ``make fuzz`` tries many more."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from equipoise.errors import DataError
from tests.fuzz import loop
from tests.fuzz.loop import Case, Job, Tally, run
from tests.fuzz.mutate import argument, name, paths, random_path
from tests.fuzz.readers import READERS

SEED = "20261118"
FEW = 5
"""Inputs that even slow readers get in the time."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the fuzzer needs fork")
def test_no_input_does_harm() -> None:
    words = [sys.executable, "-m", "tests.fuzz", "--inputs", "4000", "--seconds", "3", "--seed", SEED]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts.keys() == {*READERS, "total"}
    assert all(counts[name]["inputs"] >= FEW for name in READERS), done.stderr
    assert all(counts[name]["accepted"] for name in ("pictures", "models", "runs", "names", "recipes")), done.stderr
    assert not counts["total"]["tracebacks"] + counts["total"]["violations"]


def fuzz(read: Callable[[Path], object], root: Path) -> Tally:
    """Give one input to a reader."""
    job = Job("it", lambda place: lambda random: Case(b"", lambda: read(place)), 0)
    tally, reached = run(job, range(1), root / "fuzz", lambda number, before: None)
    assert reached == tally.inputs == 1
    return tally


def refuse(place: Path) -> None:
    (place / "own.txt").write_text("its own files may be written")
    raise DataError("it is refused")


def follow_link(place: Path) -> None:
    (place / "config.json").symlink_to("../sentinel/config.json")
    (place / "config.json").write_bytes(b"x")


def fail(place: Path) -> None:
    raise KeyError("a")


HARM: dict[str, Callable[[Path], object]] = {
    "changes a file": lambda place: (place.parent / "new").write_bytes(b""),
    "changes files outside": follow_link,
    "uses the network": lambda place: socket.socket().close(),
    "starts a program": lambda place: subprocess.run(["true"]),
    "runs code": lambda place: eval("1 + 1"),
    "takes longer": lambda place: time.sleep(5),
    "KeyError": fail,
}


@pytest.mark.parametrize("what", HARM)
def test_harm_is_noticed(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SECONDS", 0.2)
    tally = fuzz(HARM[what], tmp_path)
    assert tally.harm
    assert what in tally.problems[0]
    assert "--only 'it' --seed 0 --number 0" in tally.problems[0]


def test_refusing_is_no_harm(tmp_path: Path) -> None:
    tally = fuzz(refuse, tmp_path)
    assert (tally.accepted, tally.refused, tally.harm) == (0, 1, False)


def test_an_input_depends_on_seed_and_number_only() -> None:
    job = Job("it", lambda place: lambda random: Case(b"", lambda: None), 3)
    assert name(job.random(7)) == name(Job("it", job.prepare, 3).random(7))


def test_long_lists_do_not_hide_other_values() -> None:
    everywhere = paths({"long": [0] * 500, "short": 1})
    chosen = [random_path(everywhere, Random(number)) for number in range(200)]
    assert chosen.count(("short",)) > 20
    assert argument("a\0\ud800\udcff") == "a??"
