"""What runs learn, and what they report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.errors import RunError
from equipoise.learn.backbones.small import SmallNet
from equipoise.methods.registry import registry
from equipoise.study.run import run
from equipoise.testing.trial import short_stages
from tests.conftest import Quick
from tests.runs import Stop, assert_same_run, tensors_in, timeless

RECIPE: dict[str, dict[str, Any]] = {"train": {}}
"""As many epochs as the recipe says."""
SLOW = ("bic", "der", "eeil", "foster", "m2kd")
"""Methods that are not clearly better than chance after three epochs per step and two per further stage."""


@pytest.mark.parametrize("method", sorted(registry()))
def test_every_method_learns_digits(method: str, quick: Quick) -> None:
    settings: dict[str, Any] = {"train": {"epochs": 3}, "fields": short_stages(method)}
    if method in SLOW:
        settings = {"train": {"epochs": 6}}
    result = quick(method=method, overrides=settings)
    assert [step.seen for step in result.steps] == [2, 4, 6, 8, 10]
    assert all(step.exemplars <= 50 for step in result.steps)
    assert result.steps[0].accuracy is not None
    assert result.steps[0].accuracy > 90
    assert result.steps[-1].accuracy is not None
    assert result.steps[-1].accuracy > (9 if method == "finetune" else 12)  # chance is 10; one forgets all it can
    for step in result.steps:
        errors = step.errors
        wrong = errors.e_n + errors.e_on + errors.e_oo
        labels = tensors_in(result.directory / "predictions" / f"step-{step.step}.safetensors")["labels"]
        assert step.accuracy == pytest.approx(100 - 100 * wrong / len(labels))
        assert errors.e_o == errors.e_on + errors.e_oo
        assert step.total_old + step.total_new == len(labels)
        assert sum(entry.correct or 0 for entry in step.per_class) == len(labels) - wrong
    assert json.loads((result.directory / "summary.json").read_text()) == result.summary


def test_step_one_is_the_same_for_all_variants_of_wa(quick: Quick) -> None:
    first = {method: quick(method=method, steps="5,5").steps[0].accuracy for method in ("ce", "ce+kd", "wa", "ce+wa")}
    assert len(set(first.values())) == 1


def test_gamma_is_the_ratio_of_mean_norms(quick: Quick) -> None:
    for step in quick(method="wa", overrides={"fields": {"clamp": False}}).steps[1:]:
        assert step.norms_old is not None
        assert step.norms_new is not None
        assert step.gamma == pytest.approx(step.norms_old / step.norms_new, rel=1e-5)


def test_steps_of_unequal_size_and_of_one_class(quick: Quick) -> None:
    result = quick(method="wa", steps="4,1,3,1x2")
    assert [step.new for step in result.steps] == [4, 1, 3, 1, 1]
    assert all(step.gamma is not None for step in result.steps[1:])


def test_bfloat16_learns_too(quick: Quick) -> None:
    accuracy = quick(method="wa", overrides={"runtime": {"precision": "bf16"}}).steps[0].accuracy
    assert accuracy is not None
    assert accuracy > 90


def test_fixed_memory_per_class_and_no_memory(quick: Quick) -> None:
    fixed = quick(method="wa", overrides={"memory": {"size": 3, "per": "class"}})
    assert [step.exemplars for step in fixed.steps] == [6, 12, 18, 24, 30]
    none = quick(method="ce", overrides=RECIPE | {"memory": {"size": 0}})
    assert [step.exemplars for step in none.steps] == [0] * 5
    assert none.steps[-1].errors.e_on > 0.9 * none.steps[-1].errors.e_o  # everything old is forgotten


def test_joint_training_is_better_and_uses_all_images(quick: Quick) -> None:
    joint, ce = quick(method="joint"), quick(method="ce")
    assert joint.summary["last"] > ce.summary["last"] + 10  # type: ignore[operator]


def test_the_same_seed_gives_the_same_bits_and_another_seed_another_run(quick: Quick) -> None:
    one, two, other = quick(method="wa"), quick(method="wa"), quick(method="wa", seed=1)
    assert_same_run(one.directory, two.directory)
    assert timeless(one.directory) != timeless(other.directory)


def test_divided_weight_decay_is_used_in_training(quick: Quick) -> None:
    decay: dict[str, Any] = {"train": {"epochs": 1, "weight_decay": 0.1, "divide_weight_decay": True}}
    plain: dict[str, Any] = {"train": {"epochs": 1, "weight_decay": 0.1}}
    divided, whole = quick(method="ce", overrides=decay), quick(method="ce", overrides=plain)
    assert divided.steps[0].norms_new == whole.steps[0].norms_new  # the first step divides by 1
    assert divided.steps[1].norms_new != whole.steps[1].norms_new


def test_the_callers_random_numbers_are_not_changed(quick: Quick) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    quick(method="wa", steps=1)
    assert torch.equal(torch.rand(3), expected)


def test_the_callers_random_numbers_are_not_changed_by_an_error(quick: Quick) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with pytest.raises(KeyboardInterrupt):
        quick(method="wa", listener=Stop(3))
    assert torch.equal(torch.rand(3), expected)


# ---- training that fails


def test_divergence_is_an_error(quick: Quick) -> None:
    with pytest.raises(RunError, match=r"lower train\.lr \(now 1e\+06\)"):
        quick(method="ce", overrides={"train": {"epochs": 2, "lr": 1e6}})


def test_a_network_that_dies_without_a_memory_is_an_error(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SmallNet, "forward", lambda self, x: torch.zeros(len(x), self.width, requires_grad=True))
    with pytest.raises(RunError, match=r"the same logits after step 1: the training has collapsed.*method\.clip=false"):
        quick(method="ce", overrides={"memory": {"size": 0}})


def test_a_network_that_dies_is_an_error(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = SmallNet.forward_stages
    monkeypatch.setattr(SmallNet, "forward_stages", lambda self, x: [0 * found for found in alive(self, x)])
    with pytest.raises(RunError, match=r"all features are zero in step 1: lower train\.lr"):
        quick(method="ce")


# ---- the effect of the paper


def test_aligning_beats_distillation_alone(tmp_path: Path) -> None:
    """On 30 glyphs in 3 steps."""
    overrides: dict[str, dict[str, Any]] = {"stream": {"classes": 30, "steps": 3}, "memory": {"size": 90}}
    last = {
        method: run("glyphs", method=method, out=tmp_path / method, overrides=overrides).steps[-1]
        for method in ("ce+kd", "wa")
    }
    assert last["wa"].accuracy > last["ce+kd"].accuracy + 5  # type: ignore[operator]
    assert last["wa"].errors.e_on < last["ce+kd"].errors.e_on


@pytest.mark.realdata
def test_aligning_helps_on_the_real_cifar100(cifar_root: Path, tmp_path: Path) -> None:
    """A part of the smoke recipe, with few exemplars."""
    overrides: dict[str, dict[str, Any]] = {
        "net": {"backbone": "tiny"},
        "train": {"epochs": 6},  # after 3 epochs, this network has learned too little for aligning to matter
        "stream": {"classes": 20, "steps": 4},
        "memory": {"size": 100},
    }
    result = run("cifar100", recipe="cifar100-smoke", data_root=cifar_root, out=tmp_path / "wa", overrides=overrides)
    last = result.steps[-1]
    assert last.accuracy is not None
    assert last.accuracy_uncorrected is not None
    assert last.norms_old is not None
    assert last.norms_new is not None
    assert last.accuracy > last.accuracy_uncorrected + 2
    assert last.norms_new > last.norms_old
