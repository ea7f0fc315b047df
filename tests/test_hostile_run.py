"""Run directories with links, pipes and wrong types: nothing outside is changed, nothing hangs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from equipoise.study.compare import plan
from equipoise.study.launch import Job, remote
from tests import hostile_runs
from tests.conftest import Ran
from tests.hostile_runs import (
    DIRECTORIES,
    FILES,
    FIRST,
    INNER,
    ODD,
    OPTIONS,
    SECOND,
    SETTINGS,
    all_fail,
    call,
    copy_of,
    fails,
    plant,
    remove,
    snapshot,
)

no_hang, originals, outside = hostile_runs.no_hang, hostile_runs.originals, hostile_runs.outside
pytestmark = pytest.mark.usefixtures("no_hang")


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", [*FILES, *DIRECTORIES])
@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_run_and_compare_reject_what_is_not_theirs(
    name: str, odd: str, state: str, originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, state, tmp_path)
    plant(comparison / FIRST, name, odd, outside)
    before = snapshot(comparison / FIRST)
    for command in ("run", "compare"):
        assert str(FIRST / name) in fails(call(cli, command, comparison))
    assert snapshot(comparison / FIRST) == before


@pytest.mark.parametrize("odd", ["link", "pipe"])
@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_run_and_compare_use_no_link_inside_their_directories(
    name: str, odd: str, state: str, originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    """Either they do not need the file, or they reject it; what is not theirs is never read, changed or deleted."""
    comparison = copy_of(originals, state, tmp_path)
    plant(comparison / FIRST, name, odd, outside)
    ran = call(cli, "run", comparison)
    if ran.code:
        fails(ran)
    ran = call(cli, "compare", comparison)
    if ran.code:
        all_fail(ran)


REPORTED = (
    "config.json",
    "metrics.jsonl",
    "summary.json",
    "report.html",
    "predictions",
    "predictions/step-2.safetensors",
)
"""What a report reads and writes; without the gallery it is complete, but for the pictures."""
NOT_REPORTED = [name for name in (*FILES, *DIRECTORIES, *INNER) if name not in REPORTED]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", REPORTED)
def test_report_skips_what_is_not_a_run(
    name: str, odd: str, originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "finished", tmp_path)
    plant(comparison / FIRST, name, odd, outside)
    assert name in fails(call(cli, "report of the run", comparison))
    ran = call(cli, "report", comparison)
    assert ran.code == 0, ran.err
    (line,) = ran.err.splitlines()
    assert line.startswith("equipoise: skipped ")
    assert str(FIRST) in line
    assert name in line
    assert (comparison / "report.html").is_file()
    assert (comparison / SECOND / "report.html").is_file()


@pytest.mark.parametrize("name", NOT_REPORTED)
def test_report_does_not_need_the_other_files(
    name: str, originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "finished", tmp_path)
    plant(comparison / FIRST, name, "link", outside)
    ran = call(cli, "report of the run", comparison)
    assert (ran.code, ran.err) == (0, "")
    if name.startswith("gallery"):
        assert "is a symbolic link" in (comparison / FIRST / "report.html").read_text()


@pytest.mark.parametrize("name", ["compare.json", "compare.csv", "compare.tex", "report.html", "slurm"])
@pytest.mark.parametrize("odd", ODD)
def test_compare_rejects_files_that_are_not_its_own(
    name: str, odd: str, originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    remove(comparison / name)
    ODD[odd](comparison / name, outside if name == "slurm" else outside / "config.json")
    before = snapshot(comparison / FIRST)
    assert name in fails(call(cli, "compare", comparison))
    assert snapshot(comparison / FIRST) == before  # it fails before anything is trained


@pytest.mark.parametrize("level", ["wa", "wa/steps-5_5", "wa/steps-5_5/seed-0"])
@pytest.mark.parametrize("odd", ODD)
def test_compare_follows_no_link_to_a_run(
    level: str, odd: str, originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(comparison / level, elsewhere)
    before = snapshot(elsewhere)
    remove(comparison / level)
    ODD[odd](comparison / level, elsewhere)
    assert level in fails(call(cli, "compare", comparison))
    assert snapshot(elsewhere) == before
    ran = call(cli, "report", comparison)
    assert ran.code == 0 or fails(ran)
    assert snapshot(elsewhere) == before


def test_leftovers_that_are_links_are_removed_and_not_followed(
    originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    checkpoint = comparison / FIRST / "checkpoint"
    leftovers = [
        checkpoint / ".0123.tmp",
        checkpoint / "step" / ".4567.tmp",
        checkpoint / "step-7.safetensors",
        checkpoint / "step" / "stage-0-epoch-9.safetensors",
    ]
    for leftover in leftovers:
        leftover.symlink_to(outside / "config.json")
    (checkpoint / "tree").symlink_to(outside)
    assert call(cli, "run", comparison).code == 0
    assert not any(os.path.lexists(leftover) for leftover in leftovers)
    assert (checkpoint / "tree").is_symlink()


@pytest.mark.parametrize(
    ("package", "tracker", "name"),
    [
        ("tensorboardX", "tensorboard", "tensorboard"),
        ("tensorboardX", "tensorboard", "tensorboard.json"),
        ("mlflow", "mlflow", "mlflow/mlflow.db"),
    ],
)
@pytest.mark.parametrize("odd", ["link", "pipe"])
def test_trackers_follow_no_link(
    package: str,
    tracker: str,
    name: str,
    odd: str,
    originals: Path,
    outside: Path,
    tmp_path: Path,
    cli: Callable[..., Ran],
) -> None:
    """The run continues without the tracker."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install 'equipoise[track]'")
    comparison = copy_of(originals, "stopped", tmp_path)
    (tmp_path / "precious").write_text("mine")
    (comparison / FIRST / "tracking" / name).parent.mkdir(parents=True)
    ODD[odd](comparison / FIRST / "tracking" / name, outside if name == tracker else tmp_path / "precious")
    ran = cli("run", "digits", *OPTIONS, "--quiet", "--track", tracker, "--out", comparison / FIRST)
    assert ran.code == 0, ran.err
    (line,) = ran.err.splitlines()
    assert line.startswith(f"equipoise: tracking with {tracker} stopped (")
    assert name in line
    assert (tmp_path / "precious").read_text() == "mine"


# ---- progress of runs in other processes


@pytest.mark.parametrize("odd", ["link", "pipe"])
@pytest.mark.parametrize("name", [*FILES, *DIRECTORIES, *INNER])
def test_the_monitor_of_other_processes_survives_everything(
    name: str, odd: str, originals: Path, outside: Path, tmp_path: Path
) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    plant(comparison / FIRST, name, odd, outside)
    (cell,) = plan("digits", ["wa"], [0], overrides=SETTINGS)
    job = Job(cell.name, cell.settings, comparison / FIRST)
    (status,), _ = remote.RunMonitor([job]).look([job])
    assert 0 <= status.fraction <= 1


@pytest.mark.parametrize("odd", ODD)
def test_a_lock_that_is_no_file_is_not_waited_for(
    odd: str, originals: Path, outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    plant(comparison / FIRST, ".lock", odd, outside)
    (cell,) = plan("digits", ["wa"], [0], overrides=SETTINGS)
    job = remote.RemoteJob(cell.name, cell.settings, comparison / FIRST, None, 1, 0, "")
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits"))
    assert ".lock is " in str(remote.execute_job(job))
