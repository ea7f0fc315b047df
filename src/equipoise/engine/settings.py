"""All settings of a run or model."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, get_type_hints

from equipoise.core.config import build, convert, init_values
from equipoise.data.memory import Memory
from equipoise.errors import UsageError
from equipoise.learn.backbones import PRETRAINED_WEIGHTS, Architecture
from equipoise.learn.backbones.pretrained import PRETRAINED
from equipoise.learn.extractor import Engine, best_engine
from equipoise.learn.runtime import Runtime
from equipoise.learn.schedule import Schedule
from equipoise.methods import registry


@dataclass(frozen=True)
class StreamSettings:
    """How classes arrive."""

    steps: int | str | tuple[int, ...] = 5
    """A number of equal steps, or their sizes: 5, "50,10x5"."""
    order: int | str | tuple[int, ...] = "1993"
    """Class order: 1993 (or any seed), icarl, natural, or a list of class numbers."""
    classes: int | None = None
    """Use only the first classes of the order (none: all)."""
    validation: int = 0
    """Evaluate on this many held-out training images per class instead of test images, to choose settings."""


@dataclass(frozen=True)
class NetSettings:
    """Which network."""

    backbone: str = "resnet32"
    """lite0, lite1, lite2 (with ImageNet weights), resnet32, resnet18, fast, fast-wide, small, tiny or timm:NAME; mlp
    or identity for rows of features."""
    flip_tta: bool = False
    """Average over an image and its horizontal flip in evaluation."""
    weights: str | None = None
    """pretrained (installed ImageNet weights), a safetensors file, or hub to download those of timm:NAME (none: random
    initialisation)."""
    frozen: bool = False
    """Never train the backbone: every image becomes a row of features, once, and methods work on these rows."""
    input_size: int | None = None
    """Resize images to this side inside the network (none: the data's own size)."""
    engine: Engine = "auto"
    """What computes the features of a frozen lite0, lite1 or lite2 on a CPU; auto: onnxruntime if it is installed."""

    def __post_init__(self) -> None:
        if self.input_size is not None and self.input_size < 8:
            raise UsageError(f"net.input_size must be at least 8 pixels, got {self.input_size}")
        if self.engine == "auto":  # resolved here, so that a model's settings tell which it was
            object.__setattr__(self, "engine", best_engine(self.backbone) if self.frozen else "torch")


@dataclass(frozen=True)
class Settings:
    """Everything that decides the result of a run."""

    dataset: str
    method: str
    recipe: str
    seed: int
    data: dict[str, Any]
    stream: StreamSettings
    memory: dict[str, Any]
    net: NetSettings
    train: Schedule
    augment: dict[str, Any]
    """Differences from the data set's own augmentation."""
    runtime: Runtime
    fields: dict[str, Any]
    """The method's hyper-parameters."""

    def make_memory(self) -> Memory:
        """Return an empty memory."""
        return build(Memory, self.memory, "memory")

    def architecture(self, shape: tuple[int, int, int], pretrained: bool = True) -> Architecture:
        """Return the network for images of the given shape; ``pretrained`` loads net.weights, if there are any."""
        options = dataclasses.asdict(self.net)
        name, weights, _ = options.pop("backbone"), options.pop("weights"), options.pop("engine")
        options |= {"bf16": self.runtime.precision == "bf16", "grey_to_rgb": shape[0] == 1 and name in PRETRAINED}
        return Architecture(name, shape, weights=weights if pretrained else None, **options)

    def identity(self) -> dict[str, Any]:
        """Return plain values without those that only say where to compute: equal identities mean equal runs."""
        text = json.dumps(dataclasses.asdict(self))
        plain: dict[str, Any] = json.loads(text)  # tuples become lists, as when it is read back
        plain["runtime"] = {"precision": self.runtime.precision}
        if self.net.weights is not None:
            plain["net"]["weights"] = weights_identity(self.net.weights)
        return plain

    def identity_v1(self) -> dict[str, Any]:
        """Return what ``identity`` was in equipoise 0.1.0, which named interrupted steps after it."""
        plain = self.identity()
        for section, renamed in RENAMED.items():
            old = {new: old for old, new in renamed.items()}
            plain[section] = {old.get(name, name): value for name, value in plain[section].items()}
        plain["net"] = {name: value for name, value in plain["net"].items() if name in ("backbone", "mirror")}
        return plain

    @staticmethod
    def from_identity(identity: Mapping[str, Any], runtime: Runtime | None = None) -> Settings:
        """Undo ``identity``; settings that were added since get their defaults."""
        plain = upgrade(identity, registry.field_names(identity["method"]))
        hints = get_type_hints(Settings)
        for name in ("dataset", "method", "recipe", "seed", "data", "memory", "augment", "fields"):
            plain[name] = convert(plain[name], hints[name], name)
        settings = Settings.build(plain)
        own = dataclasses.replace(runtime or Runtime(), precision=settings.runtime.precision)
        return dataclasses.replace(settings, runtime=own)

    @staticmethod
    def build(plain: Mapping[str, Any]) -> Settings:
        """Return settings from plain values; each section is checked and gets its defaults."""
        sections = {"stream": StreamSettings, "net": NetSettings, "train": Schedule, "runtime": Runtime}
        built: dict[str, Any] = {name: build(kind, plain[name], name) for name, kind in sections.items()}
        built["memory"] = init_values(build(Memory, plain["memory"], "memory"))
        built["fields"] = init_values(registry.make(plain["method"], plain["fields"]))
        return Settings(**{**plain, **built})


def weights_identity(weights: str) -> str:
    """Return the name and hash of a file of weights, so that a run does not depend on where the file is."""
    file = Path(weights)
    if weights == PRETRAINED_WEIGHTS or not file.is_file():
        return weights  # an identity already, or a file that will be reported when it is loaded
    state = file.stat()
    return f"{file.name} ({_hash(file, state.st_mtime_ns, state.st_size)})"


@lru_cache
def _hash(file: Path, modified: int, size: int) -> str:
    """Hash a file once for as long as it does not change."""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()[:16]


RENAMED: dict[str, dict[str, str]] = {
    "data": {"test_share": "test_fraction"},
    "net": {"mirror": "flip_tta"},
    "train": {"shape": "lr_schedule", "filter_lr": "conv_lr", "filter_momentum": "conv_momentum"},
    "augment": {"alternate": "alternate_flip"},
    "fields": {
        "distil": "distill",
        "redraw": "reinit_head",
        "balance": "kd_weight",
        "auxiliary": "aux_weight",
        "tune_epochs": "finetune_epochs",
        "tune_lr": "finetune_lr",
        "tune_temperature": "finetune_temperature",
        "forget_less": "lambda_base",
        "rivals": "top_k",
        "fit_epochs": "bias_epochs",
        "fit_lr": "bias_lr",
        "share": "replay_ratio",
    },
}
"""Settings of equipoise 0.1.0 that have another name now, by section."""


def upgrade(identity: Mapping[str, Any], own: Container[str] = ()) -> dict[str, Any]:
    """Rename the settings of older versions, except for names in ``own``, the method's present fields."""
    plain = dict(identity)
    for section, renamed in RENAMED.items():
        values, keep = plain.get(section), own if section == "fields" else ()
        if isinstance(values, Mapping):
            plain[section] = {name if name in keep else renamed.get(name, name): v for name, v in values.items()}
    return plain
