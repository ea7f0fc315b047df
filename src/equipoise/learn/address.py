"""The address of a training stage: a hash of everything that determines its exact result."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from equipoise.core import distributed
from equipoise.core.files import digest
from equipoise.data.images import Images
from equipoise.data.stream import Step
from equipoise.learn.method import Method
from equipoise.learn.runtime import processor
from equipoise.version import __version__


def training_address(method: Method, step: Step, images: Images) -> str:
    """Return the address of a step's main stage, just before it begins.

    Runs with the same address have the same settings for everything but the method and the memory; see
    ``study/compare.py``.
    """
    teacher = method.teacher
    about: dict[str, Any] = {
        "method": f"{type(method).__module__}.{type(method).__qualname__}",
        "fields": method.training_fields(),
        "step": [step.index, step.old, step.new],
        "images": images.fingerprint().hex(),
        "weights": _digest(method),
        "teacher": _digest(teacher) if isinstance(teacher, torch.nn.Module) else None,
        # other versions and processors round differently
        "versions": [__version__, torch.__version__, processor()],
        "threads": [torch.get_num_threads(), distributed.world_size()],
    }
    return digest(json.dumps(about, sort_keys=True, default=str).encode()).hex()


def _digest(module: torch.nn.Module) -> str:
    """Return a hash of all parameters and buffers."""
    tensors = sorted(module.state_dict().items())
    return digest(b"".join(part for name, value in tensors for part in _parts(name, value))).hex()


def _parts(name: str, value: Tensor) -> tuple[bytes, bytes]:
    plain = value.detach().cpu().contiguous()
    about = json.dumps([name, str(plain.dtype), list(plain.shape)])
    return about.encode(), digest(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
