"""Pretrained weights for a backbone, from a local safetensors file."""

from __future__ import annotations

from pathlib import Path

from equipoise.core.tensors import read_file
from equipoise.errors import RunError, UsageError
from equipoise.learn.backbones.base import Backbone
from equipoise.learn.backbones.timm_net import TimmNet

HEADS = ("head.", "fc.", "classifier.", "head_drop.")
"""Names of the last layer in other libraries' files; it is not loaded."""
SPARE_BYTES = 512 << 20
"""Bytes that a file may have beyond four times its backbone, for example for a head of many classes."""


def load_weights(backbone: Backbone, file: Path) -> None:
    """Load a file into a backbone: a timm network's weights, or an equipoise model's own ``model.safetensors``."""
    if not file.is_file():
        raise UsageError(f"the weights {file} do not exist or are not a regular file: pass a local safetensors file")
    limit = 4 * sum(value.numel() * value.element_size() for value in backbone.state_dict().values()) + SPARE_BYTES
    try:
        if file.stat().st_size > limit:
            raise UsageError(f"the weights {file} have more than {limit:,} bytes, too many for this backbone")
        tensors = read_file(file)
    except OSError as error:
        raise UsageError(f"cannot read the weights {file} ({error.strerror}): check its permissions") from error
    except RunError as error:
        raise UsageError(f"the weights {file} are not a safetensors file: convert them first") from error
    if any(name.startswith("backbone.") for name in tensors):
        tensors = {k.removeprefix("backbone."): v for k, v in tensors.items() if k.startswith("backbone.")}
    own = backbone.state_dict()
    if own and all(name.startswith("net.") for name in own):  # a wrapped timm network
        tensors = {name if name in own else f"net.{name}": value for name, value in tensors.items()}
    unknown = sorted(n for n in tensors if n not in own and not n.removeprefix("net.").startswith(HEADS))
    missing = sorted(name for name in own if name not in tensors)
    wrong = [name for name in own if name not in missing and tensors[name].shape != own[name].shape]
    problem = None
    if unknown or missing:
        problem = f"{missing[0]} is missing" if missing else f"{unknown[0]} is unknown"
    elif wrong:
        found, expected = tuple(tensors[wrong[0]].shape), tuple(own[wrong[0]].shape)
        problem = f"{wrong[0]} has shape {found}, expected {expected}"
    if problem is None:
        backbone.load_state_dict({name: tensors[name] for name in own})
    elif not (isinstance(backbone, TimmNet) and file.suffix == ".safetensors" and backbone.convert(file)):
        raise UsageError(f"the weights {file} do not fit this backbone: {problem}")
