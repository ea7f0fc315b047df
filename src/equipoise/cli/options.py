"""Options that several commands share. No torch here: ``--help`` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter


@dataclass(frozen=True)
class Common:
    """What all commands that learn share."""

    recipe: Annotated[
        str | None, Parameter(help="Published settings by name, or your own TOML file: see `equipoise recipes`.")
    ] = None
    data_root: Annotated[Path | None, Parameter(help="Where the data lies, or is downloaded to.")] = None
    memory: Annotated[int | None, Parameter(help="Images of old classes that may be kept.")] = None
    epochs: Annotated[int | None, Parameter(help="Epochs a step.")] = None
    order: Annotated[str | None, Parameter(help="The order of classes: 1993, icarl, natural, any seed, or a list.")] = (
        None
    )
    set_: Annotated[
        list[str] | None,
        Parameter(
            name="--set",
            negative=(),
            help="Any other setting, as train.lr=0.05, method.norm=2 or data.difficulty=0.5; may be repeated.",
        ),
    ] = None
    device: Annotated[str | None, Parameter(help="cpu, cuda, mps, …")] = None
    threads: Annotated[int | None, Parameter(help="CPU threads of a process.")] = None
    devices: Annotated[
        int | None,
        Parameter(help="Processes on each machine that learn together, each with a GPU (or cores) of its own."),
    ] = None
    nodes: Annotated[int | None, Parameter(help="Machines that learn together: see docs/scale.md.")] = None
    compile_: Annotated[
        bool | None, Parameter(name="--compile", negative=(), help="Compile the network first (torch.compile).")
    ] = None
    track: Annotated[
        str, Parameter(help="Tell trackers too, with commas between them: tensorboard, wandb, mlflow.")
    ] = ""

    def overrides(self) -> dict[str, dict[str, Any]]:
        """Settings by section, from --set and from the options that have a name of their own."""
        from equipoise.settings import literal
        from equipoise.study.recipe import parse_overrides

        overrides = parse_overrides(self.set_ or [])
        named = [
            ("memory", "size", self.memory),
            ("train", "epochs", self.epochs),
            ("stream", "order", literal(self.order) if self.order and "," in self.order else self.order),
            ("runtime", "device", self.device),
            ("runtime", "threads", self.threads),
            ("runtime", "devices", self.devices),
            ("runtime", "nodes", self.nodes),
            ("runtime", "compile", self.compile_),
        ]
        for section, name, value in named:
            if value is not None:
                overrides.setdefault(section, {})[name] = value
        return overrides


@dataclass(frozen=True)
class Options(Common):
    """What those share that learn one stream."""

    steps: Annotated[str | None, Parameter(help="A number of equal steps, or their sizes: 5, or 50,10x5.")] = None

    def overrides(self) -> dict[str, dict[str, Any]]:
        overrides = super().overrides()
        if self.steps is not None:
            overrides.setdefault("stream", {})["steps"] = step_count(self.steps)
        return overrides


def step_count(text: str) -> int | str:
    """A number is a number of steps, anything else their sizes."""
    return int(text) if text.isdecimal() else text
