"""Runs as an array of SLURM jobs: a job that is preempted or runs out of time is requeued and continues."""

from __future__ import annotations

import getpass
import io
import logging
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext, redirect_stderr, suppress
from pathlib import Path
from typing import Any

import msgspec

from equipoise.core.directory import Directory
from equipoise.core.extras import check_installed, require
from equipoise.core.signals import defer_signals
from equipoise.errors import RunError, UsageError
from equipoise.study.launch.remote import Remote, RemoteJob, RunResources, execute_job

REQUEUES = 1000
"""How often a job may run out of time."""
MINUTES = 240
"""Default time limit of a job. Longer jobs wait longer; shorter ones work as long as an epoch fits."""
TRIES = 12
"""How often squeue is tried before giving up."""
SUBMITIT_OPTIONS = ("array_parallelism", "signal_delay_s")
"""Options of submitit that are not options of sbatch."""


class Slurm(Remote):
    """Submits jobs with submitit.

    Parameters
    ----------
    options
        Options of sbatch.
    folder
        Where job files and logs go.
    resources
        Resources of each run.
    cluster
        submitit's name of the cluster; "local" runs the jobs as processes of this machine, for tests.
    """

    def __init__(
        self, options: Mapping[str, str], folder: Path, resources: RunResources, cluster: str = "slurm"
    ) -> None:
        super().__init__(resources)
        check_installed("submitit", "slurm", "--launcher slurm")
        if resources.gpus % 1:
            raise UsageError(f"--gpus-per-run must be a whole number for SLURM, got {resources.gpus:g}")
        self.options = {name.replace("-", "_"): value for name, value in options.items()}
        self.minutes = minutes(self.options.pop("time", str(MINUTES)))
        for name in SUBMITIT_OPTIONS:
            if not self.options.get(name, "0").isdecimal():
                raise UsageError(f"--slurm {name} must be a whole number, got '{self.options[name]}'")
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise UsageError("sbatch was not found: run this on a SLURM cluster, or use --launcher ray or local")
        self.folder, self.cluster = folder.absolute(), cluster
        self.directory = Directory(self.folder)
        self.pause = 5.0 if cluster == "slurm" else 0.2
        self._lock = ExitStack()
        self._jobs: dict[int, Any] = {}
        self._missing: set[str] = set()
        self._others: dict[str, str] | None = None
        """Jobs of other comparisons by run directory, once they are known."""

    def submit(self, jobs: Mapping[int, RemoteJob]) -> None:
        submitit: Any = require("submitit", "slurm", "--launcher slurm")
        logging.getLogger("submitit").setLevel(logging.ERROR)
        self._unfinished = submitit.core.utils.UncompletedJobError
        self.directory.make_dir()
        self._lock.enter_context(self.directory.lock())  # another command must not adopt our jobs
        known = self._recorded()
        queued = self._surely_queued() if known else set()
        for index, job in jobs.items():  # adopt the jobs of a command that was killed
            id_ = known.get(str(job.directory))
            if id_ in queued:
                self._jobs[index] = submitit.SlurmJob(self.folder, id_)
        new = {index: job for index, job in jobs.items() if index not in self._jobs}
        if new:
            executor = self._executor(submitit.AutoExecutor, max(job.cpus for job in new.values()))
            try:
                # local processes would inherit it
                deferred = defer_signals() if self.cluster == "slurm" else nullcontext()
                with deferred, redirect_stderr(io.StringIO()):
                    submitted = executor.map_array(RequeuedJob(), list(new.values()))
                    self._jobs |= dict(zip(new, submitted, strict=True))
            except (self._unfinished, submitit.core.utils.FailedSubmissionError) as error:
                what = (str(error).strip().splitlines() or ["no reason given"])[0]
                raise UsageError(f"SLURM rejected the jobs ({what}): fix --slurm") from error
        mine = {str(jobs[index].directory): job.job_id for index, job in self._jobs.items()}
        self._others = {run: id_ for run, id_ in known.items() if run not in mine and id_ in queued}
        self.directory.write_json("jobs.json", self._others | mine)

    def _recorded(self) -> dict[str, str]:
        """Return the jobs of earlier commands by run directory."""
        if not self.directory.exists("jobs.json"):
            return {}
        try:
            return msgspec.convert(self.directory.read_json("jobs.json"), dict[str, str])
        except msgspec.ValidationError as error:
            raise RunError(f"{self.folder / 'jobs.json'} is damaged ({error}): remove it") from error

    def _executor(self, kind: Any, cpus: int) -> Any:
        limits = {f"{cluster}_max_num_timeout": REQUEUES for cluster in ("slurm", "local")}
        known = {f"slurm_{name}": int(self.options[name]) for name in SUBMITIT_OPTIONS if name in self.options}
        others = {
            name: value == "true" or value for name, value in self.options.items() if name not in SUBMITIT_OPTIONS
        }
        executor = kind(self.folder, cluster=self.cluster, **limits)
        executor.update_parameters(
            name="equipoise",
            timeout_min=self.minutes,
            cpus_per_task=cpus,
            gpus_per_node=int(self.resources.gpus) or None,
            slurm_srun_args=[f"--cpus-per-task={cpus}"],  # srun does not inherit it from sbatch since SLURM 22.05
            slurm_additional_parameters={"requeue": True, **others},
            **known,
        )
        return executor

    def ended(self) -> Iterator[tuple[int, str | None]]:
        time.sleep(self.pause)
        queued = self._queued()
        missing = set() if queued is None else {job.job_id for job in self._jobs.values()} - queued
        for index, job in list(self._jobs.items()):
            answered = job.paths.result_pickle.exists()
            if (answered and job.done()) or job.job_id in missing & self._missing:  # a shared file system may lag
                del self._jobs[index]
                yield index, self._error(job, answered)
        self._missing = missing

    def _error(self, job: Any, answered: bool) -> str | None:
        if answered:
            with suppress(self._unfinished):
                error: str | None = job.result()
                for file in (job.paths.result_pickle, job.paths.submitted_pickle):
                    file.unlink(missing_ok=True)
                return error
        return f"the job {job.job_id} ended unexpectedly: see {job.paths.stderr}"

    def _queued(self) -> set[str] | None:
        """Return the ids of jobs that wait or run; None if the controller is too busy to answer."""
        if self.cluster != "slurm":
            return {job.job_id for job in self._jobs.values() if not job.done()}
        command = ["squeue", "--noheader", "--array", "--format=%i", f"--user={getpass.getuser()}"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        return None if answer.returncode else set(answer.stdout.split())

    def _surely_queued(self) -> set[str]:
        """Return the same, with retries: an unknown job would be submitted twice."""
        for _ in range(TRIES):
            queued = self._queued()
            if queued is not None:
                return queued
            time.sleep(self.pause)
        raise RunError("squeue does not answer: check that SLURM works, then run the same command again")

    def stop(self) -> None:
        with self._lock:
            if self._others:
                self.directory.write_json("jobs.json", self._others)
            elif self._others is not None:
                self.directory.remove("jobs.json")
            for job in self._jobs.values():
                job.cancel(check=False)
                job.paths.submitted_pickle.unlink(missing_ok=True)
            while self.cluster != "slurm" and self._queued():
                time.sleep(self.pause)


class RequeuedJob:
    """Executes a job. submitit calls ``checkpoint`` when the job's time is up; the run directory is one."""

    def __call__(self, job: RemoteJob) -> str | None:
        return execute_job(job)

    def checkpoint(self, job: RemoteJob) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job)


def minutes(text: str) -> int:
    """Convert a SLURM time limit to minutes.

    >>> minutes("90"), minutes("90:00"), minutes("4:00:00"), minutes("1-12"), minutes("2-00:30:00")
    (90, 90, 240, 2160, 2910)
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not found:
        raise UsageError(f"cannot parse the time '{text}': use minutes, hours as in 4:00:00, or days as in 1-12:00:00")
    days, first, second, third = found.groups()
    with_hours = days is not None or third is not None
    hours, rest = (int(first), int(second or 0)) if with_hours else (0, int(first))
    return max((int(days or 0) * 24 + hours) * 60 + rest, 1)
