"""FOSTER compared with arithmetic written from the paper and its authors' code."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise.data.images import Images
from equipoise.data.stream import Step
from equipoise.engine.recipes import resolve
from equipoise.errors import UsageError
from equipoise.learn.backbones.base import Backbone, backbones_of
from equipoise.learn.fit import Fit
from equipoise.learn.inference import same_tensors as same
from equipoise.learn.schedule import Schedule
from equipoise.methods.foster import Foster, effective_weights
from equipoise.methods.registry import make
from tests.test_methods import MIXED, NEW, OLD, Array, Learned, array, begin, cross_entropy, kd, make_images, softmax

COUNTS = [10, 10, 10, 12, 12]
"""Images per class in the second step: 30 exemplars of three classes, and 12 of each new one."""


def started(**fields: Any) -> tuple[Learned, Foster]:
    """Return FOSTER at the start of its second step."""
    learned = Learned("foster", **{"compress_epochs": 1, **fields})
    assert isinstance(learned.method, Foster)
    return learned, learned.method


def weights_of(counts: list[int], beta: float) -> Array:
    raw = np.array([(1 - beta) / (1 - beta**count) for count in counts])
    return np.asarray(raw / raw.sum() * len(counts))


def parts(method: Foster, x: Tensor) -> tuple[Array, Array]:
    """Return the features of the old and the new backbone."""
    assert method.old_backbone is not None
    method.eval()
    with torch.no_grad():
        return array(method.old_backbone(x)), array(method.backbone(x))


def linear(features: Array, head: Any) -> Array:
    return np.asarray(features @ array(head.weight).T + array(head.bias))


def test_weights_are_the_inverse_of_effective_numbers_with_mean_one() -> None:
    labels = torch.tensor([0] * 25 + [1] * 500 + [2])
    found = array(effective_weights(labels, 4, 0.94))  # the last class has no images and counts as one
    np.testing.assert_allclose(found, weights_of([25, 500, 1, 1], 0.94), rtol=1e-5)
    assert found.mean() == pytest.approx(1, rel=1e-6)
    ratio = found[0] / found[1]
    assert ratio == pytest.approx((1 - 0.94**500) / (1 - 0.94**25), rel=1e-5)


def test_the_boosting_loss_has_three_terms() -> None:
    learned, method = started(beta1=(0.9,), kd_weight=0.7, temperature=3.0)
    fit = learned.second
    assert fit.images is not None
    assert torch.bincount(fit.images.labels).tolist() == COUNTS
    fit.train(fit.images)  # so that the networks differ
    x, y = learned.batch(MIXED)
    before, new = parts(method, x)
    assert method.old_head is not None
    logits = linear(np.concatenate([before, new], 1), method.head)
    known = linear(before, method.old_head)
    expected = (
        cross_entropy(logits / weights_of(COUNTS, 0.9), y)
        + cross_entropy(linear(new, method.aux_head), y)
        + 0.7 * kd(logits[:, :OLD], known, 3.0)
    )
    assert method.loss(x, y).item() == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(array(method.predict(x)), logits, rtol=1e-4, atol=1e-4)  # both networks predict
    np.testing.assert_allclose(array(learned.before.logits(x)), known, rtol=1e-4, atol=1e-4)


def test_the_first_step_is_plain_cross_entropy() -> None:
    learned = Learned("foster")
    method = learned.before
    method.old = 0
    x, y = learned.batch([0, 1, 2])
    expected = cross_entropy(array(method.logits(x)), y)
    assert method.loss(x, y).item() == pytest.approx(expected, rel=1e-5)


def test_boosting_starts_from_the_old_network() -> None:
    learned, method = started()
    old, width = learned.before.head, method.backbone.width
    assert tuple(method.head.weight.shape) == (OLD + NEW, 2 * width)
    assert torch.equal(method.head.weight[:OLD, :width], old.weight)
    assert method.head.bias is not None
    assert old.bias is not None
    assert torch.equal(method.head.bias[:OLD], old.bias)
    assert method.head.weight[OLD:, :width].any()
    assert same(method.backbone.state_dict(), learned.before.backbone.state_dict())
    assert method.head.weight.requires_grad
    assert all(weight.requires_grad for weight in method.backbone.parameters())


def test_the_old_network_does_not_change_while_the_new_one_is_trained() -> None:
    learned, method = started()
    fit = learned.second
    fit.train(fit.images or fit.step.images)
    assert method.old_backbone is not None
    assert method.old_head is not None
    assert same(method.old_backbone.state_dict(), learned.before.backbone.state_dict())  # also the batch norms
    assert same(method.old_head.state_dict(), learned.before.head.state_dict())
    assert not same(method.backbone.state_dict(), learned.before.backbone.state_dict())
    assert not torch.equal(method.head.weight[:OLD, : method.backbone.width], method.old_head.weight)  # it is trained


def test_each_step_has_its_own_beta_and_the_last_holds_for_further_ones() -> None:
    learned, method = started(beta1=(0.9, 0.8))
    for index, beta in ((2, 0.9), (3, 0.8), (4, 0.8)):
        method.backbone, method.head = copy.deepcopy(learned.before.backbone), copy.deepcopy(learned.before.head)
        step = Step(index, OLD, NEW, learned.second.step.images)
        method.begin(step, learned.second)
        np.testing.assert_allclose(array(method.class_weight), weights_of(COUNTS, beta), rtol=1e-5)


@pytest.mark.parametrize("zero", [False, True])
def test_new_classes_may_ignore_old_features(zero: bool) -> None:
    learned, method = started(zero_old_features=zero)
    fit, width = learned.second, method.backbone.width
    fit.train(fit.images or fit.step.images)
    assert bool(method.head.weight[OLD:, :width].any()) != zero
    assert method.head.weight[OLD:, width:].any()


class Compression:
    """What the second stage is trained with; nothing is trained."""

    def __init__(self, learned: Learned) -> None:
        method, fit = learned.method, learned.second
        assert isinstance(method, Foster)
        self.x, self.y = learned.batch(MIXED)

        def spy(fit: Fit, images: Images, loss: Callable[..., Tensor], schedule: Schedule, **named: Any) -> None:
            self.images, self.schedule, self.method = images, schedule, copy.deepcopy(method)
            with torch.no_grad():  # the student differs from the old network
                for weight in method.parameters():
                    weight.add_(0.1 * torch.rand_like(weight))
            method.eval()
            self.loss, self.logits = loss(self.x, self.y).item(), array(method.logits(self.x))
            self.head = copy.deepcopy(method.head)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Fit, "train", spy)
            assert method.end(fit.step, fit) == {}


def trained(**fields: Any) -> tuple[Learned, Foster, Array]:
    """Return FOSTER after boosting, and the logits of both networks."""
    learned, method = started(**fields)
    fit = learned.second
    fit.train(fit.images or fit.step.images)
    x, _ = learned.batch(MIXED)
    return learned, method, linear(np.concatenate(parts(method, x), 1), method.head)


def balanced_kd(logits: Array, teacher: Array, weight: Array, T: float) -> float:
    total = 0.0
    for student, target in zip(logits, teacher, strict=True):
        soft = softmax(target / T) * weight
        total -= float((soft / soft.sum() * np.log(softmax(student / T))).sum())
    return total / len(logits)


def test_the_student_is_distilled_with_balanced_targets() -> None:
    learned, _, both = trained(beta1=(0.5,), beta2=0.9, temperature=3.0)
    compression = Compression(learned)
    expected = balanced_kd(compression.logits, both, weights_of(COUNTS, 0.9), 3.0)
    assert compression.loss == pytest.approx(expected, rel=1e-4)
    assert torch.bincount(compression.images.labels).tolist() == COUNTS


def test_the_student_starts_as_the_old_network() -> None:
    learned, _, _ = trained()
    student = Compression(learned).method
    old = learned.before
    assert same(student.backbone.state_dict(), old.backbone.state_dict())
    assert torch.equal(student.head.weight[:OLD], old.head.weight)
    assert student.head.bias is not None
    assert old.head.bias is not None
    assert torch.equal(student.head.bias[:OLD], old.head.bias)
    assert all(weight.requires_grad for weight in student.parameters())


@pytest.mark.parametrize(("epochs", "expected"), [(7, 7), (None, 5)])
def test_the_student_has_its_own_schedule(epochs: int | None, expected: int) -> None:
    learned, _, _ = trained(compress_epochs=epochs)
    fit = learned.second
    fit.schedule = replace(fit.schedule, epochs=5, first_epochs=9, lr_schedule="milestones", milestones=(2,))
    schedule = Compression(learned).schedule.for_step(2)
    assert (schedule.epochs, schedule.lr_schedule, schedule.weight_decay) == (expected, "cosine", 0.0)
    assert schedule.lr == fit.schedule.lr


def test_compression_leaves_one_network() -> None:
    learned, method, both = trained()
    fit = learned.second
    assert len(backbones_of(method)) == 2
    method.end(fit.step, fit)
    (backbone,) = backbones_of(method)
    assert isinstance(backbone, Backbone)
    assert method.head.features == backbone.width
    assert all(part is None for part in (method.old_backbone, method.old_head, method.aux_head))
    x, _ = learned.batch(MIXED)
    with torch.no_grad():
        logits = array(method.eval().predict(x))
        expected = linear(array(backbone(x)), method.head)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert not np.allclose(logits, both)
    assert set(method.state_dict()) == set(learned.before.state_dict())


def test_exemplars_are_selected_with_the_features_of_both_networks() -> None:
    learned, method, _ = trained(compress_epochs=2)
    fit, images = learned.second, learned.second.step.images
    x = fit.augment.plain(images, torch.arange(len(images)))
    features = np.concatenate(parts(method, x), 1)
    method.end(fit.step, fit)
    fit.update_memory()  # as the engine does after it
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    for label in range(OLD, OLD + NEW):
        mine: list[int] = np.flatnonzero(images.labels.numpy() == label).tolist()
        picked: list[int] = []
        for _ in range(30 // (OLD + NEW)):
            left = [place for place in mine if place not in picked]
            distances = [np.linalg.norm(unit[mine].mean(0) - unit[[*picked, place]].mean(0)) for place in left]
            picked.append(left[int(np.argmin(distances))])
        assert images.rows[picked].tolist() == learned.memory.exemplars[label].rows.tolist()


def aligned(head: Any, factor: float) -> tuple[Array, Array]:
    """Return weights and bias of a head whose new rows are scaled by γ · factor^(old / new)."""
    weight = array(head.weight).copy()
    norms = [np.sqrt((row**2).sum()) for row in weight]
    gamma = np.mean(norms[:OLD]) / np.mean(norms[OLD:])
    weight[OLD:] *= gamma * factor ** (OLD / NEW)
    return weight, array(head.bias)


def test_the_student_may_be_aligned() -> None:
    learned, method, both = trained(align_student=True, align_factor=0.8)
    compression = Compression(learned)
    weight, bias = aligned(compression.head, 0.8)
    np.testing.assert_allclose(array(method.head.weight), weight, rtol=1e-5)
    assert method.head.bias is not None
    np.testing.assert_allclose(array(method.head.bias), bias)
    expected = balanced_kd(compression.logits, both, weights_of(COUNTS, 0.97), 2.0)  # its teacher is not
    assert compression.loss == pytest.approx(expected, rel=1e-4)


def test_the_teacher_may_be_aligned() -> None:
    learned, method, _ = trained(align_teacher=True, align_factor=0.8)
    weight, bias = aligned(method.head, 0.8)
    x, _ = learned.batch(MIXED)
    both = np.asarray(np.concatenate(parts(method, x), 1) @ weight.T + bias)
    compression = Compression(learned)
    expected = balanced_kd(compression.logits, both, weights_of(COUNTS, 0.97), 2.0)
    assert compression.loss == pytest.approx(expected, rel=1e-4)
    assert torch.equal(method.head.weight, compression.head.weight)  # the student is not


def test_without_a_bias_all_heads_have_none() -> None:
    learned, method = started(bias=False)
    assert method.head.bias is None
    assert method.aux_head is not None
    assert method.aux_head.bias is None
    method.end(learned.second.step, learned.second)
    assert method.head.bias is None


def test_a_third_step_starts_from_the_student() -> None:
    learned, method, _ = trained()
    method.end(learned.second.step, learned.second)
    student = method.snapshot()
    begin(method, Step(3, 5, 2, make_images([5, 6])), learned.second)
    assert method.old_backbone is not None
    assert same(method.old_backbone.state_dict(), student.backbone.state_dict())
    assert method.head.classes == 7


@pytest.mark.parametrize("fields", [{"beta1": ()}, {"beta1": (0.9, 1.0)}, {"beta2": -0.1}])
def test_a_beta_outside_its_range_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"method\.beta[12] must (be between 0 and 0.99999|have 1 to 10,000 values)"):
        make("foster", fields)


def test_an_align_factor_that_is_not_positive_is_rejected() -> None:
    with pytest.raises(UsageError, match=r"method\.align_factor must be above 0 and at most 1, got 0\.0"):
        make("foster", {"align_factor": 0.0})


def test_the_paper_recipe_has_the_authors_settings() -> None:
    settings = resolve("cifar100", "foster", "cifar100-paper")
    assert settings.augment == {"brightness_factor": 0.247, "auto": "cifar10", "cutout": 16}
    first, later = (settings.train.for_step(index) for index in (1, 2))
    assert [first.epochs, later.epochs, settings.fields["compress_epochs"]] == [200, 170, 130]
    assert (later.lr, later.lr_schedule, later.batch_size, later.weight_decay) == (0.1, "cosine", 128, 5e-4)
    assert list(settings.fields["beta1"]) == [0.97, 0.96, 0.95, 0.94]
