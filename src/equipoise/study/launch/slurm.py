"""Runs as jobs of SLURM, an array of them: one that is preempted or runs out of time is queued again and goes on."""

from __future__ import annotations

import getpass
import io
import logging
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from equipoise.errors import RunError, UsageError
from equipoise.files import locked, read_json, write_json
from equipoise.signals import undisturbed
from equipoise.study.launch.remote import Order, Remote, Share, carry_out

REQUEUES = 1000
"""How often a job may run out of time."""
MINUTES = 240
"""A job's time unless told: longer ones wait longer, and shorter ones do no harm as long as an epoch fits in."""
TRIES = 12
"""How often squeue is asked before it counts as dead."""
OURS = ("array_parallelism", "signal_delay_s")
"""What submitit makes of options, and sbatch does not know."""


class Slurm(Remote):
    """``options`` are sbatch's; job files and logs go to ``folder``.

    ``cluster`` is submitit's name of who runs the jobs: "local" makes them processes of this machine, for tests.
    """

    def __init__(self, options: Mapping[str, str], folder: Path, share: Share, cluster: str = "slurm") -> None:
        super().__init__(share)
        if find_spec("submitit") is None:
            raise UsageError("the launcher slurm needs the package submitit: pip install 'equipoise[slurm]'")
        if share.gpus % 1:
            raise UsageError(f"--gpus-per-run is {share.gpus:g}, but SLURM gives only whole ones")
        self.options = {name.replace("-", "_"): value for name, value in options.items()}
        self.minutes = minutes(self.options.pop("time", str(MINUTES)))
        for name in OURS:
            if not self.options.get(name, "0").isdecimal():
                raise UsageError(f"--slurm {name} is '{self.options[name]}', but it takes a whole number")
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise UsageError("sbatch was not found: run this where SLURM is, or use --launcher ray or local")
        self.folder, self.cluster = folder.absolute(), cluster
        self.record = self.folder / "jobs.json"
        self.pause = 5.0 if cluster == "slurm" else 0.2
        self._jobs: dict[int, Any] = {}
        self._missing: set[str] = set()
        self._others: dict[str, str] | None = None
        """Jobs of other comparisons by their place, once they are known."""

    def submit(self, orders: Mapping[int, Order]) -> None:
        import submitit

        logging.getLogger("submitit").setLevel(logging.ERROR)
        self._unfinished = submitit.core.utils.UncompletedJobError
        self.folder.mkdir(parents=True, exist_ok=True)
        self._alone = ExitStack()
        self._alone.enter_context(locked(self.folder))  # another command would take our jobs for a dead one's
        known = read_json(self.record) if self.record.exists() else {}
        queued = self._surely_queued() if known else set()
        for index, order in orders.items():  # of a command that was killed: its jobs live on
            id_ = known.get(str(order.job.directory))
            if id_ in queued:
                self._jobs[index] = submitit.SlurmJob(self.folder, id_)
        new = {index: order for index, order in orders.items() if index not in self._jobs}
        if new:
            executor = self._executor(submitit.AutoExecutor, max(order.cpus for order in new.values()))
            try:
                deaf = undisturbed() if self.cluster == "slurm" else nullcontext()  # processes would inherit it
                with deaf, redirect_stderr(io.StringIO()):
                    jobs = executor.map_array(Requeued(), list(new.values()))
                    self._jobs |= dict(zip(new, jobs, strict=True))
            except (self._unfinished, submitit.core.utils.FailedSubmissionError) as error:
                what = (str(error).strip().splitlines() or ["no reason is given"])[0]
                raise UsageError(f"SLURM does not take the jobs ({what}): mend --slurm") from error
        mine = {str(orders[index].job.directory): job.job_id for index, job in self._jobs.items()}
        self._others = {place: id_ for place, id_ in known.items() if place not in mine and id_ in queued}
        write_json(self.record, self._others | mine)

    def _executor(self, kind: Any, cpus: int) -> Any:
        limits = {f"{cluster}_max_num_timeout": REQUEUES for cluster in ("slurm", "local")}
        executor = kind(self.folder, cluster=self.cluster, **limits)
        executor.update_parameters(
            name="equipoise",
            timeout_min=self.minutes,
            cpus_per_task=cpus,
            gpus_per_node=int(self.share.gpus) or None,
            slurm_srun_args=[f"--cpus-per-task={cpus}"],  # srun has not taken it over from sbatch since SLURM 22.05
            slurm_additional_parameters={
                "requeue": True,
                **{name: value == "true" or value for name, value in self.options.items() if name not in OURS},
            },
            **{f"slurm_{name}": int(self.options[name]) for name in OURS if name in self.options},
        )
        return executor

    def ended(self) -> Iterator[tuple[int, str | None]]:
        time.sleep(self.pause)
        queued = self._queued()
        missing = set() if queued is None else {job.job_id for job in self._jobs.values()} - queued
        for index, job in list(self._jobs.items()):
            told = job.paths.result_pickle.exists()
            if (told and job.done()) or job.job_id in missing & self._missing:  # a shared file system may be late
                del self._jobs[index]
                yield index, self._error(job, told)
        self._missing = missing

    def _error(self, job: Any, told: bool) -> str | None:
        if told:
            try:
                error: str | None = job.result()
                for file in (job.paths.result_pickle, job.paths.submitted_pickle):
                    file.unlink(missing_ok=True)
                return error
            except self._unfinished:
                pass
        return f"the job {job.job_id} ended unexpectedly: its last words are in {job.paths.stderr}"

    def _queued(self) -> set[str] | None:
        """The ids of jobs that wait or run; None if the controller is too busy to tell."""
        if self.cluster != "slurm":
            return {job.job_id for job in self._jobs.values() if not job.done()}
        command = ["squeue", "--noheader", "--array", "--format=%i", f"--user={getpass.getuser()}"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        return None if asked.returncode else set(asked.stdout.split())

    def _surely_queued(self) -> set[str]:
        """The same, after some patience: jobs that nobody knows of would be handed out twice."""
        for _ in range(TRIES):
            queued = self._queued()
            if queued is not None:
                return queued
            time.sleep(self.pause)
        raise RunError("squeue does not answer: see that SLURM is well, and give the same command again")

    def stop(self) -> None:
        if not hasattr(self, "_alone"):
            return
        with self._alone:
            self._cancel()

    def _cancel(self) -> None:
        if self._others:
            write_json(self.record, self._others)
        elif self._others is not None:
            self.record.unlink(missing_ok=True)
        for job in self._jobs.values():
            job.cancel(check=False)
            job.paths.submitted_pickle.unlink(missing_ok=True)
        while self.cluster != "slurm" and self._queued():
            time.sleep(self.pause)


class Requeued:
    """Carries an order out; submitit asks it for a checkpoint when the job's time is up: the directory is one."""

    def __call__(self, order: Order) -> str | None:
        return carry_out(order)

    def checkpoint(self, order: Order) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, order)


def minutes(text: str) -> int:
    """SLURM's ways to write a time limit, in minutes.

    >>> minutes("90"), minutes("90:00"), minutes("4:00:00"), minutes("1-12"), minutes("2-00:30:00")
    (90, 90, 240, 2160, 2910)
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not found:
        raise UsageError(f"the time '{text}' cannot be read: give minutes, or hours as 4:00:00, or days as 1-12:00:00")
    days, first, second, third = found.groups()
    with_hours = days is not None or third is not None
    hours, rest = (int(first), int(second or 0)) if with_hours else (0, int(first))
    return max((int(days or 0) * 24 + hours) * 60 + rest, 1)
