"""Options that say who makes the runs of a comparison. No torch here: ``--help`` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from equipoise.errors import UsageError

OWNERS = {
    "ray_address": ("ray",),
    "slurm": ("slurm",),
    "cpus_per_run": ("processes", "ray", "slurm"),
    "gpus_per_run": ("ray", "slurm"),
}
"""Whose each option is."""


@dataclass(frozen=True)
class Launch:
    """Who makes the runs."""

    launcher: Annotated[
        Literal["local", "processes", "ray", "slurm"],
        Parameter(help="Who makes the runs: this process, several here, a Ray cluster, or SLURM. See docs/scale.md."),
    ] = "local"
    ray_address: Annotated[
        str | None,
        Parameter(help="A Ray cluster, as HOST:PORT; unless told RAY_ADDRESS, or one is started here for the while."),
    ] = None
    slurm: Annotated[
        list[str] | None,
        Parameter(negative=(), help="An option of sbatch, as partition=gpu or time=4:00:00; may be repeated."),
    ] = None
    cpus_per_run: Annotated[
        int | None, Parameter(help="CPUs of each run, and so its threads; --threads, or 1, unless told.")
    ] = None
    gpus_per_run: Annotated[
        float | None, Parameter(help="GPUs of each run; with Ray also a part of one, as 0.5, so that runs share it.")
    ] = None

    def make(self, out: Path, track: str) -> Any:
        """The launcher; anything that would keep it from starting is found here."""
        for name, owners in OWNERS.items():
            if getattr(self, name) is not None and self.launcher not in owners:
                option, launchers = f"--{name.replace('_', '-')}", " or ".join(owners)
                raise UsageError(f"{option} is for --launcher {launchers}, and this is {self.launcher}: leave it out")
        if self.launcher == "local":
            from equipoise.study.launch import Local
            from equipoise.study.trackers import make_trackers

            return Local(make_trackers(track))
        from equipoise.study.launch.remote import Share

        share = Share(self.cpus_per_run, self.gpus_per_run or 0, track)
        if self.launcher == "processes":
            from equipoise.study.launch.here import Processes

            return Processes(share)
        if self.launcher == "ray":
            from equipoise.study.launch.ray import Ray

            return Ray(self.ray_address, share)
        from equipoise.study.launch.slurm import Slurm

        return Slurm(dict(map(_option, self.slurm or [])), out / "slurm", share)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--slurm {text} cannot be read: write NAME=VALUE, as partition=gpu or exclusive=true")
    return name, value
