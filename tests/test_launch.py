"""Launchers of comparisons: all give the same results, and a run that was lost on the way is continued."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from equipoise.cli.launch_options import LaunchOptions
from equipoise.core import extras
from equipoise.core.directory import Directory
from equipoise.errors import EquipoiseError, UsageError
from equipoise.study.compare import CompareListener, ComparisonStatus, compare
from equipoise.study.compare_console import LaunchBoard
from equipoise.study.launch import Job, RunStatus, remote
from equipoise.study.launch.processes import Processes
from equipoise.study.launch.ray import Ray
from equipoise.study.launch.remote import Remote, RemoteJob, RunResources, execute_job
from equipoise.study.launch.slurm import Slurm
from tests.launching import (
    DIVERGING,
    LONG,
    TINY,
    all_ended,
    assert_same_runs,
    cells,
    descendants,
    in_second_step,
    locked_runs,
    remote_job,
    start,
    wait_for,
)


class Inline(Remote):
    """Executes jobs in this process, the last one first."""

    def __init__(self) -> None:
        super().__init__(RunResources())
        self.submitted: list[str] = []
        self.stopped = 0

    def submit(self, jobs: Mapping[int, RemoteJob]) -> None:
        self.jobs = dict(jobs)
        self.submitted += [job.name for job in jobs.values()]

    def ended(self) -> Iterator[tuple[int, str | None]]:
        index, job = self.jobs.popitem()
        yield index, execute_job(job)

    def stop(self) -> None:
        self.stopped += 1


# ---- what all remote launchers share


def test_results_are_in_the_order_of_the_cells(tmp_path: Path) -> None:
    compare(cells(), tmp_path / "local")
    launcher = Inline()
    compare(cells(), tmp_path / "remote", launcher=launcher)
    assert_same_runs(tmp_path / "local", tmp_path / "remote")
    assert launcher.submitted == ["ce, seed 0", "wa, seed 0", "ce, seed 1", "wa, seed 1"]
    assert launcher.stopped == 1


def test_finished_runs_are_read_and_not_submitted(tmp_path: Path) -> None:
    compare(cells(seeds="0"), tmp_path)
    launcher = Inline()
    table = compare(cells(), tmp_path, launcher=launcher)
    assert launcher.submitted == ["ce, seed 1", "wa, seed 1"]
    assert [entry["n"] for entry in table["entries"]] == [2, 2]
    again = Inline()
    assert compare(cells(), tmp_path, launcher=again) == table
    assert (again.submitted, again.stopped) == ([], 0)
    (tmp_path / "wa/steps-5_5/seed-0/metrics.jsonl").write_text("{")
    (failed,) = compare(cells(), tmp_path, launcher=again)["failed"]
    assert f"cannot read the run in {tmp_path}/wa/steps-5_5/seed-0 (" in failed["error"]


def test_a_run_that_fails_elsewhere_is_reported_and_the_others_continue(tmp_path: Path) -> None:
    recipe = tmp_path / "diverging.toml"
    recipe.write_text(DIVERGING)
    table = compare(cells(seeds="0", recipe=str(recipe)), tmp_path / "out", launcher=Inline())
    assert [entry["label"] for entry in table["entries"]] == ["wa"]
    assert [(run["label"], "loss" in run["error"]) for run in table["failed"]] == [("ce", True)]


def test_an_interrupted_comparison_stops_its_runs(tmp_path: Path) -> None:
    class Interrupt(CompareListener):
        def compared(self, status: ComparisonStatus) -> None:
            if status.done:
                raise KeyboardInterrupt

    launcher = Inline()
    with pytest.raises(KeyboardInterrupt):
        compare(cells(), tmp_path, launcher=launcher, listener=Interrupt())
    assert launcher.stopped == 1
    assert len(compare(cells(), tmp_path, launcher=launcher)["entries"]) == 2
    assert launcher.submitted[4:] == ["ce, seed 0", "wa, seed 0", "ce, seed 1"]


def test_a_run_waits_until_its_directory_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, directory = remote_job(tmp_path), Directory(tmp_path / "run")
    directory.make_dir()
    with directory.lock():
        monkeypatch.setattr(remote, "PATIENCE", 0.1)
        assert "another process is writing to" in str(execute_job(given))
    monkeypatch.setattr(remote, "PATIENCE", 30.0)
    holding = threading.Event()

    def hold() -> None:
        with directory.lock():
            holding.set()
            time.sleep(1.5)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()
    assert execute_job(given) is None
    thread.join()
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_job_has_the_resources_of_the_run(tmp_path: Path) -> None:
    assert remote_job(tmp_path).cpus == 1  # runtime.threads
    for resources, cpus, threads, devices in (
        (RunResources(cpus=3), 3, 3, 1),
        (RunResources(gpus=0.5), 1, 1, 1),
        (RunResources(gpus=4), 4, 1, 4),
        (RunResources(cpus=8, gpus=4), 8, 2, 4),
    ):
        given = remote_job(tmp_path, resources)
        runtime = given.settings.runtime
        assert (given.cpus, runtime.threads, runtime.devices) == (cpus, threads, devices)
    if not torch.cuda.is_available():
        error = execute_job(remote_job(tmp_path, RunResources(gpus=1)))
        assert "the device 'cuda' is not available here" in str(error)


def test_the_process_that_executes_a_run_reports_to_its_trackers(tmp_path: Path) -> None:
    if find_spec("tensorboardX") is None:
        pytest.skip("tensorboardX is not installed: pip install 'equipoise[track]'")
    assert execute_job(remote_job(tmp_path, RunResources(track="tensorboard"))) is None
    assert json.loads((tmp_path / "run" / "tracking" / "tensorboard.json").read_text())["finished"]


def test_the_monitor_reads_run_directories(tmp_path: Path) -> None:
    (cell,) = cells("ce", "0", overrides={**TINY, "train": {"epochs": 4}})
    job = Job(cell.name, cell.settings, tmp_path)
    monitor = remote.RunMonitor([job])
    assert monitor.look([job]) == ([RunStatus("ce, seed 0", 0.0, None)], None)
    (tmp_path / ".lock").touch()
    assert monitor.look([job])[0][0].position == "starting"
    (tmp_path / "config.json").write_text('{"sizes": [5, 5]}')
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "checkpoint" / "step").mkdir(parents=True)
    stage = {"file": "stage-0-epoch-2.safetensors", "epochs": 2, "seconds": 1.0}
    (tmp_path / "checkpoint" / "step" / "stages.json").write_text(json.dumps({"of": "step 2", "stages": [stage]}))
    (run,), left = monitor.look([job])
    assert (run.fraction, run.position) == (0.75, "step 2/2 epoch 2/4")
    assert left is not None
    assert monitor.look([]) == ([], 0.0)
    (known,), left = remote.RunMonitor([job]).look([job])  # another command's progress: this one has not started it
    assert (known.fraction, known.position, left) == (0.75, None, None)


# ---- the display


@pytest.mark.parametrize("height", [40, 12])
def test_a_terminal_shows_the_position_of_every_run(height: int, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=height, highlight=False)
    board = LaunchBoard(console=console)
    compare(cells("ce", "0"), tmp_path, launcher=Inline(), listener=board)
    runs = [RunStatus(f"wa, seed {seed}", 0.5, "step 1/2 epoch 3/8") for seed in range(20)]
    board.running([*runs, RunStatus("wa, seed 20", 0.0, None)], 600)
    assert board.live is not None
    lines = ["".join(part.text for part in line) for line in console.render_lines(board.live.renderable)]
    board.close()
    assert len(lines) < height
    assert any("wa, seed 0: step 1/2 epoch 3/8" in line for line in lines)
    assert ("1 more" if height == 40 else " more") in lines[-1]


def test_a_pipe_gets_a_table_per_run_and_a_line_now_and_then(tmp_path: Path) -> None:
    text = io.StringIO()
    board = LaunchBoard(console=Console(file=text, width=100))
    compare(cells("ce", "0 1"), tmp_path, launcher=Inline(), listener=board)
    printed = text.getvalue()
    name, head, *rows = [line.split()[0] for line in printed.splitlines()[:4]]
    assert name.endswith("seed-1")
    assert (head, rows) == ("step", ["1/2", "2/2"])
    positions = [printed.index(what) for what in ("5_5/seed-1", "1 of 2 runs done", "5_5/seed-0")]
    assert positions == sorted(positions)
    assert "2 of 2 runs done\n" in printed
    runs = [RunStatus("wa, seed 0", 0.5, "step 1/2 epoch 3/8"), RunStatus("wa, seed 1", 0.0, None)]
    board.last_line = -100.0
    for _ in range(2):  # the second is too soon for another line
        board.running(runs, 600)
    added = text.getvalue()[len(printed) :]
    assert added == "  wa, seed 0: step 1/2 epoch 3/8; wa, seed 1: waiting; about 10:00 left\n"


# ---- processes of this machine


@pytest.mark.slow
def test_runs_in_processes_of_this_machine(tmp_path: Path) -> None:
    """Kill one process, then the command: running it again continues, and gives what a single process gives."""
    out = tmp_path / "out"
    command = ("compare", "digits", *LONG[:2], "--seeds", "0", *LONG[4:], "--launcher", "processes", "--json")

    def begin() -> tuple[subprocess.Popen[str], list[int]]:
        driver = start(*command, "--out", out)
        busy = wait_for(
            lambda: [pid for pid in descendants(driver.pid) if any(map(in_second_step, locked_runs([pid])))]
        )
        return driver, busy

    driver, (victim, *_) = begin()
    os.kill(victim, signal.SIGKILL)
    printed, errors = driver.communicate(timeout=120)
    assert driver.returncode == 2
    assert "(killed by SIGKILL; out of memory?): run the same command again to continue it" in errors
    table = json.loads(printed)
    assert (len(table["failed"]), len(table["entries"])) == (1, 1)
    driver, others = begin()
    driver.kill()
    driver.communicate()
    wait_for(lambda: all_ended(others))
    overrides = {"train": {"epochs": 12}, "stream": {"steps": "5,5"}, "runtime": {"threads": 1}}
    asked = cells(seeds="0", overrides=overrides)
    compare(asked, out, launcher=Processes(RunResources()))
    compare(asked, tmp_path / "local")
    assert_same_runs(tmp_path / "local", out)


def test_as_many_processes_at_once_as_cores_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(Processes, "_fill", lambda self: None)
    for cpus, expected in ((1, 3), (2, 1), (4, 1)):
        launcher = Processes(RunResources())
        launcher.submit({0: remote_job(tmp_path, RunResources(cpus=cpus))})
        assert launcher._at_once == expected


# ---- errors


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ray_address": "here:1"}, "--ray-address applies to --launcher ray, not to local"),
        ({"slurm": ["a=b"], "launcher": "ray"}, "--slurm applies to --launcher slurm, not to ray"),
        ({"cpus_per_run": 2}, "--cpus-per-run applies to --launcher processes or ray or slurm"),
        ({"gpus_per_run": 1, "launcher": "processes"}, "--gpus-per-run applies to --launcher ray or slurm"),
        ({"cpus_per_run": 0, "launcher": "ray"}, "--cpus-per-run must be at least 1, got 0"),
        ({"gpus_per_run": 1.5, "launcher": "ray"}, "--gpus-per-run must be a whole number or a fraction below 1"),
        ({"gpus_per_run": 0.5, "launcher": "slurm"}, "--gpus-per-run must be a whole number for SLURM, got 0.5"),
        ({"slurm": ["gpu"], "launcher": "slurm"}, "cannot parse --slurm gpu: write NAME=VALUE"),
        ({"slurm": ["time=soon"], "launcher": "slurm"}, "cannot parse the time 'soon'"),
        ({"slurm": ["array-parallelism=x"], "launcher": "slurm"}, "array_parallelism must be a whole number, got 'x'"),
        ({"launcher": "slurm"}, "sbatch was not found"),
    ],
)
def test_errors_are_found_before_anything_starts(
    options: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=sentence):
        replace(LaunchOptions(), **options).make(tmp_path, "")


@pytest.mark.parametrize("name", ["ray", "slurm"])
def test_a_launcher_without_its_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "available", lambda package: False)
    with pytest.raises(EquipoiseError, match=rf"pip install 'equipoise\[{name}\]'"):
        Ray(None, RunResources()) if name == "ray" else Slurm({}, Path("jobs"), RunResources())
