"""Options that several commands share. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

Repeated = Parameter(negative=())
SetOption = Annotated[list[str] | None, Parameter(name="--set", negative=())]


@dataclass(frozen=True)
class CommonOptions:
    """Options of all experiments."""

    recipe: str | None = None
    """Name of a recipe (see `equipoise recipes`) or a TOML file (default: the data set's)."""
    data_root: Path | None = None
    """Directory of the data, or where to download it (default: EQUIPOISE_DATA, or a cache)."""
    memory: int | None = None
    """Number of exemplars to keep (default: the recipe's)."""
    epochs: int | None = None
    """Epochs per step (default: the recipe's)."""
    backbone: str | None = None
    """Network, for example resnet32, fast or timm:NAME."""
    weights: Path | None = None
    """Safetensors file with pretrained weights for the backbone."""
    order: str | None = None
    """Class order: natural, icarl, a seed such as 1993, or a list."""
    set_: SetOption = None
    """Any other setting, with a TOML value, such as train.lr=0.05 or train.milestones=[20,30]; may be repeated."""
    device: str | None = None
    """Where to compute: cpu, cuda, mps, … (default: cpu)."""
    threads: int | None = None
    """Number of CPU threads per process."""
    devices: int | None = None
    """Number of processes per machine that train together, each with its own GPU or cores."""
    nodes: int | None = None
    """Number of machines that train together: see docs/scale.md."""
    compile_: Annotated[bool | None, Parameter(name="--compile", negative=())] = None
    """Compile the network with torch.compile."""
    track: Annotated[str, Parameter(show_default=False)] = ""
    """Comma-separated trackers to log to: tensorboard, wandb, mlflow."""

    def overrides(self) -> dict[str, dict[str, Any]]:
        """Return the settings by section, from --set and from the other options."""
        from equipoise.core.config import parse_value, with_settings
        from equipoise.engine.recipes import parse_overrides

        named = {
            "memory.size": self.memory,
            "train.epochs": self.epochs,
            "net.backbone": self.backbone,
            "net.weights": None if self.weights is None else str(self.weights),
            "stream.order": parse_value(self.order) if self.order and "," in self.order else self.order,
            "runtime.device": self.device,
            "runtime.threads": self.threads,
            "runtime.devices": self.devices,
            "runtime.nodes": self.nodes,
            "runtime.compile": self.compile_,
        }
        return with_settings(parse_overrides(self.set_ or []), named)


@dataclass(frozen=True)
class RunOptions(CommonOptions):
    """Options of commands that learn a single stream."""

    steps: str | None = None
    """Number of equal steps, or their sizes: 5, or 50,10x5."""

    def overrides(self) -> dict[str, dict[str, Any]]:
        from equipoise.core.config import with_settings

        return with_settings(super().overrides(), {"stream.steps": self.steps and step_count(self.steps)})


def step_count(text: str) -> int | str:
    """Parse a number of steps, or leave their sizes as text."""
    from equipoise.core.config import parse_whole

    number = parse_whole(text)
    return text if number is None else number
