"""Runs as tasks of a Ray cluster: if a machine dies, its runs continue elsewhere from their checkpoints."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from equipoise.core.extras import check_installed, require
from equipoise.errors import UsageError
from equipoise.study.launch.remote import Remote, RemoteJob, RunResources, execute_job

HERE = "local"
RETRIES = 100
"""How often a run may lose its machine; a run that crashes every machine must end too."""
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # otherwise Ray prints every lost machine into our table or JSON
}


class Ray(Remote):
    """Uses the cluster at ``address``; "local" starts one on this machine for as long as it is needed."""

    def __init__(self, address: str | None, resources: RunResources) -> None:
        super().__init__(resources)
        check_installed("ray", "ray", "--launcher ray")
        self.address = address or os.environ.get("RAY_ADDRESS") or HERE
        self._tasks: dict[Any, int] = {}

    def submit(self, jobs: Mapping[int, RemoteJob]) -> None:
        self._ray = _connect(self.address)
        if self.address == HERE:
            self._check(jobs)
        task = self._ray.remote(execute_job)
        for index, job in jobs.items():
            needs = task.options(num_cpus=job.cpus, num_gpus=job.gpus, max_retries=RETRIES, name=job.name)
            self._tasks[needs.remote(job)] = index

    def _check(self, jobs: Mapping[int, RemoteJob]) -> None:
        """Raise an error for a run that does not fit: it would wait for ever (other clusters may grow)."""
        there = self._ray.cluster_resources()
        for what, asked in (("CPU", "cpus"), ("GPU", "gpus")):
            most = max(getattr(job, asked) for job in jobs.values())
            if most > there.get(what, 0):
                raise UsageError(
                    f"a run needs {most:g} {what}s, but this machine has {there.get(what, 0):g}: "
                    f"set a smaller --{asked}-per-run or the --ray-address of a cluster"
                )

    def ended(self) -> Iterator[tuple[int, str | None]]:
        ready, _ = self._ray.wait(list(self._tasks), timeout=1.0)
        for task in ready:
            index = self._tasks.pop(task)
            try:
                yield index, self._ray.get(task)
            except self._ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None) or error
                what = (str(cause).strip().splitlines() or [""])[0]
                remedy = "run the same command with --launcher local to see where"
                yield index, f"it stopped unexpectedly ({type(cause).__name__}: {what}): {remedy}"

    def stop(self) -> None:
        if not hasattr(self, "_ray"):
            return
        # Cancelling a task just as it ends can make Ray abort this process. Our own cluster takes its runs with it.
        left = [] if self.address == HERE else list(self._tasks)
        for force in (False, True):
            for task in left:
                self._ray.cancel(task, force=force)
            if left:
                _, left = self._ray.wait(left, num_returns=len(left), timeout=20)
        self._ray.shutdown()


def _connect(address: str) -> Any:
    """Connect to a cluster and return the package ray."""
    for name, value in ENVIRONMENT.items():  # read when ray is imported
        os.environ.setdefault(name, value)
    ray: Any = require("ray", "ray", "--launcher ray")

    handler = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {"include_dashboard": False} if address == HERE else {}
    try:
        host, colon, port = address.partition(":")
        if colon and port.isdecimal():  # Ray itself would retry for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, RuntimeError, ValueError) as error:
        what = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"cannot connect to a Ray cluster at {address} ({what}): start one with `ray start --head`, "
            "or remove --ray-address and RAY_ADDRESS"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, handler)  # Ray's own handler would exit without stopping the runs
    return ray
