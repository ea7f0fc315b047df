"""Options for the launcher of a comparison's runs. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from equipoise.cli.options import Repeated
from equipoise.errors import UsageError

LAUNCHERS = {
    "ray_address": ("ray",),
    "slurm": ("slurm",),
    "cpus_per_run": ("processes", "ray", "slurm"),
    "gpus_per_run": ("ray", "slurm"),
}
"""The launchers that each option applies to."""


@dataclass(frozen=True)
class LaunchOptions:
    """How the runs are executed."""

    launcher: Literal["local", "processes", "ray", "slurm"] = "local"
    """Where to execute the runs: in this process, in several processes, on a Ray cluster or with SLURM."""
    ray_address: str | None = None
    """Address of a Ray cluster, HOST:PORT (default: RAY_ADDRESS, or a new local cluster)."""
    slurm: Annotated[list[str] | None, Repeated] = None
    """Option of sbatch, such as partition=gpu or time=4:00:00; may be repeated."""
    cpus_per_run: int | None = None
    """CPUs and threads per run (default: --threads, or 1)."""
    gpus_per_run: float | None = None
    """GPUs per run; with Ray, a fraction such as 0.5 lets runs share one."""

    def make(self, out: Path, track: str) -> Any:
        """Return the launcher, or raise an error if it could not start."""
        for name, launchers in LAUNCHERS.items():
            if getattr(self, name) is not None and self.launcher not in launchers:
                option, names = f"--{name.replace('_', '-')}", " or ".join(launchers)
                raise UsageError(f"{option} applies to --launcher {names}, not to {self.launcher}: remove it")
        from equipoise.study.launch import Local, processes, ray, remote, slurm
        from equipoise.study.trackers import make_trackers

        if self.launcher == "local":
            return Local(make_trackers(track))
        resources = remote.RunResources(self.cpus_per_run, self.gpus_per_run or 0, track)
        if self.launcher == "processes":
            return processes.Processes(resources)
        if self.launcher == "ray":
            return ray.Ray(self.ray_address, resources)
        return slurm.Slurm(dict(map(_option, self.slurm or [])), out / "slurm", resources)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"cannot parse --slurm {text}: write NAME=VALUE, for example partition=gpu or exclusive=true")
    return name, value
