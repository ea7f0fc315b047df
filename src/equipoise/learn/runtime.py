"""Device, threads and precision."""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from equipoise.core.ranges import Range, check_values, shown
from equipoise.core.signals import defer_signals
from equipoise.data.images import Images, MovedStore, TensorStore
from equipoise.errors import UsageError
from equipoise.learn.backbones.base import backbones_of

CORES = os.cpu_count() or 1
Threads = Annotated[int, Range(1, max(64, 4 * CORES), why="4 per core of this machine, or 64")]
Processes = Annotated[int, Range(1, max(8, CORES), why="one per core of this machine, or 8")]


@dataclass(frozen=True)
class Runtime:
    """Where and in which precision to compute."""

    device: str = "cpu"
    """cpu, cuda, cuda:1, mps, …"""
    precision: Literal["32", "bf16", "auto"] = "32"
    """32-bit floats, bfloat16 in backbones, or auto: bfloat16 where the processor supports it."""
    threads: Threads | None = None
    """CPU threads per process (none: torch's default, or the cores divided among several processes)."""
    devices: Processes = 1
    """Processes per machine that train together, each with its own device or its part of the CPU."""
    nodes: Annotated[int, Range(1, 10**4)] = 1
    """Machines that train together."""
    channels_last: bool = True
    """Use the channels-last memory format, which is faster for most networks and devices."""
    compile: bool = False
    """Compile the backbones with torch.compile: takes a minute or two, then faster on GPUs."""

    def __post_init__(self) -> None:
        check_values(self, "runtime")
        try:
            torch.zeros(1, device=self.device).item()
        except (RuntimeError, AssertionError, ImportError) as error:
            raise UsageError(f"the device {shown(self.device)} is not available here: try --device cpu") from error
        if self.precision == "auto":  # resolved here, so that a run's settings tell which it was
            object.__setattr__(self, "precision", "bf16" if _computes_bf16(torch.device(self.device)) else "32")

    @property
    def cpu_threads(self) -> int:
        """CPU threads of this process."""
        return self.threads or torch.get_num_threads()

    def start(self, trains: bool = True) -> None:
        """Configure the process for learning; ``trains`` if there will be an optimizer."""
        if trains:
            with defer_signals():  # the first optimizer would import it, at the cost of the first step's 3 seconds
                importlib.import_module("torch._dynamo")
        if self.threads is not None:
            torch.set_num_threads(self.threads)

    def hold(self, images: Images) -> Images:
        """Return the same images, read on the device: from its memory if they fit, otherwise copied batch by batch."""
        device, store = torch.device(self.device), images.store
        if device.type == "cpu":
            return images
        if isinstance(store, TensorStore) and store.pixels.nbytes <= _free_memory(device) // 2:
            return replace(images, store=store.on(self.device))
        return replace(images, store=MovedStore(store, self.move))

    def move(self, tensor: Tensor) -> Tensor:
        """Copy a batch to the device; the CPU does not wait for a GPU."""
        if torch.device(self.device).type == "cuda" and tensor.device.type == "cpu":
            tensor = tensor.pin_memory()
        moved = tensor.to(self.device, non_blocking=True)
        return moved if self.channels_last else moved.contiguous()

    def place(self, method: nn.Module) -> None:
        """Move a network to the device in its memory format, and compile it if asked."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        method.to(self.device, memory_format=layout)  # type: ignore[call-overload]
        if self.compile:
            for backbone in backbones_of(method):
                if backbone._compiled_call_impl is None:
                    backbone.compile()


def _free_memory(device: torch.device) -> int:
    """Return the free bytes of a device; of those that cannot tell, a part that every one has."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 2**31


def processor() -> str:
    """Return the CPU's name and the instructions that torch uses."""
    name = _capabilities().get("cpu_name") or platform.processor() or platform.machine()
    bf16 = ", bfloat16" if _computes_bf16(torch.device("cpu")) else ""
    return f"{name} ({torch.backends.cpu.get_cpu_capability()}{bf16})"


def _computes_bf16(device: torch.device) -> bool:
    """Return whether bfloat16 is fast there; processors without instructions for it emulate it slowly."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).major >= 8
    able = _capabilities() if device.type == "cpu" else {}
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def _capabilities() -> Mapping[str, Any]:
    """Return the CPU's capabilities; older versions of torch do not know them."""
    told: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return told


def keep_freed_memory() -> None:
    """Let glibc keep freed memory: a batch's maps take about 100 MB, and new pages for them took 7 % of the time.

    For our own commands and processes only: a library call must not change its caller's malloc settings.
    """
    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_threshold, 2**25)  # the maximum; larger blocks are still returned at once
