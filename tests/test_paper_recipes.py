"""What the recipes that end in -paper, and cifar100-long, resolve to for each method.

The rows below are typed from the papers and their authors' released code, which a comment names, not from the recipes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.data.memory import Memory
from equipoise.engine.recipes import read_recipe, resolve
from equipoise.engine.settings import NetSettings, StreamSettings
from equipoise.methods.registry import family, registry

DOCS = Path(__file__).parent.parent / "docs" / "methods.md"
CIFAR, LONG, HUNDRED, THOUSAND = "cifar100-paper", "cifar100-long", "imagenet100-paper", "imagenet1000-paper"
STEPS = (1, 2, 5)
FACTOR = 63 / 255
"""Brightness of PyTorch's ColorJitter, and of EEIL, in many repositories."""
TOTAL, PER_CLASS = {"size": 2000}, {"size": 20, "per": "class"}
UNTRAINED = {"ncm", "slda", "ridge", "ranpac", "fecam"}
WA_SCHEDULE = {"joint", "finetune", "replay", "lwf", "ewc", "mas", "m2kd", "gan-replay", "simple-nem"}
"""On CIFAR-100; on ImageNet also SI."""


@dataclass(frozen=True)
class Row:
    """How a method is trained."""

    epochs: int
    falls: tuple[int, ...] | str
    """Epochs after which the learning rate is lower, or cosine, or constant."""
    batch: int
    decay: tuple[float, float, float]
    """Weight decay in steps 1, 2 and 5."""
    first_epochs: int | None = None
    first_falls: tuple[int, ...] | None = None
    lr: float = 0.1
    divided: bool = False
    """The learning rate is divided by the number of the step."""
    factor: float = 0.1
    warmup: int = 0
    optimizer: str = "sgd"
    versions: int = 1
    fields: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=lambda: TOTAL)
    augment: Mapping[str, Any] = field(default_factory=dict)
    backbone: str = ""
    """If it is not the recipe's."""

    def rates(self, step: int) -> list[float]:
        """Return the learning rate at the begin of each epoch."""
        count = self.first_epochs if step == 1 and self.first_epochs else self.epochs
        falls = self.first_falls if step == 1 and self.first_falls else self.falls
        top = self.lr / step if self.divided else self.lr
        if falls == "cosine":
            return [top * (1 + math.cos(math.pi * epoch / count)) / 2 for epoch in range(count)]
        if falls == "constant":
            return [top] * count
        assert not isinstance(falls, str)
        slow = [top * (epoch + 1) / self.warmup for epoch in range(self.warmup)]
        return slow + [top * self.factor ** sum(fall <= epoch for fall in falls) for epoch in range(len(slow), count)]


def same(decay: float) -> tuple[float, float, float]:
    return decay, decay, decay


def divided(decay: float) -> tuple[float, float, float]:
    return decay, decay / 2, decay / 5


# bwbwzhao/Weight-Aligning: script.sh (--weight_decay 0.0002 for "ce" and "ce + dis + wn" on CIFAR), iLearn.py (divided
# by the step, factor at most 1), main.py (a new nn.Linear in each step, --norm 1, no bias)
WA_FIELDS = {
    "norm": 1, "clamp": True, "clip": True, "reinit_head": True, "bias": False, "temperature": 2.0, "kd_weight": None
}  # fmt: skip
WA_CIFAR = Row(250, (100, 150, 200), 32, divided(1e-4), fields=WA_FIELDS)
WA_LONG = replace(WA_CIFAR, epochs=70, falls=(28, 42, 56), batch=128)  # 70/250 of the epochs: 28, 42 and 56
WA_IMAGENET = Row(100, (30, 60, 80, 90), 256, divided(1e-4), fields=WA_FIELDS)

# srebuffi/iCaRL: main_cifar_100_theano.py (lr_strat 49 and 63 of 70, lr_factor 5, wght_decay 1e-5 on the sum of
# squares, so a gradient of 2e-5 w, and 100 units from the start); main_resnet_tf.py (divided at the end of epochs 20,
# 30, 40 and 50, counted from 0; wght_decay 1e-5 on half the sum of squares)
ICARL_CIFAR = Row(
    70, (49, 63), 128, same(2e-5), lr=2.0, factor=1 / 5, fields={"units": 100, "train_future": True, "bias": True}
)
ICARL_IMAGENET = replace(ICARL_CIFAR, epochs=60, falls=(21, 31, 41, 51), decay=same(1e-5))

# Castro et al., Sec. 5: 40 epochs, then 30 of fine-tuning, T = 2, η = 0.3; fmcp/EndToEndIncrementalLearning:
# experiment_cifar.m (0.1 to 0.0001, ten epochs each; net-epoch-100 for the first step), experiment_imagenet.m (60)
EEIL_FIELDS = {
    "temperature": 2.0,
    "noise": 0.3,
    "noise_decay": 0.55,
    "finetune_epochs": 30,
    "finetune_lr": 0.01,
    "bias": True,
}
EEIL_AUGMENT = {"brightness": FACTOR, "contrast": 0.8}
EEIL_CIFAR = Row(
    40, (10, 20, 30), 128, same(1e-4), first_epochs=100, first_falls=(25, 50, 75), versions=12,
    fields=EEIL_FIELDS | {"finetune_versions": 12, "finetune_augment": True},
    augment=EEIL_AUGMENT | {"versions": 12},
)  # fmt: skip
EEIL_IMAGENET = replace(
    EEIL_CIFAR, first_epochs=60, first_falls=(15, 30, 45), versions=2,
    fields=EEIL_FIELDS | {"finetune_versions": 1, "finetune_augment": False},
    augment=EEIL_AUGMENT | {"versions": 2},
)  # fmt: skip

# Wu et al., Sec. 6: 250 epochs, divided by 10 after 100, 150 and 200, weight decay 2e-4, batches of 128;
# wuyuebupt/LargeScaleIncrementalLearning: imagenet_main.py (30, 60, 80, 90; _BIAS_EPOCHS 2 times the epochs;
# 1e-4 * nb_groups / (itera + 1) with ten groups)
BIC_FIELDS = {"bias_fit": "sgd", "bias_epochs": 500, "bias_lr": 0.1, "temperature": 2.0, "bias": True}
BIC_CIFAR = Row(
    250, (100, 150, 200), 128, same(2e-4), fields=BIC_FIELDS, memory={**TOTAL, "normalise": False}
)  # fmt: skip
BIC_IMAGENET = Row(
    100, (30, 60, 80, 90), 256, divided(1e-3), fields=BIC_FIELDS | {"bias_epochs": 200},
    memory={**TOTAL, "normalise": False},
)  # fmt: skip

# EdenBelouadah/class-incremental-learning: il2m/configs/scratch.cf (100 epochs), ft.cf (35, 256, 1e-4), ft.py (lr / b,
# and a new nn.Linear in each step). On CIFAR they have no schedule: BiC's, with WA's weight decay.
IL2M_FIELDS = {"reinit_head": True, "score": "logits", "bias": True}
IL2M_CIFAR = Row(250, (100, 150, 200), 128, same(1e-4), divided=True, fields=IL2M_FIELDS)
IL2M_IMAGENET = Row(
    35, (20, 30), 256, same(1e-4), first_epochs=100, first_falls=(60, 80), divided=True, fields=IL2M_FIELDS
)

# brjathu/RPSnet: cifar.py (Adam 1e-3, × 0.5 at 20, 40, 60 and 80 of 100, M 8, jump 2, rigidness_coff 2.5), imagenet.py
# (64, 10); rps_net.py for the layers
RPS_WIDTHS = (64, 64, 64, 128, 128, 256, 256, 512, 512)
RPS_FIELDS = {
    "candidates": 8, "every": 2, "parallel": 8, "growth": 2.5, "temperature": 2.0, "widths": RPS_WIDTHS,
    "pools": (5, 7), "stem": 3, "bias": True,
}  # fmt: skip
RPS_CIFAR = Row(
    100, (20, 40, 60, 80), 128, same(0.0), lr=1e-3, factor=0.5, optimizer="adam", fields=RPS_FIELDS,
    memory={**TOTAL, "selection": "random"}, augment={"rotation": 10.0},
)  # fmt: skip
RPS_IMAGENET = replace(
    RPS_CIFAR, batch=64, fields=RPS_FIELDS | {"growth": 10.0, "pools": (3, 5, 7, 9), "stem": 7}, augment={}
)

# hshustc/CVPR19_Incremental_Learning: cifar100-class-incremental/cbf_class_incremental_cosine_cifar100.py and run.sh;
# imagenet-class-incremental/run.sh (--lamda 10); Hou et al., Sec. 4.1 (90 epochs, 30 and 60)
LUCIR_FIELDS = {
    "lambda_base": 5.0,
    "margin": 0.5,
    "top_k": 2,
    "finetune": False,
    "finetune_epochs": 20,
    "finetune_lr": 0.01,
}
LUCIR_CIFAR = Row(160, (80, 120), 128, same(5e-4), fields=LUCIR_FIELDS, memory=PER_CLASS)
LUCIR_IMAGENET = Row(
    90, (30, 60), 128, same(1e-4), fields=LUCIR_FIELDS | {"lambda_base": 10.0}, memory=PER_CLASS
)  # fmt: skip

# arthurdouillard/incremental_learning.pytorch: options/podnet/podnet_cnn_cifar100.yaml, …imagenet100, …imagenet1000
PODNET_FIELDS = {
    "spatial": 3.0, "flat": 1.0, "proxies": 10, "scale": 1.0, "margin": 0.6, "form": "code", "finetune_epochs": 20,
    "finetune_lr": 0.05,
}  # fmt: skip
PODNET_CIFAR = Row(
    160, "cosine", 128, same(5e-4), fields=PODNET_FIELDS, memory=PER_CLASS, augment={"brightness_factor": FACTOR}
)
PODNET_100 = replace(
    PODNET_CIFAR, epochs=90, batch=64, lr=0.05,
    fields=PODNET_FIELDS | {"spatial": 8.0, "flat": 10.0, "finetune_lr": 0.01},
)  # fmt: skip

# Rhyssiyan/DER-ClassIL.pytorch: exps/der_womask/cifar100/b0/10steps/configs/1.yaml (scheduling 100 and 120, after ten
# epochs of warm-up), exps/der_womask/imagenet-100/b0_10s/configs/1.yaml (60, 120, 160 and 180, after twenty)
DER_FIELDS = {
    "reinit_after": 10, "finetune_epochs": 30, "finetune_lr": 0.1, "finetune_temperature": 5.0, "reuse_head": False,
    "bias": False,
}  # fmt: skip
DER_CIFAR = Row(
    170, (110, 130), 128, same(5e-4), warmup=10, fields=DER_FIELDS, augment={"brightness_factor": FACTOR},
    backbone="resnet18-cifar",
)  # fmt: skip
DER_IMAGENET = Row(
    220, (80, 140, 180, 200), 256, same(5e-4), warmup=20,
    fields=DER_FIELDS | {"reinit_after": 20, "finetune_temperature": 1.0},
)  # fmt: skip

# G-U-N/ECCV22-FOSTER: configs/cifar/b0inc20.json, configs/foster-imagenet100.json
FOSTER_FIELDS = {
    "beta1": (0.97, 0.96, 0.95, 0.94), "beta2": 0.97, "compress_epochs": 130, "kd_weight": 1.0, "temperature": 2.0,
    "align_teacher": False, "align_student": False, "zero_old_features": False, "bias": True,
}  # fmt: skip
FOSTER_CIFAR = Row(
    170, "cosine", 128, same(5e-4), first_epochs=200, fields=FOSTER_FIELDS,
    augment={"brightness_factor": FACTOR, "auto": "cifar10", "cutout": 16},
)  # fmt: skip
FOSTER_IMAGENET = replace(
    FOSTER_CIFAR, batch=256, fields=FOSTER_FIELDS | {"beta1": (0.97,)},
    augment={"brightness_factor": FACTOR, "auto": "imagenet"},
)  # fmt: skip

# G-U-N/PyCIL, by MEMO's authors: exps/memo.json; for ImageNet the paper's Sec. 5.1 (170 epochs, divided at 80 and 150)
MEMO_FIELDS = {"train_shared": True, "aux_weight": 1.0, "bias": True, "scale_bias": False}
MEMO_CIFAR = Row(
    170, (80, 120, 150), 128, (5e-4, 2e-4, 2e-4), first_epochs=200, first_falls=(60, 120, 170), fields=MEMO_FIELDS,
    augment={"brightness_factor": FACTOR},
)  # fmt: skip
MEMO_100 = Row(170, (80, 150), 128, same(2e-4), fields=MEMO_FIELDS)

# ganguli-lab/pathint: fig_transfer_cifar/train.py (Keras' Adam has no weight decay)
SI_CIFAR = Row(
    60, "constant", 256, same(0.0), lr=1e-3, optimizer="adam",
    fields={"strength": 0.1, "damping": 1e-3, "cap": 1e6},  # they have no cap: this is the largest
)  # fmt: skip

# ZHUANGHP/Analytic-continual-learning: README.md, "Training From Scratch"
ACIL_CIFAR = Row(300, "cosine", 256, same(5e-4), lr=0.5, fields={"projection": 8192})
ACIL_IMAGENET = replace(ACIL_CIFAR, decay=same(5e-5), fields={"projection": 16384})


def wa_rows(row: Row, plain: float) -> dict[str, Row]:
    """Return the rows of the WA family, with the weight decay of Variations 1 and 4."""
    found = {name: row for name, (cls, _) in registry().items() if cls.__name__ == "WA"}
    return found | {name: replace(row, decay=divided(plain)) for name in ("ce", "ce+kd+wnl")}


def others(row: Row, *more: str) -> dict[str, Row]:
    """Return the rows of methods with WA's schedule, without its division of the weight decay."""
    return {name: replace(row, decay=same(1e-4), fields={}) for name in (*WA_SCHEDULE, *more)}


ON_CIFAR = {
    "lwf-mc": ICARL_CIFAR, "icarl": ICARL_CIFAR, "eeil": EEIL_CIFAR, "il2m": IL2M_CIFAR, "rps": RPS_CIFAR,
    "lucir": LUCIR_CIFAR, "podnet": PODNET_CIFAR, "der": DER_CIFAR, "foster": FOSTER_CIFAR, "memo": MEMO_CIFAR,
    "si": SI_CIFAR, "acil": ACIL_CIFAR,
}  # fmt: skip
ON_IMAGENET = {
    "lwf-mc": ICARL_IMAGENET, "icarl": ICARL_IMAGENET, "eeil": EEIL_IMAGENET, "bic": BIC_IMAGENET,
    "il2m": IL2M_IMAGENET, "rps": RPS_IMAGENET, "lucir": LUCIR_IMAGENET, "podnet": PODNET_100, "der": DER_IMAGENET,
    "foster": FOSTER_IMAGENET, "memo": MEMO_100, "acil": ACIL_IMAGENET,
}  # fmt: skip


def for_1000(name: str, row: Row) -> Row:
    """Return what differs with 1,000 classes: ten times the memory, and some settings."""
    size = row.memory["size"]
    row = replace(row, memory={**row.memory, "size": 20_000 if size == 2000 else size})
    if name in ("lwf-mc", "icarl"):
        return replace(row, fields={**row.fields, "units": 1000})
    if name == "podnet":
        return replace(row, decay=same(1e-4))
    # models/memo.py has the brightness for all classes of ImageNet, but not for 100 of them
    return replace(row, augment={"brightness_factor": FACTOR}) if name == "memo" else row


ROWS: dict[str, dict[str, Row]] = {
    CIFAR: {**wa_rows(WA_CIFAR, 2e-4), **others(WA_CIFAR), **ON_CIFAR, "bic": BIC_CIFAR},
    LONG: {
        **wa_rows(WA_LONG, 2e-4),
        **others(WA_LONG),
        **ON_CIFAR,
        "bic": replace(BIC_CIFAR, epochs=70, falls=(28, 42, 56), fields=BIC_FIELDS | {"bias_epochs": 140}),
    },
    HUNDRED: {**wa_rows(WA_IMAGENET, 1e-4), **others(WA_IMAGENET, "si"), **ON_IMAGENET},
}
ROWS[THOUSAND] = {name: for_1000(name, row) for name, row in ROWS[HUNDRED].items()}
DATASETS = {CIFAR: "cifar100", LONG: "cifar100", HUNDRED: "imagenet100", THOUSAND: "imagenet1000"}


@pytest.mark.parametrize(("recipe", "name"), [(recipe, name) for recipe, rows in ROWS.items() for name in sorted(rows)])
def test_a_method_is_trained_as_its_authors_do(recipe: str, name: str) -> None:
    settings, row = resolve(DATASETS[recipe], name, recipe), ROWS[recipe][name]
    for step, decay in zip(STEPS, row.decay, strict=True):
        train = settings.train.for_step(step)
        assert [train.lr_at(epoch) for epoch in range(train.epochs)] == pytest.approx(row.rates(step), rel=1e-6), step
        assert train.weight_decay == pytest.approx(decay), step
        assert (train.optimizer, train.batch_size, train.momentum) == (row.optimizer, row.batch, 0.9)
        assert (train.versions, train.repeats(step, 10_000, 2000), train.sizes) == (row.versions, 1, (1.0,))
        assert not train.nesterov
    assert {field: settings.fields[field] for field in row.fields} == dict(row.fields)
    assert settings.augment == {key: pytest.approx(value, abs=1e-3) if isinstance(value, float) else value
                                for key, value in row.augment.items()}  # fmt: skip
    assert settings.make_memory() == Memory(**row.memory)
    own = "resnet32" if recipe in (CIFAR, LONG) else "resnet18"
    assert settings.net == NetSettings(backbone=row.backbone or own)
    assert settings.stream == StreamSettings(steps=5 if own == "resnet32" else 10, order="1993")
    assert read_recipe(recipe).get("runtime", {}) == ({"precision": "auto"} if recipe == LONG else {})


@pytest.mark.parametrize("recipe", ROWS)
def test_every_setting_of_these_recipes_is_in_the_table(recipe: str) -> None:
    rows = ROWS[recipe]
    assert set(rows) == set(registry()) - UNTRAINED
    for name, sections in read_recipe(recipe)["methods"].items():
        for method in (method for method in rows if name in (method, family(method))):
            assert set(sections.get("fields", {})) <= set(rows[method].fields), method


@pytest.mark.parametrize("recipe", [CIFAR, HUNDRED, THOUSAND])
def test_the_page_lists_the_methods_with_the_schedule_of_wa(recipe: str) -> None:
    text = " ".join(DOCS.read_text(encoding="utf-8").split())
    found = re.search(r"uses WA's schedule: ([^.]+), and on ImageNet (`[^.]+)\.", text)
    assert found
    everywhere, on_imagenet = found.groups()
    listed = set(re.findall(r"`([^`]+)`", everywhere if recipe == CIFAR else everywhere + on_imagenet))
    own = set(read_recipe(recipe)["methods"])
    assert listed == {name for name in ROWS[recipe] if not {name, family(name)} & own}
