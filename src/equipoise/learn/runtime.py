"""Where the arithmetic happens: device, threads, precision."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.signals import undisturbed


@dataclass(frozen=True)
class Runtime:
    """The place and precision of a run."""

    device: str = "cpu"
    """cpu, cuda, cuda:1, mps, …"""
    precision: Literal["32", "bf16"] = "32"
    """32-bit floats, or bfloat16 where it is safe (autocast)."""
    threads: int | None = None
    """CPU threads; none leaves torch's choice."""

    def __post_init__(self) -> None:
        try:
            torch.zeros(1, device=self.device).item()
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise UsageError(f"the device '{self.device}' cannot be used here: try --device cpu") from error
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"threads is {self.threads}, but at least 1 is needed")

    def start(self) -> None:
        """Settle what holds for the whole process."""
        with undisturbed():  # the first optimizer would import it, at the cost of the first step's 3 seconds
            importlib.import_module("torch._dynamo")
        if self.threads is not None:
            torch.set_num_threads(self.threads)

    def move(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)

    def autocast(self) -> AbstractContextManager[None]:
        return torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.precision == "bf16")
