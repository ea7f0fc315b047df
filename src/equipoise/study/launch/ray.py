"""Runs as tasks of a Ray cluster: a machine that dies has its runs taken up elsewhere, from their checkpoints."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from equipoise.errors import UsageError
from equipoise.study.launch.remote import Order, Remote, Share, carry_out

HERE = "local"
RETRIES = 100
"""How often a run may lose its machine: a run that brings every machine down must end too."""
MANNERS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # Ray would print of every lost machine, into our table or JSON
}


class Ray(Remote):
    """``address`` names a cluster that is there; "local" starts one on this machine, for as long as it is needed."""

    def __init__(self, address: str | None, share: Share) -> None:
        super().__init__(share)
        if find_spec("ray") is None:
            raise UsageError("the launcher ray needs the package ray: pip install 'equipoise[ray]'")
        self.address = address or os.environ.get("RAY_ADDRESS") or HERE
        self._tasks: dict[Any, int] = {}

    def submit(self, orders: Mapping[int, Order]) -> None:
        self._ray = _connect(self.address)
        if self.address == HERE:
            self._check(orders)
        task = self._ray.remote(carry_out)
        for index, order in orders.items():
            needs = task.options(num_cpus=order.cpus, num_gpus=order.gpus, max_retries=RETRIES, name=order.job.name)
            self._tasks[needs.remote(order)] = index

    def _check(self, orders: Mapping[int, Order]) -> None:
        """A run that fits nowhere would wait for ever. Other clusters may grow."""
        there = self._ray.cluster_resources()
        for what, asked in (("CPU", "cpus"), ("GPU", "gpus")):
            most = max(getattr(order, asked) for order in orders.values())
            if most > there.get(what, 0):
                raise UsageError(
                    f"a run is to have {most:g} {what}s, and this machine has {there.get(what, 0):g}: "
                    f"give a smaller --{asked}-per-run, or the --ray-address of a cluster"
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
                yield (
                    index,
                    (
                        f"it stopped unexpectedly ({type(cause).__name__}: {what}): "
                        "the same command with --launcher local shows where"
                    ),
                )

    def stop(self) -> None:
        if not hasattr(self, "_ray"):
            return
        left = list(self._tasks)
        for force in (False, True):
            for task in left:
                self._ray.cancel(task, force=force)
            if left:
                _, left = self._ray.wait(left, num_returns=len(left), timeout=20)
        self._ray.shutdown()


def _connect(address: str) -> Any:
    """The package ray, connected."""
    for name, value in MANNERS.items():  # it reads them when it is imported
        os.environ.setdefault(name, value)
    import ray

    polite_kill = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {"include_dashboard": False} if address == HERE else {}
    try:
        host, colon, port = address.partition(":")
        if colon and port.isdecimal():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, RuntimeError, ValueError) as error:
        what = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"no Ray cluster at {address} takes us in ({what}): start one with `ray start --head`, "
            "or leave --ray-address and RAY_ADDRESS out"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, polite_kill)  # Ray's own handler would leave without stopping the runs
    return ray
