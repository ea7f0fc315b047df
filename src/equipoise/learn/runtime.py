"""Where the arithmetic happens: device, threads, precision."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from equipoise.errors import UsageError
from equipoise.learn.nets import Backbone
from equipoise.signals import undisturbed


@dataclass(frozen=True)
class Runtime:
    """The place and precision of a run."""

    device: str = "cpu"
    """cpu, cuda, cuda:1, mps, …"""
    precision: Literal["32", "bf16"] = "32"
    """32-bit floats, or bfloat16 where it is safe (autocast)."""
    threads: int | None = None
    """CPU threads of a process; none leaves torch's choice, or divides the cores among several processes."""
    devices: int = 1
    """Processes on each machine that learn together, each with a device of its own (or its share of the CPU)."""
    nodes: int = 1
    """Machines that learn together."""
    channels_last: bool = True
    """Lay images and weights out channel by channel, which is the faster way for most networks and devices."""
    compile: bool = False
    """Compile the backbones (torch.compile): a minute or two first, then faster on GPUs."""

    def __post_init__(self) -> None:
        try:
            torch.zeros(1, device=self.device).item()
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise UsageError(f"the device '{self.device}' cannot be used here: try --device cpu") from error
        for name in ("threads", "devices", "nodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}, but at least 1 is needed")

    def start(self) -> None:
        """Settle what holds for the whole process."""
        with undisturbed():  # the first optimizer would import it, at the cost of the first step's 3 seconds
            importlib.import_module("torch._dynamo")
        if self.threads is not None:
            torch.set_num_threads(self.threads)

    def move(self, tensor: Tensor) -> Tensor:
        moved = tensor.to(self.device, non_blocking=True)
        return moved if self.channels_last else moved.contiguous()

    def place(self, method: nn.Module) -> None:
        """Bring a network that is about to be trained to where it is trained, in the layout for it."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        method.to(self.device, memory_format=layout)  # type: ignore[call-overload]
        if self.compile:
            for part in method.modules():
                if isinstance(part, Backbone) and part._compiled_call_impl is None:
                    part.compile()

    def autocast(self) -> AbstractContextManager[None]:
        return torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.precision == "bf16")
