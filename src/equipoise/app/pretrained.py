"""Start from weights that somebody else has trained, in a local safetensors file."""

from __future__ import annotations

from pathlib import Path

from equipoise.errors import RunError, UsageError
from equipoise.files import read_tensors
from equipoise.learn.method import Method
from equipoise.learn.timm_net import TimmNet

HEADS = ("head.", "fc.", "classifier.", "head_drop.")
"""What other networks call their last layer, which is not wanted here."""


def load_weights(method: Method, file: Path) -> int:
    """Put the file's weights into the method's backbone; returns how many tensors that were.

    The file may be a timm network's, or an equipoise model's own (``model.safetensors``).
    """
    if not hasattr(method, "backbone"):
        raise UsageError("this method makes its networks itself, so --weights has no place to go")
    if not file.is_file():
        raise UsageError(f"the weights {file} do not exist: name a local safetensors file")
    try:
        tensors = read_tensors(file)
    except RunError as error:
        raise UsageError(f"the weights {file} are not safetensors: convert them first") from error
    if any(name.startswith("backbone.") for name in tensors):
        tensors = {k.removeprefix("backbone."): v for k, v in tensors.items() if k.startswith("backbone.")}
    elif isinstance(method.backbone, TimmNet):
        tensors = {f"net.{name}": value for name, value in tensors.items() if not name.startswith(HEADS)}
    own = method.backbone.state_dict()
    strange = sorted(name for name in tensors if name not in own and not name.startswith(HEADS))
    missing = sorted(name for name in own if name not in tensors)
    if strange or missing:
        what = f"lack {missing[0]}" if missing else f"have {strange[0]}, which it does not know"
        raise UsageError(f"the weights {file} are not for this backbone: they {what}")
    for name, value in own.items():
        if tensors[name].shape != value.shape:
            raise UsageError(
                f"the weights {file} are for another shape: {name} is {tuple(tensors[name].shape)} there "
                f"and {tuple(value.shape)} here"
            )
    method.backbone.load_state_dict({name: tensors[name] for name in own})
    return len(own)
