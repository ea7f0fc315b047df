"""ONNX: the model as one file that needs neither equipoise nor torch."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.app.model import Model
from equipoise.errors import UsageError
from equipoise.files import write_bytes
from equipoise.learn.nets import without

NEEDED = "ONNX needs the extra 'onnx': pip install 'equipoise[onnx]'"


class Whole(nn.Module):
    """From what people have (uint8, N × H × W × C, or rows of features) to probabilities; corrections included."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.method, self.features = model.method, model.shape[1:] == (1, 1)
        full = 1.0 if self.features else 255.0
        self.mean: Tensor
        self.std: Tensor
        for name, values in (("mean", model.augment.mean), ("std", model.augment.std)):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1) * full)

    def forward(self, images: Tensor) -> Tensor:
        x = images[:, :, None, None] if self.features else images.permute(0, 3, 1, 2).float()
        return self.method.predict((x - self.mean) / self.std).softmax(1)


def export_onnx(model: Model, out: Path) -> str:
    """Write ``out``: input ``images``, output ``probabilities``, any number at a time; classes in the metadata.

    Returns what the input is, in words.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch's exporter is written in it
    except ImportError as error:
        raise UsageError(NEEDED) from error
    if not out.parent.is_dir():
        raise UsageError(f"the directory {out.parent} does not exist: make it, or name another place")
    channels, height, width = model.shape
    whole = Whole(model).eval()
    example = torch.zeros(2, channels) if whole.features else torch.zeros(2, height, width, channels, dtype=torch.uint8)
    with without(whole, "bf16"):  # it is for any machine
        proto = _trace(whole, example)
    for key, value in metadata(model).items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.checker.check_model(proto)
    write_bytes(out, proto.SerializeToString())
    return f"rows of {channels} floats" if whole.features else f"images (uint8, N × {height} × {width} × {channels})"


def _trace(whole: Whole, example: Tensor) -> Any:
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own making, about its own exporter
            program = torch.onnx.export(
                whole,
                (example,),
                dynamo=True,
                input_names=["images"],
                output_names=["probabilities"],
                dynamic_shapes=({0: torch.export.Dim("images", min=1)},),
                verbose=False,
            )
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    assert program is not None
    return program.model_proto


def metadata(model: Model) -> dict[str, str]:
    facts = {
        "classes": [str(name) for name in model.classes],
        "size": model.shape[1],
        "method": model.settings.method,
        "made_by": "equipoise",
    }
    return {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for key, value in facts.items()
    }
