"""Options that several commands share. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter


@dataclass(frozen=True)
class CommonOptions:
    """Options of all experiments."""

    recipe: Annotated[
        str | None,
        Parameter(help="Name of a recipe (see `equipoise recipes`) or a TOML file (default: the data set's)."),
    ] = None
    data_root: Annotated[
        Path | None,
        Parameter(help="Directory of the data, or where to download it (default: EQUIPOISE_DATA, or a cache)."),
    ] = None
    memory: Annotated[int | None, Parameter(help="Number of exemplars to keep (default: the recipe's).")] = None
    epochs: Annotated[int | None, Parameter(help="Epochs per step (default: the recipe's).")] = None
    backbone: Annotated[str | None, Parameter(help="Network, for example resnet32, fast or timm:NAME.")] = None
    weights: Annotated[Path | None, Parameter(help="Safetensors file with pretrained weights of the backbone.")] = None
    order: Annotated[str | None, Parameter(help="Class order: natural, icarl, a seed such as 1993, or a list.")] = None
    set_: Annotated[
        list[str] | None,
        Parameter(
            name="--set",
            negative=(),
            help="Any other setting, for example train.lr=0.05, method.norm=2 or data.difficulty=0.5; may be repeated.",
        ),
    ] = None
    device: Annotated[str | None, Parameter(help="Where to compute: cpu, cuda, mps, … (default: cpu).")] = None
    threads: Annotated[int | None, Parameter(help="Number of CPU threads per process.")] = None
    devices: Annotated[
        int | None,
        Parameter(help="Number of processes per machine that train together, each with its own GPU or cores."),
    ] = None
    nodes: Annotated[int | None, Parameter(help="Number of machines that train together: see docs/scale.md.")] = None
    compile_: Annotated[
        bool | None, Parameter(name="--compile", negative=(), help="Compile the network with torch.compile.")
    ] = None
    track: Annotated[
        str, Parameter(show_default=False, help="Comma-separated trackers to log to: tensorboard, wandb, mlflow.")
    ] = ""

    def overrides(self) -> dict[str, dict[str, Any]]:
        """Return the settings by section, from --set and from the other options."""
        from equipoise.core.config import parse_value
        from equipoise.engine.recipes import parse_overrides

        overrides = parse_overrides(self.set_ or [])
        named = [
            ("memory", "size", self.memory),
            ("train", "epochs", self.epochs),
            ("net", "backbone", self.backbone),
            ("net", "weights", None if self.weights is None else str(self.weights)),
            ("stream", "order", parse_value(self.order) if self.order and "," in self.order else self.order),
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
class RunOptions(CommonOptions):
    """Options of commands with one stream."""

    steps: Annotated[str | None, Parameter(help="Number of equal steps, or their sizes: 5, or 50,10x5.")] = None

    def overrides(self) -> dict[str, dict[str, Any]]:
        overrides = super().overrides()
        if self.steps is not None:
            overrides.setdefault("stream", {})["steps"] = step_count(self.steps)
        return overrides


def step_count(text: str) -> int | str:
    """Parse a number of steps, or leave their sizes as text."""
    return int(text) if text.isdecimal() else text
