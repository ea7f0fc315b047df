"""Run directories: interruption and resume, wrong settings, changed data and damaged files."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.core.directory import Directory
from equipoise.core.tensors import write_tensors
from equipoise.data.dataset import Dataset
from equipoise.data.stream import ClassStream
from equipoise.engine.recipes import resolve
from equipoise.errors import RunError, UsageError
from equipoise.learn.method import Method
from equipoise.study.run import run
from equipoise.study.run_dir import RunDir, read_config
from tests.conftest import Quick, interruptible, run_command
from tests.runs import COMMAND, Stop, assert_same_run
from tests.test_data import make_tree

SHORT: dict[str, dict[str, Any]] = {"train": {"epochs": 1}, "stream": {"classes": 3}}
"""Few images, so that a test can repeat the run for each of its writes."""

# ---- interruptions


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "muon"])
def test_a_run_that_was_interrupted_anywhere_ends_with_the_same_bits(optimizer: str, quick: Quick) -> None:
    lr = 0.003 if optimizer == "adam" else 0.1
    train = {"epochs": 2, "optimizer": optimizer, "lr": lr}
    overrides = {"train": train, "fields": {"bias": True}, "stream": {"classes": 6, "steps": 3}}
    whole = quick(method="wa", overrides=overrides).directory
    for after in (0, 10, 33, 55):
        directory = whole.with_name(f"stopped after {after} batches")
        with pytest.raises(KeyboardInterrupt):
            quick(method="wa", overrides=overrides, out=directory, listener=Stop(after))
        quick(method="wa", overrides=overrides, out=directory)
        assert_same_run(whole, directory)


def test_resume_repeats_no_finished_epoch(quick: Quick, tmp_path: Path) -> None:
    class CountEpochs(Stop):
        def __init__(self, after: int) -> None:
            super().__init__(after)
            self.epochs = 0

        def epoch(self, epoch: int, loss: float, lr: float) -> None:
            self.epochs += 1

    first, second = CountEpochs(48), CountEpochs(10**9)
    three: dict[str, Any] = {"out": tmp_path / "x", "overrides": {"train": {"epochs": 3}}}
    with pytest.raises(KeyboardInterrupt):
        quick(listener=first, **three)
    quick(listener=second, **three)
    assert first.epochs > 3
    assert first.epochs + second.epochs == 5 * 3
    assert quick(listener=Stop(0), **three).steps[-1].step == 5  # finished: nothing is trained


def test_a_killed_run_loses_nothing(quick: Quick, tmp_path: Path) -> None:
    """Kill the process when it has replaced the checkpoint six times, and run the command again."""
    directory = tmp_path / "run"
    command = [*COMMAND, "--epochs", "3", "--out", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    manifest, seen, last = directory / "checkpoint" / "step" / "stages.json", 0, b""
    deadline = time.monotonic() + 60
    while seen < 6 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.005)
        try:
            now = manifest.read_bytes()
        except FileNotFoundError:
            continue
        if now != last:
            seen, last = seen + 1, now
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert run_command(*command[3:]) == 0  # without `python -m equipoise`
    whole = quick(overrides={"train": {"epochs": 3}, "runtime": {"threads": 1}})
    assert_same_run(whole.directory, directory)


def test_ctrl_c_tells_how_to_continue(tmp_path: Path) -> None:
    command = [*COMMAND, "--set", "train.epochs=500", "--out", str(tmp_path / "run")]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=interruptible)
    manifest = tmp_path / "run" / "checkpoint" / "step" / "stages.json"
    deadline = time.monotonic() + 60
    while not manifest.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "every finished epoch is saved, run the same command to continue" in err
    assert "Traceback" not in err


class PowerCut(BaseException):
    """An error that no handler catches by mistake."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_power_cut_at_every_single_write(
    when: str, quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop the run just before, or just after, each file gets its name; then continue it."""
    small: dict[str, Any] = {"steps": "2,1", "overrides": SHORT}
    whole = quick(**small)
    rename, out, writes = os.replace, tmp_path / "cut", 0
    while True:
        left = writes

        def cut(*names: Any, **directories: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0 and when == "before":
                raise PowerCut
            rename(*names, **directories)
            if left < 0:
                raise PowerCut

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", cut)
            try:
                quick(out=out / str(writes), **small)
            except PowerCut:
                pass
            else:
                break
        quick(out=out / str(writes), **small)
        assert_same_run(whole.directory, out / str(writes))
        writes += 1
    assert writes > 10


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_write_errors(number: int, quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one write fail, each time a later one, as on a full or broken disk: one sentence, and the run continues."""
    small: dict[str, Any] = {"steps": "2,1", "overrides": SHORT, "out": tmp_path / "run"}
    whole = quick(**small | {"out": tmp_path / "whole"})
    sync, failures, finished = os.fsync, 0, False
    messages: list[str] = []
    while not finished:
        left = failures

        def fail(file: int) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                raise OSError(number, os.strerror(number))
            sync(file)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            try:
                quick(**small)
            except (RunError, UsageError) as error:
                messages.append(str(error))
            else:
                finished = left >= 0
        failures += 1
        assert failures < 100
    assert len(messages) > 3
    assert all(f"({os.strerror(number)}): " in message for message in messages)
    assert all(len(message.splitlines()) == 1 for message in messages)
    assert_same_run(whole.directory, tmp_path / "run")
    assert list((tmp_path / "run").rglob("*.tmp")) == []


def test_files_of_a_killed_writer_are_removed(quick: Quick) -> None:
    directory = quick(steps="5,5", overrides={"train": {"epochs": 1}}).directory
    folders = [directory, *(directory / name for name in ("checkpoint", "checkpoint/step", "predictions", "gallery"))]
    for folder in folders:
        folder.mkdir(exist_ok=True)
        (folder / ".0123456789abcdef.tmp").write_text("half")
    others = [directory / "notes.tmp", directory / ".hidden", directory / "tracking" / ".4711.tmp"]
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_text("mine")
    quick(steps="5,5", overrides={"train": {"epochs": 1}}, out=directory)
    assert sorted(directory.rglob("*.tmp")) == sorted(other for other in others if other.suffix == ".tmp")
    assert all(other.read_text() == "mine" for other in others)


# ---- whose directory it is


def test_a_run_directory_with_other_settings_is_rejected(quick: Quick, tmp_path: Path) -> None:
    quick(out=tmp_path / "x")
    with pytest.raises(UsageError, match="seed=0, but this command has 1"):
        quick(out=tmp_path / "x", seed=1)
    with pytest.raises(UsageError, match=r"method\.norm=2, but this command has 1"):
        quick(out=tmp_path / "x", overrides={"fields": {"norm": 1}})


def test_a_run_of_an_older_version_continues_with_new_settings_at_their_defaults(quick: Quick) -> None:
    first = quick(method="wa")
    config = json.loads((first.directory / "config.json").read_text())
    del config["settings"]["train"]["multiply_repeats"]
    (first.directory / "config.json").write_text(json.dumps(config))
    assert quick(method="wa", out=first.directory).steps == first.steps
    with pytest.raises(UsageError, match=r"train.multiply_repeats=false, but this command has true"):
        quick(method="wa", out=first.directory, overrides={"train": {"epochs": 2, "multiply_repeats": True}})
    unreadable: list[dict[str, Any]] = [{}, config["settings"] | {"train": {"of": "the future"}}]
    for settings in unreadable:
        (first.directory / "config.json").write_text(json.dumps(config | {"settings": settings}))
        with pytest.raises(RunError, match="cannot read its settings"):
            quick(method="wa", out=first.directory)


def test_two_processes_cannot_share_a_run_directory(tmp_path: Path, digits: Dataset) -> None:
    one, two = RunDir(tmp_path, resolve("digits")), RunDir(tmp_path, resolve("digits"))
    stream = ClassStream(digits, 5)
    with one.open(stream, Method()), pytest.raises(RunError, match="another process"), two.open(stream, Method()):
        pass


def test_a_file_system_without_locks_is_not_mistaken_for_another_process(
    tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: object, how: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    run_dir = RunDir(tmp_path, resolve("digits"))
    locked = r"cannot be locked .*: choose a place on a file system that supports locks"
    with pytest.raises(RunError, match=locked), run_dir.open(ClassStream(digits, 5), Method()):
        pass


def test_a_command_that_is_not_utf8_can_be_saved(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    name = os.fsdecode(b"/data/caf\xe9")
    monkeypatch.setattr("sys.argv", ["equipoise", name])
    directory = quick(steps=1).directory
    assert "/data/caf\\udce9" in read_config(Directory(directory))["command"]


def test_files_are_synced_before_they_are_renamed(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every file of a run; else a power cut could leave an empty file under the right name."""
    events: list[str] = []
    rename, sync = os.replace, os.fsync

    def note_rename(*names: Any, **directories: Any) -> None:
        events.append("rename")
        rename(*names, **directories)

    def note_sync(file: int) -> None:
        events.append("sync")
        sync(file)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_rename)
    quick(steps=1, overrides={"train": {"epochs": 1}})
    renames = [index for index, event in enumerate(events) if event == "rename"]
    assert len(renames) > 5
    assert all(events[index - 1] == events[index + 1] == "sync" for index in renames)


# ---- damage


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run in two steps; it must not be changed."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    run("digits", steps="5,5", out=directory, overrides={"train": {"epochs": 2}})
    return directory


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metrics.jsonl", None),
        ("metrics.jsonl", '{"step": 1'),
        ("checkpoint/manifest.json", "{}"),
        ("checkpoint/manifest.json", "[]"),
        ("checkpoint/manifest.json", "{"),
        ("config.json", None),
        ("config.json", "[]"),
        ("config.json", '{"format": 1}'),
        ("checkpoint/step-2.safetensors", None),
        ("checkpoint/step-2.safetensors", "cut"),
    ],
)
def test_a_damaged_run_is_reported_and_not_continued(
    file: str, content: str | None, finished: Path, quick: Quick, tmp_path: Path
) -> None:
    directory = shutil.copytree(finished, tmp_path / "run")
    (directory / file).unlink()
    if content is not None:
        (directory / file).write_text(content)
    with pytest.raises(RunError) as caught:
        quick(steps="5,5", out=directory)
    assert str(directory) in str(caught.value)


def test_the_state_of_another_model_is_rejected(finished: Path, quick: Quick, tmp_path: Path) -> None:
    directory = shutil.copytree(finished, tmp_path / "run")
    write_tensors(Directory(directory), "checkpoint/step-2.safetensors", {"weight": torch.zeros(3)})
    with pytest.raises(RunError, match="is damaged"):
        quick(steps="5,5", out=directory)


def test_data_that_changed_since_the_run_began_is_noticed(tmp_path: Path) -> None:
    make_tree(tmp_path / "data", ["a", "b"], 8)
    small: dict[str, Any] = {
        "data_root": tmp_path / "data",
        "out": tmp_path / "run",
        "overrides": {"train": {"epochs": 1}, "net": {"backbone": "tiny"}, "data": {"size": 8}},
    }
    run("folder", **small)
    run("folder", **small)
    (tmp_path / "data" / "a" / "0.png").unlink()
    with pytest.raises(RunError, match="the data changed since the run"):
        run("folder", **small)
