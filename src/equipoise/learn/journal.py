"""What is kept of a training while it goes on, and who is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from equipoise.learn.method import Method


@dataclass
class StageState:
    """A training stage after some whole epochs: enough to go on as if it had never stopped."""

    epochs: int
    seconds: float
    tensors: dict[str, Tensor]


class Journal(Protocol):
    """Where stages are kept while a step is under way."""

    def load(self, stage: int) -> StageState | None: ...

    def save(self, stage: int, state: StageState) -> None: ...


class Watcher(Protocol):
    """Who is told how training goes."""

    def stage(self, name: str, epochs: int, images: int, done: int) -> None: ...

    def batch(self, images: int) -> None: ...

    def epoch(self, epoch: int, loss: float, lr: float) -> None: ...


class Silent:
    """A watcher and a journal that do nothing."""

    def stage(self, name: str, epochs: int, images: int, done: int) -> None: ...

    def batch(self, images: int) -> None: ...

    def epoch(self, epoch: int, loss: float, lr: float) -> None: ...

    def load(self, stage: int) -> StageState | None:
        return None

    def save(self, stage: int, state: StageState) -> None: ...


def capture(method: Method, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The method's and the optimizer's whole state, flat."""
    tensors = {f"method.{name}": value for name, value in method.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items() if value is not None}
    return tensors


def restore(method: Method, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
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
