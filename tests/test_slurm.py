"""Comparisons as SLURM jobs; submitit executes them as processes of this machine."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from equipoise.errors import RunError
from equipoise.study.compare import CompareListener, compare
from equipoise.study.launch import RunStatus
from equipoise.study.launch.remote import RunResources
from equipoise.study.launch.slurm import Slurm
from tests.launching import (
    DIVERGING,
    TINY,
    assert_same_runs,
    cells,
    descendants,
    in_second_step,
    locked_runs,
    remote_job,
)

pytestmark = pytest.mark.skipif(
    find_spec("submitit") is None, reason="submitit is not installed: pip install 'equipoise[slurm]'"
)


def install_scripts(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Put shell scripts in front of the commands of SLURM."""
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.slow
def test_a_preempted_job_is_requeued_and_continues(tmp_path: Path) -> None:
    overrides = {**TINY, "train": {"epochs": 15}}
    out = tmp_path / "slurm"

    class Preempting(Slurm):
        preempted: Path | None = None
        before = ""

        def ended(self) -> Iterator[tuple[int, str | None]]:
            for pid in (pid for job in self._jobs.values() for pid in descendants(int(job.job_id))):
                for run in locked_runs([pid]):
                    if self.preempted is None and in_second_step(run):
                        os.kill(pid, signal.SIGUSR2)
                        self.preempted, self.before = run, (run / "metrics.jsonl").read_text()
            yield from super().ended()

    launcher = Preempting({"time": "5"}, out / "jobs", RunResources(), cluster="local")
    table = compare(cells(seeds="0", overrides=overrides), out, launcher=launcher)
    assert table["failed"] == []
    assert launcher.preempted is not None
    log = "".join(file.read_text() for file in (out / "jobs").glob("*_log.out"))
    assert log.count("Starting with") == 3  # two jobs, one of them twice
    assert "Requeued job" in log
    assert (launcher.preempted / "metrics.jsonl").read_text().startswith(launcher.before)
    assert list((out / "jobs").glob("*.pkl")) == []
    compare(cells(seeds="0", overrides=overrides), tmp_path / "local")
    assert_same_runs(tmp_path / "local", out)


@pytest.mark.slow
def test_jobs_that_fail_are_killed_or_cancelled(tmp_path: Path) -> None:
    recipe = tmp_path / "diverging.toml"
    recipe.write_text(DIVERGING)
    overrides = {**TINY, "train": {"epochs": 100}}

    class Killing(Slurm):
        def ended(self) -> Iterator[tuple[int, str | None]]:
            for job in self._jobs.values():
                for pid in descendants(int(job.job_id)):
                    if any(run.parent.parent.name == "wa" for run in locked_runs([pid])):
                        os.kill(pid, signal.SIGKILL)
            yield from super().ended()

    launcher = Killing({}, tmp_path / "jobs", RunResources(), cluster="local")
    asked = cells(seeds="0", overrides=overrides, recipe=str(recipe))
    table = compare(asked, tmp_path / "out", launcher=launcher)
    assert table["entries"] == []
    diverged, killed = (run["error"] for run in table["failed"])
    assert "loss" in diverged
    assert "ended unexpectedly: see " in killed

    class Interrupt(CompareListener):
        def running(self, runs: Sequence[RunStatus], seconds_left: float | None) -> None:
            if any(run.position and run.fraction for run in runs):
                raise KeyboardInterrupt

    second = Slurm({}, tmp_path / "jobs", RunResources(), cluster="local")
    with pytest.raises(KeyboardInterrupt):
        compare(asked[1:], tmp_path / "out", launcher=second, listener=Interrupt())
    assert locked_runs(descendants(os.getpid())) == []
    assert not (tmp_path / "jobs" / "jobs.json").exists()


def test_the_options_of_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import submitit

    install_scripts(tmp_path, monkeypatch, sbatch="", srun="")
    options = {"partition": "gpu", "time": "1-12", "exclusive": "true", "array-parallelism": "3"}
    launcher = Slurm(options, tmp_path / "jobs", RunResources(gpus=1))
    executor = launcher._executor(submitit.AutoExecutor, 4)._executor
    lines = executor._make_submission_file_text("true", "id").splitlines()
    for line in (
        "#SBATCH --partition=gpu",
        "#SBATCH --time=2160",
        "#SBATCH --exclusive",
        "#SBATCH --requeue",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --gpus-per-node=1",
    ):
        assert line in lines
    assert any(line.startswith("srun ") and "--cpus-per-task=4" in line for line in lines)
    assert executor.parameters["array_parallelism"] == 3


def test_a_queue_that_does_not_answer_is_not_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs of a killed command continue to run; to submit them again would give two of each."""
    squeue = f"test -e {tmp_path}/asked && echo 7_0 || {{ touch {tmp_path}/asked; false; }}"
    install_scripts(tmp_path, monkeypatch, sbatch="echo Submitted batch job 99", squeue=squeue)
    given = remote_job(tmp_path)
    record = tmp_path / "jobs" / "jobs.json"
    record.parent.mkdir()
    record.write_text(json.dumps({str(given.directory): "7_0"}))
    launcher = Slurm({}, record.parent, RunResources())
    launcher.pause = 0.0
    launcher.submit({0: given})
    assert [job.job_id for job in launcher._jobs.values()] == ["7_0"]
    install_scripts(tmp_path, monkeypatch, squeue="false")
    assert list(launcher.ended()) == []
    launcher._lock.close()
    other = Slurm({}, record.parent, RunResources())
    other.pause = 0.0
    with pytest.raises(RunError, match="squeue does not answer"):
        other.submit({0: given})
    other.stop()
    assert json.loads(record.read_text()) == {str(given.directory): "7_0"}


@pytest.mark.parametrize("content", ["[]", '{"run": 7}', "{", '{"run": NaN}'])
def test_a_damaged_record_of_jobs_is_an_error(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_scripts(tmp_path, monkeypatch, sbatch="echo Submitted batch job 99", squeue="")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "jobs.json").write_text(content)
    launcher = Slurm({}, tmp_path / "jobs", RunResources())
    with pytest.raises(RunError, match=r"jobs\.json is (damaged|not valid JSON)") as caught:
        launcher.submit({0: remote_job(tmp_path)})
    launcher.stop()
    assert len(str(caught.value).splitlines()) == 1
    assert (tmp_path / "jobs" / "jobs.json").read_text() == content
