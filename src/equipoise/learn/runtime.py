"""Where the arithmetic happens: device, threads, precision."""

from __future__ import annotations

import ctypes
import importlib
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

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
    precision: Literal["32", "bf16", "auto"] = "32"
    """32-bit floats; or bfloat16 in backbones, always or (auto) where the processor computes in it."""
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

        if self.precision == "auto":  # settled here, so that a run's settings say what it was
            object.__setattr__(self, "precision", "bf16" if _computes_bf16(torch.device(self.device)) else "32")

    def start(self) -> None:
        """Settle what holds for the whole process."""
        _keep_memory()
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


def processor() -> str:
    """The CPU's name and what torch makes use of in it."""
    name = _capabilities().get("cpu_name") or platform.processor() or platform.machine()
    bf16 = ", bfloat16" if _computes_bf16(torch.device("cpu")) else ""
    return f"{name} ({torch.backends.cpu.get_cpu_capability()}{bf16})"


def _computes_bf16(device: torch.device) -> bool:
    """Whether bfloat16 is faster than 32 bits there; processors without instructions for it emulate it slowly."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).major >= 8
    able = _capabilities() if device.type == "cpu" else {}
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def _capabilities() -> Mapping[str, Any]:
    """What the CPU can do; older versions of torch do not tell."""
    told: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return told


def _keep_memory() -> None:
    """Let the C library keep what is freed: a batch's maps are some 100 MB, and new pages for them took 7 %.

    There is nothing to do where there is no glibc.
    """
    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_threshold, 2**25)  # the most there is; larger ones are still given back at once
