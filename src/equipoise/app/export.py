"""Export a model as one ONNX file that needs neither equipoise nor torch."""

from __future__ import annotations

import json
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.app.model import ACCEPT, Model, is_features
from equipoise.core.extras import available, require
from equipoise.core.files import write_bytes
from equipoise.core.open_dir import check_path
from equipoise.data.decoding import to_square
from equipoise.data.images import Images, join
from equipoise.errors import RunError, UsageError
from equipoise.learn.backbones.base import backbones_of, disabled

OUTPUTS = ("probabilities", "familiarity", "unknown")
PICTURES = 12
"""Number of pictures that a file is checked on."""
SIZES = ((480, 640), (640, 480), (301, 200), (97, 350), (50, 50), (1200, 901))
"""Height and width of pictures to check on where the model keeps none."""
LARGEST, LARGEST_RESIZED = 1e-3, 2e-2
"""Largest differences of probabilities that are accepted, without and with resizing: a few pixels may then differ by 1
of 255."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    takes: str
    """Description of the input."""
    pictures: int
    """Number of pictures, or rows of features, that the file was checked on; 0 without ONNX Runtime."""
    difference: float
    """Largest difference from the model's own probabilities."""


class ExportModule(nn.Module):
    """Map images of the model's size, or rows of features, to probabilities, familiarity and the unknown flag.

    A model of photos takes one image, uint8, 1 × 3 × H × W, and its outputs are those of one image; others take
    batches, uint8, N × H × W × C, or rows of floats.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.method, self.features, self.photo = model.method, is_features(model.shape), takes_photos(model)
        self.extractor = None if model.extractor is None else model.extractor.net
        augment = model.augment if model.extractor is None else model.extractor.augment
        full = 1.0 if self.features else 255.0
        self.mean = nn.Buffer(torch.tensor(augment.mean).view(1, -1, 1, 1) * full)
        self.std = nn.Buffer(torch.tensor(augment.std).view(1, -1, 1, 1) * full)
        self.temperature, self.threshold = model.temperature, model.least_familiar(ACCEPT)
        self.known = known = model.familiarity
        if known is not None:
            self.means = nn.Buffer(F.normalize(known.means.double(), dim=1).float())
            self.counts = nn.Buffer(known.counts.float())

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        if self.features:
            x = images[:, :, None, None]
        else:
            x = (images if self.photo else images.permute(0, 3, 1, 2)).float()
        x = (x - self.mean) / self.std
        if self.extractor is not None:
            x = self.extractor(x).half().float()[:, :, None, None]  # features are kept in 16 bits
        features = self.method.features(x)
        logits = self.method.classify(features)
        familiarity = self.familiarity(features, logits)
        found = (logits / self.temperature).softmax(1), familiarity, familiarity < self.threshold
        return tuple(value[0] for value in found) if self.photo else found

    def familiarity(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return ``Familiarity.scores`` in float32: older versions of ONNX Runtime multiply no matrices of doubles."""
        if self.known is None:
            return logits[:, 0] * 0 + torch.inf
        best, near = logits.max(1), (F.normalize(features, dim=1) @ self.means.T).max(1)
        score = self.known.logit.standardise(best.values, self.counts[best.indices])
        return score + self.known.cosine.standardise(near.values, self.counts[near.indices])


def takes_photos(model: Model) -> bool:
    """Return whether the file takes one picture of any size; otherwise it takes batches of the model's size."""
    channels, height, width = model.shape
    return model.bicubic and channels == 3 and height == width > 1


def export_onnx(model: Model, out: Path) -> Exported:
    """Write a model as an ONNX file and check that it predicts what the model predicts.

    The input of a model of photos is ``image``: an upright RGB picture of any size, uint8, height × width × 3, with
    transparent parts replaced by white. The graph crops, resizes and normalises it. The outputs are ``probabilities``
    (one per class), ``familiarity`` and ``unknown`` (whether images of known classes rarely look this unfamiliar, as
    for ``predict``).

    Other models take a batch, ``images``: grey or non-square images, images of older models, which did not crop photos
    at whole pixels (uint8, N × height × width × channels, in the size that they were learned in), or rows
    of features (float32). Their outputs have one row per image.

    The names of the classes are in the output ``classes`` and in the metadata.

    Raises
    ------
    UsageError
        If a package or the directory of ``out`` is missing.
    RunError
        If the file's predictions differ from the model's; the file is not written.
    """
    onnx: Any = require("onnx", "onnx", "an ONNX export")
    require("onnxscript", "onnx", "an ONNX export")  # torch's exporter needs it
    check_path(out)
    if not out.parent.is_dir():
        raise UsageError(f"the directory {out.parent} does not exist: create it, or choose another")
    channels, height, width = model.shape
    module = ExportModule(model).eval()
    shapes = {True: (1, 3, height, width), False: (2, height, width, channels)}
    example = torch.zeros(shapes[module.photo], dtype=torch.uint8)
    if module.features:
        example = torch.zeros(2, channels)
    with disabled(module, "bf16"):  # the file is for any machine
        proto = _trace(module, example)
    if module.photo:
        _prepend_crop(onnx, proto.graph, height)
    _add_classes(onnx, proto.graph, [str(name) for name in model.classes])
    onnx.helper.set_model_props(proto, metadata(model))
    onnx.checker.check_model(proto)
    data = proto.SerializeToString()
    pictures, difference = check(model, data) if available("onnxruntime") else (0, 0.0)
    write_bytes(out, data)
    if module.photo:
        takes = "an RGB picture of any size"
    else:
        takes = (
            f"rows of {channels} floats" if module.features else f"images (uint8, N × {height} × {width} × {channels})"
        )
    return Exported(takes, pictures, difference)


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
                input_names=["square" if module.photo else "images"],
                output_names=OUTPUTS,
                dynamic_shapes=None if module.photo else ({0: torch.export.Dim("images", min=1)},),
                opset_version=18,
                verbose=False,
            )
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    assert program is not None
    return program.model_proto


def _prepend_crop(onnx: Any, graph: Any, size: int) -> None:
    """Let a graph that takes ``square`` (uint8, 1 × 3 × size × size) take a picture of any size, as ``decode`` does."""
    node, uint8 = onnx.helper.make_node, onnx.TensorProto.UINT8
    constants = {"crop_two": [2], "crop_axes": [0, 1], "crop_first": [0], "crop_sizes": [1, 3, size, size]}
    nodes = [
        node("Shape", ["image"], ["crop_sides"], end=2),
        node("ReduceMin", ["crop_sides"], ["crop_edge"], keepdims=1),
        node("Sub", ["crop_sides", "crop_edge"], ["crop_rest"]),
        node("Div", ["crop_rest", "crop_two"], ["crop_start"]),
        node("Add", ["crop_start", "crop_edge"], ["crop_end"]),
        node("Slice", ["image", "crop_start", "crop_end", "crop_axes"], ["crop_pixels"]),
        node("Transpose", ["crop_pixels"], ["crop_planes"], perm=[2, 0, 1]),
        node("Unsqueeze", ["crop_planes", "crop_first"], ["crop_batch"]),
        # with these options, ONNX Runtime resizes as Pillow does: few pixels differ, by 1 of 255
        node(
            "Resize",
            ["crop_batch", "", "", "crop_sizes"],
            ["square"],
            mode="cubic",
            cubic_coeff_a=-0.5,
            antialias=1,
            exclude_outside=1,
        ),
    ]
    traced = list(graph.node)
    del graph.node[:], graph.input[:]
    graph.node.extend([*nodes, *traced])
    graph.input.append(onnx.helper.make_tensor_value_info("image", uint8, ["height", "width", 3]))
    for name, values in constants.items():
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(values, dtype=np.int64), name))


def _add_classes(onnx: Any, graph: Any, names: list[str]) -> None:
    """Add the output ``classes``, because not every runtime shows the metadata."""
    text = onnx.TensorProto.STRING
    values = onnx.helper.make_tensor("class_names", text, [len(names)], [name.encode() for name in names])
    graph.node.append(onnx.helper.make_node("Constant", [], ["classes"], value=values))
    graph.output.append(onnx.helper.make_tensor_value_info("classes", text, [len(names)]))


def metadata(model: Model) -> dict[str, str]:
    """Return what is stored in the file besides the graph."""
    return {
        "classes": json.dumps([str(name) for name in model.classes], ensure_ascii=False),
        "size": str(model.shape[1]),
        "method": model.settings.method,
        "accept": str(ACCEPT),
        "threshold": str(model.least_familiar(ACCEPT)),
        "made_by": "equipoise",
    }


# ---- checking the file


def check(model: Model, data: bytes) -> tuple[int, float]:
    """Compare a file with the model; return the number of pictures compared and the largest difference.

    Raises
    ------
    RunError
        If the predictions differ.
    """
    onnxruntime: Any = require("onnxruntime", "onnx", "the check of an ONNX file")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of containers whose cores it cannot pin
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    pictures = _pictures(model)
    if takes_photos(model):
        size = model.shape[1]
        squares = [np.asarray(to_square(Image.fromarray(picture), size, bicubic=True)) for picture in pictures]
        pixels = torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2)
        rows = [session.run(OUTPUTS, {"image": picture}) for picture in pictures]
        found = [np.stack(column) for column in zip(*rows, strict=True)]
    else:
        batch = np.stack(pictures)
        if is_features(model.shape):
            batch = batch[:, 0, 0]
        pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
        found = session.run(OUTPUTS, {"images": batch})
    nets = nn.ModuleList([model.method, *([] if model.extractor is None else [model.extractor.net])])
    coarse = any(backbone.bf16 for backbone in backbones_of(nets))  # the file computes in 32 bits
    probabilities, familiarity = (values.numpy() for values in model.predictor()(model.inputs(pixels)))
    differences = np.abs(found[0] - probabilities).max(1)
    limits = [LARGEST if picture.shape[:-1] == pixels.shape[2:] else LARGEST_RESIZED for picture in pictures]
    unknown = familiarity < model.least_familiar(ACCEPT)
    wrong = (found[2] != unknown) & ~np.isclose(
        found[1], familiarity, rtol=0.1, atol=0.1
    )  # others are near the threshold
    if not coarse and (wrong.any() or not (differences <= limits).all()):
        raise RunError(f"the exported file gives different predictions (difference up to {differences.max():.2g})")
    return len(pictures), float(differences.max())


def _pictures(model: Model) -> list[np.ndarray]:
    """Return exemplars and held-out images, height × width × channels, or generated pictures where it keeps none."""
    parts = [part for part in (model.memory.images(), model.holdout) if part is not None and len(part)]
    if parts and model.extractor is None:
        kept: Images = join(parts)
        rows = torch.linspace(0, len(kept) - 1, min(PICTURES, len(kept))).long()
        return list(kept.read(rows).permute(0, 2, 3, 1).contiguous().numpy())
    draws = np.random.default_rng(0)
    channels, height, width = model.shape
    if is_features(model.shape):
        values = draws.normal(model.augment.mean, model.augment.std, (PICTURES, 1, 1, channels))
        return list(values.astype(np.float32))
    sizes = SIZES if takes_photos(model) else ((height, width),)
    return [_generated(draws, *sizes[number % len(sizes)], channels) for number in range(PICTURES)]


def _generated(draws: np.random.Generator, height: int, width: int, channels: int) -> np.ndarray:
    """Return random colours that change smoothly, with some noise, as in photos."""
    colours = Image.fromarray(draws.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    smooth = np.asarray(colours.resize((width, height), Image.Resampling.BICUBIC))[:, :, :channels]
    return np.clip(smooth + draws.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8)
