"""Atomic files at paths that the user named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.core.files import atomic_write, write_bytes
from equipoise.errors import RunError


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    write_bytes(tmp_path / "bytes", b"\0\xff")
    assert (tmp_path / "bytes").read_bytes() == b"\0\xff"
    assert [file.name for file in tmp_path.iterdir()] == ["bytes"]


def test_a_file_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    rename, sync = os.replace, os.fsync

    def note_rename(*arguments: Any, **options: Any) -> None:
        events.append("rename")
        rename(*arguments, **options)

    def note_sync(file: int) -> None:
        events.append("sync")
        sync(file)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_rename)
    write_bytes(tmp_path / "file", b"new")
    assert events == ["sync", "rename", "sync"]


def fail_with_os_error(file: Path) -> None:
    file.write_text("half")
    raise OSError(28, "No space left on device")


def save_into_missing_directory(file: Path) -> None:
    torch.save({}, file / "missing" / "file")


@pytest.mark.parametrize("write", [fail_with_os_error, save_into_missing_directory])
def test_a_failed_write_leaves_the_old_file(write: Callable[[Path], None], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(RunError, match=r"cannot write .*file \(.*\): choose another place"):
        atomic_write(file, write)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    def interrupt(file: Path) -> None:
        file.write_text("half")
        raise KeyboardInterrupt

    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        atomic_write(file, interrupt)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_is_replaced_and_its_target_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "link").symlink_to("target")
    write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "target").read_text() == "mine"
    assert (tmp_path / "link").read_text() == "new"


def test_places_that_cannot_be_written_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, reason in (
        (tmp_path, "it is a directory"),
        (Path("/"), "it is a directory"),
        (tmp_path / "missing" / "file", "No such file or directory"),
        (tmp_path / "file" / "file", "Not a directory"),
    ):
        with pytest.raises(RunError, match=rf"cannot write {path} \({reason}\): choose another"):
            write_bytes(path, b"new")


def test_what_a_killed_process_left_behind_is_deleted(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = {
        f".equipoise-{ended.pid}-{'0' * 16}.tmp": False,
        f".equipoise-{os.getpid()}-{'0' * 16}.tmp": True,  # of another thread
        f".equipoise-{ended.pid}-mine.tmp": True,
        ".other.tmp": True,
    }
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / f".equipoise-{ended.pid}-{'1' * 16}.tmp").symlink_to(".other.tmp")
    write_bytes(tmp_path / "file", b"x")
    assert {name: (tmp_path / name).exists() for name in names} == names
    assert (tmp_path / "file").read_bytes() == b"x"
