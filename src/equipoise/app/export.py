"""Export a model as one ONNX file that needs neither equipoise nor torch."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.app.model import Model, is_features
from equipoise.core.extras import require
from equipoise.core.files import write_bytes
from equipoise.errors import UsageError
from equipoise.learn.backbones.base import disabled


class ExportModule(nn.Module):
    """From uint8 images N × H × W × C, or rows of features, to probabilities, corrections included."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.method, self.features = model.method, is_features(model.shape)
        self.extractor = None if model.extractor is None else model.extractor.net
        augment = model.augment if model.extractor is None else model.extractor.augment
        full = 1.0 if self.features else 255.0
        self.mean = nn.Buffer(torch.tensor(augment.mean).view(1, -1, 1, 1) * full)
        self.std = nn.Buffer(torch.tensor(augment.std).view(1, -1, 1, 1) * full)

    def forward(self, images: Tensor) -> Tensor:
        x = images[:, :, None, None] if self.features else images.permute(0, 3, 1, 2).float()
        x = (x - self.mean) / self.std
        logits = self.method.predict(x) if self.extractor is None else self.method.classify(self.extractor(x))
        return logits.softmax(1)


def export_onnx(model: Model, out: Path) -> str:
    """Write ``out`` with the input ``images``, the output ``probabilities``, and the classes in the metadata.

    Returns a description of the input.
    """
    onnx: Any = require("onnx", "onnx", "an ONNX export")
    require("onnxscript", "onnx", "an ONNX export")  # torch's exporter needs it
    if not out.parent.is_dir():
        raise UsageError(f"the directory {out.parent} does not exist: create it, or choose another")
    channels, height, width = model.shape
    module = ExportModule(model).eval()
    shape = (2, channels) if module.features else (2, height, width, channels)
    example = torch.zeros(shape, dtype=torch.float32 if module.features else torch.uint8)
    with disabled(module, "bf16"):  # the file is for any machine
        proto = _trace(module, example)
    onnx.helper.set_model_props(proto, metadata(model))
    onnx.checker.check_model(proto)
    write_bytes(out, proto.SerializeToString())
    return f"rows of {channels} floats" if module.features else f"images (uint8, N × {height} × {width} × {channels})"


def _trace(module: ExportModule, example: Tensor) -> Any:
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about its own exporter
            program = torch.onnx.export(
                module,
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
    """Return what is stored in the file besides the graph."""
    return {
        "classes": json.dumps([str(name) for name in model.classes], ensure_ascii=False),
        "size": str(model.shape[1]),
        "method": model.settings.method,
        "made_by": "equipoise",
    }
