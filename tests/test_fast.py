"""The parts of the fast recipes: Muon, whitened patches, flipped images, small images first, shared features."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise.data.augment import Augment, downscale, shift_and_flip
from equipoise.data.images import Images
from equipoise.data.stream import Step
from equipoise.engine.evaluate import predict_all
from equipoise.engine.recipes import resolve
from equipoise.engine.step import learn_step, train_and_evaluate, train_step
from equipoise.errors import UsageError
from equipoise.learn.backbones import Architecture
from equipoise.learn.backbones.fast import FastNet, Whitening
from equipoise.learn.backbones.small import SmallNet
from equipoise.learn.fit import Fit
from equipoise.learn.inference import InferencePass
from equipoise.learn.method import Method
from equipoise.learn.muon import Muon
from equipoise.learn.schedule import Schedule
from equipoise.methods.registry import make
from equipoise.study.experiment import Experiment
from equipoise.testing import Trial


def orthogonalised(gradient: np.ndarray) -> np.ndarray:
    """Apply Newton–Schulz by its definition, to singular values: three times 3.4445 s − 4.775 s³ + 2.0315 s⁵."""
    u, s, v = np.linalg.svd(gradient, full_matrices=False)
    s = s / np.sqrt((s**2).sum())
    for _ in range(3):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    update: np.ndarray = (u * s) @ v
    return update


@pytest.mark.parametrize("shape", [(4, 5, 3, 3), (20, 2, 3, 3)])
def test_muon_updates_filters_by_their_singular_values(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    filters = nn.Parameter(torch.randn(shape, generator=generator).to(memory_format=torch.channels_last))
    optimizer = Muon([{"params": [filters]}], lr=0.1, momentum=0.6, weight_decay=0.5)
    expected, buffer = filters.detach().double().numpy().copy(), np.zeros(shape)
    for _ in range(3):
        gradient = torch.randn(shape, generator=generator)
        filters.grad = gradient.to(memory_format=torch.channels_last)
        optimizer.step()
        buffer = 0.6 * buffer + gradient.double().numpy()
        update = orthogonalised((gradient.double().numpy() + 0.6 * buffer).reshape(shape[0], -1)).reshape(shape)
        expected = expected * np.sqrt(shape[0]) / np.sqrt((expected**2).sum()) - 0.1 * update
    torch.testing.assert_close(filters.detach(), torch.tensor(expected).float(), rtol=1e-4, atol=1e-5)
    assert filters.is_contiguous(memory_format=torch.channels_last)


def test_muon_ignores_the_scale_of_the_loss() -> None:
    moved = []
    for scale in (1.0, 1000.0):
        filters = nn.Parameter(torch.ones(3, 3, 2, 2))
        filters.grad = scale * torch.randn(3, 3, 2, 2, generator=torch.Generator().manual_seed(0))
        Muon([{"params": [filters]}], 0.1, 0.6, 0.0).step()
        moved.append(filters.detach())
    torch.testing.assert_close(moved[0], moved[1], rtol=1e-4, atol=1e-6)


def test_muon_is_sgd_for_everything_except_filters() -> None:
    start = torch.randn(5, 7)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    schedule = Schedule(optimizer="muon", lr=0.1, head_lr=3.0, conv_lr=2.0, momentum=0.8, weight_decay=0.01)
    muon = schedule.make_optimizer([ours, nn.Parameter(torch.zeros(2, 2, 1, 1)), nn.Parameter(torch.zeros(4))])
    assert {group["params"][0].dim(): group.get("lr_factor", 1.0) for group in muon.param_groups} == {
        2: 3.0,
        4: 2.0,
        1: 1.0,
    }
    sgd = torch.optim.SGD([theirs], 0.1, momentum=0.8, nesterov=True, weight_decay=0.01)
    for _ in range(4):
        ours.grad = torch.randn(5, 7)
        theirs.grad = ours.grad.clone()
        muon.step()
        sgd.step()
    torch.testing.assert_close(ours, theirs)


def test_whitened_patches_are_uncorrelated_and_fitted_on_the_first_batch_only() -> None:
    mixed = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    smooth = nn.functional.avg_pool2d(torch.randn(64, 3, 20, 20), 3, 1)
    images = torch.einsum("cd,ndhw->nchw", mixed, smooth) * 5 + 2
    layer = Whitening(3).train()
    white = layer(images)
    assert white.shape == (64, 24, 17, 17)
    torch.testing.assert_close(white[:, :12], -white[:, 12:])
    covariance = torch.cov(white[:, :12].permute(1, 0, 2, 3).flatten(1))
    patches = np.lib.stride_tricks.sliding_window_view(images.double().numpy(), (2, 2), (2, 3))
    variances = np.linalg.eigvalsh(np.cov(patches.transpose(1, 4, 5, 0, 2, 3).reshape(12, -1), bias=True))
    expected = torch.from_numpy(variances / (variances + 0.01)).float()  # 1 except for the noise
    torch.testing.assert_close(covariance.diagonal(), expected, rtol=1e-3, atol=1e-3)
    assert (covariance - covariance.diagonal().diag()).abs().max() < 1e-3
    before = layer.axes.clone()
    layer(torch.randn(8, 3, 20, 20))
    assert torch.equal(layer.axes, before)
    assert not list(layer.parameters())
    other = Whitening(3).train()
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(images), white)


def test_features_in_evaluation_are_the_mean_over_the_image_and_its_flip() -> None:
    torch.manual_seed(0)
    net = Architecture("fast", (3, 32, 32), flip_tta=True)()
    assert isinstance(net, FastNet)
    x = torch.randn(6, 3, 32, 32)
    net.train()
    assert not torch.allclose(net(x), net(x.flip(3)))
    net.eval()
    torch.testing.assert_close(net(x), net(x.flip(3)))
    torch.testing.assert_close(net(x), (net.embed(x) + net.embed(x.flip(3))) / 2)
    assert not torch.allclose(net(x), net.embed(x))


def test_a_teacher_computes_each_image_once() -> None:
    method = make("wa")
    method.build(Architecture("tiny", (1, 8, 8), flip_tta=True))
    method.head.grow(3)
    teacher, x = method.snapshot(), torch.randn(4, 1, 8, 8)
    method.eval()
    torch.testing.assert_close(teacher.features(x), method.backbone.embed(x))
    assert not torch.allclose(method.features(x), method.backbone.embed(x))


def test_small_images_come_first() -> None:
    schedule = Schedule(epochs=8, sizes=(0.5, 0.75, 1.0), size_milestones=(0.5, 0.75))
    assert [schedule.size_at(epoch, 32) for epoch in range(8)] == [16, 16, 16, 16, 24, 24, 32, 32]
    once = replace(schedule, shrink_first_only=True)
    assert [[once.for_step(step).size_at(epoch, 32) for epoch in (0, 7)] for step in (1, 2)] == [[16, 32], [32, 32]]
    augment, pixels = Augment(), torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8)
    images, draws = Images.of(pixels, torch.zeros(5)), torch.rand(5, 9)
    small = augment.batch(images, torch.arange(5), draws, 16)
    assert small.shape == (5, 3, 16, 16)
    assert torch.equal(augment.batch(images, torch.arange(5), draws, 32), augment.batch(images, torch.arange(5), draws))
    # an area of one colour keeps its value
    assert (downscale(torch.full((1, 3, 32, 24), 77, dtype=torch.uint8), 20) == 77).all()
    assert downscale(torch.zeros(1, 3, 32, 24, dtype=torch.uint8), 16).shape == (1, 3, 16, 12)
    with pytest.raises(UsageError, match="one value more than"):
        Schedule(sizes=(0.5, 1.0))


def test_images_too_small_for_a_network_are_rejected_before_training() -> None:
    data = Trial("wa", {}).data()
    with pytest.raises(UsageError, match="8×8 images are too small for the backbone fast"):
        Experiment.prepare(resolve("digits", overrides={"net": {"backbone": "fast"}}), data)
    sizes = {"train": {"sizes": [0.25, 1.0], "size_milestones": [0.5]}}
    with pytest.raises(UsageError, match="2×2 images are too small for the backbone tiny"):
        Experiment.prepare(resolve("digits", overrides=sizes), data)


def test_divide_lr_applies_to_filters_but_not_to_heads() -> None:
    schedule = Schedule(optimizer="muon", lr=0.1, head_lr=2.0, conv_lr=3.0, divide_lr=True)
    parameters = [nn.Parameter(torch.zeros(2, 2, 3, 3)), nn.Parameter(torch.zeros(2, 2))]
    for step in (1, 2, 5):
        now = schedule.for_step(step).for_step(step)  # the second call changes nothing
        factors = [group["lr_factor"] for group in now.make_optimizer(parameters).param_groups]
        assert [now.lr * factor for factor in factors] == pytest.approx([0.3 / step, 0.2])
    with pytest.raises(UsageError, match=r"train\.head_lr must be above 0"):
        Schedule(head_lr=0.0)


def test_reflected_padding_equals_that_of_numpy() -> None:
    pixels = torch.randint(1, 256, (40, 2, 6, 5), dtype=torch.uint8)
    draws = torch.rand(40, 3)
    shifted = shift_and_flip(pixels, 2, True, draws, reflect=True)
    padded = np.pad(pixels.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)), mode="reflect")
    for image, canvas, (down, right, flip) in zip(shifted.numpy(), padded, draws.tolist(), strict=True):
        top, left = int(down * 5), int(right * 5)
        cut = canvas[:, top : top + 6, left : left + 5]
        assert (image == (cut[:, :, ::-1] if flip < 0.5 else cut)).all()


def test_alternate_flip_flips_each_image_in_every_other_epoch() -> None:
    pixels = torch.zeros(100, 1, 2, 2, dtype=torch.uint8)
    pixels[:, :, :, 1] = 255
    images, augment = Images.of(pixels, torch.zeros(100)), Augment(flip=True, alternate_flip=True)
    flipped = []
    for epoch in range(4):
        flips = augment.flip_draws(100, epoch, torch.Generator().manual_seed(3))
        draws = augment.draw(100, torch.Generator().manual_seed(epoch), flips)
        flipped.append(augment.batch(images, torch.arange(100), draws)[:, 0, 0, 0] > 0)
    assert torch.equal(flipped[0], flipped[2])
    assert torch.equal(flipped[1], flipped[3])
    assert torch.equal(flipped[0], ~flipped[1])
    assert 30 < flipped[0].sum() < 70
    assert Augment(flip=True).flip_draws(100, 0, torch.Generator()) is None


class Counter(nn.Module):
    """Counts images in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.images = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.images += 0 if self.training else len(x)
        return x


def count_images(method: Method) -> Counter:
    """Count the images that the method's backbone computes from now on."""
    net, counter = method.backbone, Counter().train(method.training)
    assert isinstance(net, SmallNet)
    net.convs[0] = nn.Sequential(net.convs[0], counter)
    return counter


def fit_of(experiment: Experiment, index: int) -> Fit:
    step = experiment.stream[index]
    return experiment.learner.fit(step, experiment.training_images(step))


@pytest.mark.parametrize("changes", [False, True])
def test_evaluating_before_and_after_a_correction_is_one_pass_unless_the_backbone_changes(changes: bool) -> None:
    experiment = Trial("wa", {"reinit_head": False}).experiment()
    learn_step(fit_of(experiment, 1))
    fit, tests = fit_of(experiment, 2), experiment.stream.tests(experiment.stream[2])
    counter = count_images(fit.method)
    if changes:
        end = fit.method.end

        def end_and_change(step: Step, fit: Fit) -> dict[str, float]:
            with torch.no_grad():
                fit.method.backbone.get_parameter("norms.0.bias").add_(0.3)
            return end(step, fit)

        fit.method.end = end_and_change  # type: ignore[method-assign]
    outcome = train_and_evaluate(fit, tests, range(fit.step.seen))
    herded = len(fit.step.images)
    assert counter.images == herded + (2 if changes else 1) * len(tests)
    after = predict_all(InferencePass(fit.method, tests, fit.augment, fit.runtime))
    assert torch.equal(outcome.after.confidence, after.confidence)
    assert not torch.equal(outcome.before.confidence, outcome.after.confidence)


@pytest.mark.parametrize("keep", [False, True])
def test_features_are_kept_only_if_asked_and_only_until_the_backbone_changes(keep: bool) -> None:
    experiment = Trial("wa", {}).experiment()
    learner, tests = experiment.learner, experiment.stream.test
    learner.method.head.grow(3)
    counter = count_images(learner.method)
    images = InferencePass(learner.method, tests, learner.augment, learner.settings.runtime, keep)
    first = images.map_features(lambda features: features)
    torch.testing.assert_close(first, images.map(learner.method.features))
    counter.images = 0
    learner.method.head.weight.data.mul_(2)
    assert torch.equal(images.map_features(lambda features: 2 * features), 2 * first)
    assert counter.images == (0 if keep else len(tests))
    for name in ("norms.1.bias", "norms.1.running_mean"):  # a parameter and a buffer
        counter.images = 0
        learner.method.backbone.state_dict()[name].add_(0.5)
        second = images.map_features(lambda features: features)
        assert counter.images == len(tests)
        assert not torch.equal(first, second)
        first = second


def test_selecting_exemplars_computes_each_image_once_and_does_not_change_the_teacher() -> None:
    experiment = Trial("wa", {}).experiment()
    learn_step(fit_of(experiment, 1))
    fit = fit_of(experiment, 2)
    fit.method.backbone.flip_tta = True
    train_step(fit)
    counter = count_images(fit.method)
    fit.update_memory()
    assert fit.method.teacher is not None
    assert counter.images == len(fit.step.images)
    assert fit.method.backbone.flip_tta
    assert not fit.method.teacher.backbone.flip_tta


@pytest.mark.parametrize(("method", "old"), [("wa", 4 * 5), ("joint", 40), ("lwf", 0)])
def test_an_epoch_shows_exemplars_as_often_as_the_schedule_says(method: str, old: int) -> None:
    """Five exemplars per class, shown twice, and in step 2 four times.

    Joint training shows all old images once, LwF none.
    """
    overrides: dict[str, dict[str, Any]] = {
        "train": {"exemplar_repeats": 2, "multiply_repeats": True, "epochs": 1, "first_epochs": 2, "batch_size": 16},
        "stream": {"steps": "4,4,2"},
        "memory": {"size": 20},
    }
    experiment = Experiment.prepare(resolve("digits", method, overrides=overrides), Trial(method, {}).data(40))
    labels: list[Tensor] = []
    loss = experiment.learner.method.loss

    def recorded(x: Tensor, y: Tensor) -> Tensor:
        labels.append(y)
        return loss(x, y)

    experiment.learner.method.loss = recorded  # type: ignore[method-assign]
    shown = []
    for step in list(experiment.stream)[:2]:
        labels.clear()
        fit = fit_of(experiment, step.index)
        learn_step(fit)
        shown.append(torch.bincount(torch.cat(labels)).tolist())
        assert fit.loop.images_seen == sum(shown[-1]) == experiment.workloads()[step.index - 1]
    assert shown == [[2 * 40] * 4, [old] * 4 + [40] * 4]


def test_a_further_stage_shows_each_image_once_at_full_size() -> None:
    main = resolve("cifar100", "wa", "cifar100-fast").train
    further = main.for_stage(epochs=9, lr=0.5, lr_schedule="milestones", milestones=(4,)).for_step(5)
    assert (further.epochs, further.exemplar_repeats, further.sizes) == (9, 1, (1.0,))
    assert main.for_stage(epochs=2).for_step(1).epochs == 2
    assert further.weight_decay == main.weight_decay


def test_numbers_of_epochs_and_repeats_below_one_are_rejected() -> None:
    for setting in ("first_epochs", "exemplar_repeats"):
        with pytest.raises(UsageError, match=f"train.{setting} must be between 1 and .*, got 0"):
            Schedule(**{setting: 0})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="lie beyond the 2 epochs"):
        Schedule(epochs=9, first_epochs=2, lr_schedule="milestones", milestones=(4,))
