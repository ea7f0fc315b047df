"""A training stage: its saved state, and listeners for its progress."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equipoise.errors import RunError


@dataclass
class StageState:
    """A training stage after a number of whole epochs, with everything needed to continue it exactly."""

    epochs: int
    seconds: float
    tensors: dict[str, Tensor]
    where: str = ""
    """The directory it was read from, for errors."""


class TrainedStages:
    """Main stages that other runs have trained from the same start, by address; this default has none."""

    def find(self, address: str) -> StageState | None:
        """Return the state after the last epoch, or None if no run has trained this."""
        return None

    def add(self, address: str, state: StageState) -> None:
        """Keep the state after the last epoch for other runs."""


class StageStore:
    """Where the stages of the current step are saved; this default saves nothing."""

    trained: TrainedStages | None = None
    """What other runs have trained."""

    def load(self, stage: int) -> StageState | None:
        """Return the state of a stage, or None if it has not begun."""
        return None

    def save(self, stage: int, state: StageState) -> None:
        """Replace the state of a stage."""


def damaged_step(where: object, reason: object) -> RunError:
    """Return the error for a checkpoint that cannot be used."""
    return RunError(f"the interrupted step in {where} is damaged ({reason}): delete it to start the step again")


class TrainListener:
    """Receives training progress; override what you need."""

    def stage(self, name: str, epochs: int, images: int, done: int) -> None:
        """A stage starts: its epochs, images per epoch, and the epochs that were done before an interruption."""

    def batch(self, images: int) -> None:
        """One more batch of ``images`` was trained on."""

    def epoch(self, epoch: int, loss: float, lr: float) -> None:
        """An epoch is finished and saved."""


def capture(method: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of a method and its optimizer as one flat dict."""
    tensors = {f"method.{name}": value for name, value in method.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items() if value is not None}
    return tensors


def restore(method: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Undo ``capture``."""
    method.load_state_dict({k.removeprefix("method."): v for k, v in tensors.items() if k.startswith("method.")})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, what = name.split(".")
            parameter = parameters[int(index)]
            # the fused update walks raw memory, so momentum must have its parameter's layout (channels-last)
            like = parameter if value.shape == parameter.shape else value
            own = torch.empty_like(like, device=parameter.device)
            optimizer.state[parameter][what] = own.copy_(value)
