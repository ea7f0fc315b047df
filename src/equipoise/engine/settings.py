"""All settings of a run or model."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from equipoise.core.config import build, convert, init_values
from equipoise.core.ranges import Range, check_value, check_values, shown
from equipoise.data.augment import Augment
from equipoise.data.memory import Memory
from equipoise.errors import UsageError
from equipoise.learn.backbones import HUB, PRETRAINED_WEIGHTS, Architecture
from equipoise.learn.backbones.pretrained import PRETRAINED
from equipoise.learn.extractor import Engine, best_engine
from equipoise.learn.runtime import Runtime
from equipoise.learn.schedule import Schedule
from equipoise.methods import registry

Classes = Annotated[int, Range(1, 10**6)]
Seed = Annotated[int, Range(-(2**63), 2**63 - 1)]


@dataclass(frozen=True)
class StreamSettings:
    """How classes arrive."""

    steps: Classes | str | tuple[Classes, ...] = 5
    """A number of equal steps, or their sizes: 5, "50,10x5"."""
    order: Annotated[int, Range(0, 2**32 - 1)] | str | tuple[Annotated[int, Range(0, 10**6)], ...] = "1993"
    """Class order: 1993 (or any seed), icarl, natural, or a list of class numbers."""
    classes: Classes | None = None
    """Use only the first classes of the order (none: all)."""
    validation: Annotated[int, Range(0, 10**9)] = 0
    """Evaluate on this many held-out training images per class instead of test images, to choose settings."""

    def __post_init__(self) -> None:
        check_values(self, "stream")


@dataclass(frozen=True)
class NetSettings:
    """The network."""

    backbone: str = "resnet32"
    """lite0, lite1, lite2 (with ImageNet weights), resnet32, resnet18, resnet18-cifar, fast, fast-wide, small, tiny or
    timm:NAME; mlp or identity for rows of features."""
    flip_tta: bool = False
    """Average over an image and its horizontal flip in evaluation."""
    weights: str | None = None
    """pretrained (installed ImageNet weights), a safetensors file, or hub to download those of timm:NAME (none: random
    initialisation)."""
    frozen: bool = False
    """Never train the backbone: the features of every image are computed once, and methods work on these features."""
    input_size: Annotated[int, Range(8, 1024, why="pixels")] | None = None
    """Resize images to this side inside the network (none: the data's own size)."""
    engine: Engine = "auto"
    """Engine that computes the features of a frozen lite0, lite1 or lite2 on a CPU; auto: onnxruntime if installed."""

    def __post_init__(self) -> None:
        check_values(self, "net")
        if self.engine == "auto":  # resolved here, so that a model's settings tell which it was
            object.__setattr__(self, "engine", best_engine(self.backbone) if self.frozen else "torch")


@dataclass(frozen=True)
class Settings:
    """Everything that determines the result of a run."""

    dataset: str
    method: str
    recipe: str
    seed: Seed
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

    def __post_init__(self) -> None:
        check_value(self.seed, Seed, "seed")

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
        """Return plain values, without settings for where to compute: equal identities mean equal runs."""
        text = json.dumps(dataclasses.asdict(self))
        plain: dict[str, Any] = json.loads(text)  # tuples become lists, as when it is read back
        plain["runtime"] = {"precision": self.runtime.precision}
        if self.net.weights is not None:
            plain["net"]["weights"] = weights_identity(self.net.weights)
        return plain

    def identity_v1(self) -> dict[str, Any]:
        """Return what ``identity`` was in equipoise 0.1.0, which named interrupted steps after it."""
        plain = self.identity()
        bias = plain["fields"].pop("bias")
        if "clip" in plain["fields"]:  # only the WA family had one, after clip; the order of names counts
            fields = list(plain["fields"].items())
            fields.insert([name for name, _ in fields].index("clip") + 1, ("bias", bias))
            plain["fields"] = dict(fields)
        for section, added in ADDED.items():
            plain[section] = {name: value for name, value in plain[section].items() if name not in added}
        for section, renamed in RENAMED.items():
            old = {new: old for old, new in renamed.items()}
            plain[section] = {old.get(name, name): value for name, value in plain[section].items()}
        return plain

    @staticmethod
    def from_identity(identity: Mapping[str, Any], runtime: Runtime | None = None) -> Settings:
        """Undo ``identity``; settings that were added since get their defaults."""
        plain = upgrade(identity, registry.field_names(identity["method"]))
        weights = plain["net"].get("weights")
        if weights is not None and not _IDENTITY.fullmatch(weights):
            raise UsageError(f"net.weights must be the name and hash of a file, got {shown(weights)}")
        plain["fields"] = {"bias": False} | FORMER.get(identity["method"], {}) | plain["fields"]
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
        augment = build(Augment, plain["augment"], "augment")
        built["augment"] = {name: getattr(augment, name) for name in plain["augment"]}
        built["fields"] = init_values(registry.make(plain["method"], plain["fields"]))
        return Settings(**{**plain, **built})


_IDENTITY = re.compile(rf"{PRETRAINED_WEIGHTS}|{HUB}|[^/\\\0]{{1,255}} \([0-9a-f]{{16}}\)")
"""What ``weights_identity`` returns. A saved path is never opened, because it may come from an untrusted source."""


def weights_identity(weights: str) -> str:
    """Return the name and hash of a file of weights, so that a run does not depend on where the file is."""
    file = Path(weights)
    if weights == PRETRAINED_WEIGHTS or not os.path.isfile(weights):  # noqa: PTH113 - false for names that are too long
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


ADDED: dict[str, tuple[str, ...]] = {
    "memory": ("normalise",),
    "net": ("weights", "frozen", "input_size", "engine"),
    "train": ("versions", "first_milestones", "first_weight_decay", "warmup_epochs"),
    "fields": (
        "score",
        "train_future",
        "bias_fit",
        "finetune",
        "finetune_versions",
        "finetune_augment",
        "reinit_after",
        "pools",
        "stem",
    ),
}
"""Settings that equipoise 0.1.0 did not have, by section."""
FORMER: dict[str, dict[str, Any]] = {"il2m": {"score": "softmax"}}
"""Fields other than bias that older versions did not store, with the values they used, by method."""


def upgrade(identity: Mapping[str, Any], own: Container[str] = ()) -> dict[str, Any]:
    """Rename the settings of older versions, except for names in ``own``, the method's present fields."""
    plain = dict(identity)
    for section, renamed in RENAMED.items():
        values, keep = plain.get(section), own if section == "fields" else ()
        if isinstance(values, Mapping):
            plain[section] = {name if name in keep else renamed.get(name, name): v for name, v in values.items()}
    return plain
