"""What the fast recipes are made of: Muon, whitened patches, mirror images, small pictures first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise.data.augment import Augment, shift_and_mirror, shrink
from equipoise.data.images import Images
from equipoise.data.stream import Step
from equipoise.errors import UsageError
from equipoise.learn.method import Method
from equipoise.learn.muon import Muon
from equipoise.learn.backbones.base import Architecture, FastNet, SmallNet, Whitening
from equipoise.learn.schedule import Schedule
from equipoise.learn.loop import Fit, learn_step
from equipoise.methods import make
from equipoise.engine.evaluate import predict_all
from equipoise.study.experiment import Experiment
from equipoise.engine.step import KnownFeatures, train_and_evaluate
from equipoise.engine.recipes import resolve
from equipoise.testing import Trial


def pulled(gradient: np.ndarray) -> np.ndarray:
    """Newton–Schulz as its definition has it, on singular values: three times 3.4445 s − 4.775 s³ + 2.0315 s⁵."""
    u, s, v = np.linalg.svd(gradient, full_matrices=False)
    s = s / np.sqrt((s**2).sum())
    for _ in range(3):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    pulled: np.ndarray = (u * s) @ v
    return pulled


@pytest.mark.parametrize("shape", [(4, 5, 3, 3), (20, 2, 3, 3)])
def test_muon_turns_filters_as_the_singular_values_say(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    filters = nn.Parameter(torch.randn(shape, generator=generator).to(memory_format=torch.channels_last))
    optimizer = Muon([{"params": [filters]}], lr=0.1, momentum=0.6, weight_decay=0.5)
    expected, buffer = filters.detach().double().numpy().copy(), np.zeros(shape)
    for _ in range(3):
        gradient = torch.randn(shape, generator=generator)
        filters.grad = gradient.to(memory_format=torch.channels_last)
        optimizer.step()
        buffer = 0.6 * buffer + gradient.double().numpy()
        update = pulled((gradient.double().numpy() + 0.6 * buffer).reshape(shape[0], -1)).reshape(shape)
        expected = expected * np.sqrt(shape[0]) / np.sqrt((expected**2).sum()) - 0.1 * update
    torch.testing.assert_close(filters.detach(), torch.tensor(expected).float(), rtol=1e-4, atol=1e-5)
    assert filters.is_contiguous(memory_format=torch.channels_last)


def test_muon_does_not_care_for_the_scale_of_the_loss() -> None:
    moved = []
    for scale in (1.0, 1000.0):
        filters = nn.Parameter(torch.ones(3, 3, 2, 2))
        filters.grad = scale * torch.randn(3, 3, 2, 2, generator=torch.Generator().manual_seed(0))
        Muon([{"params": [filters]}], 0.1, 0.6, 0.0).step()
        moved.append(filters.detach())
    torch.testing.assert_close(moved[0], moved[1], rtol=1e-4, atol=1e-6)


def test_muon_is_sgd_for_all_but_filters() -> None:
    start = torch.randn(5, 7)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    schedule = Schedule(optimizer="muon", lr=0.1, head_lr=3.0, filter_lr=2.0, momentum=0.8, weight_decay=0.01)
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


def test_whitened_patches_are_uncorrelated_and_stay_as_the_first_batch_made_them() -> None:
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
    expected = torch.from_numpy(variances / (variances + 0.01)).float()  # 1 but for the noise
    torch.testing.assert_close(covariance.diagonal(), expected, rtol=1e-3, atol=1e-3)
    assert (covariance - covariance.diagonal().diag()).abs().max() < 1e-3
    before = layer.axes.clone()
    layer(torch.randn(8, 3, 20, 20))
    assert torch.equal(layer.axes, before)
    assert not list(layer.parameters())
    other = Whitening(3).train()
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(images), white)


def test_features_outside_training_are_those_of_the_image_and_its_mirror_image() -> None:
    torch.manual_seed(0)
    net = Architecture("fast", (3, 32, 32), mirror=True)()
    assert isinstance(net, FastNet)
    x = torch.randn(6, 3, 32, 32)
    net.train()
    assert not torch.allclose(net(x), net(x.flip(3)))
    net.eval()
    torch.testing.assert_close(net(x), net(x.flip(3)))
    torch.testing.assert_close(net(x), (net.look(x) + net.look(x.flip(3))) / 2)
    assert not torch.allclose(net(x), net.look(x))


def test_a_teacher_is_asked_once_an_image() -> None:
    method = make("wa")
    method.build(Architecture("tiny", (1, 8, 8), mirror=True))
    method.head.grow(3)
    teacher, x = method.snapshot(), torch.randn(4, 1, 8, 8)
    method.eval()
    torch.testing.assert_close(teacher.features(x), method.backbone.look(x))
    assert not torch.allclose(method.features(x), method.backbone.look(x))


def test_small_pictures_come_first() -> None:
    schedule = Schedule(epochs=8, sizes=(0.5, 0.75, 1.0), size_milestones=(0.5, 0.75))
    assert [schedule.size_at(epoch, 32) for epoch in range(8)] == [16, 16, 16, 16, 24, 24, 32, 32]
    once = replace(schedule, shrink_first_only=True)
    assert [[once.for_step(step).size_at(epoch, 32) for epoch in (0, 7)] for step in (1, 2)] == [[16, 32], [32, 32]]
    augment, pixels = Augment(), torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8)
    images, draws = Images.of(pixels, torch.zeros(5)), torch.rand(5, 9)
    small = augment.batch(images, torch.arange(5), draws, 16)
    assert small.shape == (5, 3, 16, 16)
    assert torch.equal(augment.batch(images, torch.arange(5), draws, 32), augment.batch(images, torch.arange(5), draws))
    # a plain area has the same value when it is small
    assert (shrink(torch.full((1, 3, 32, 24), 77, dtype=torch.uint8), 20) == 77).all()
    assert shrink(torch.zeros(1, 3, 32, 24, dtype=torch.uint8), 16).shape == (1, 3, 16, 12)
    with pytest.raises(UsageError, match="one more than"):
        Schedule(sizes=(0.5, 1.0))


def test_pictures_too_small_for_a_network_are_refused_before_anything_is_learned() -> None:
    data = Trial("wa", {}).data()
    with pytest.raises(UsageError, match="images of 8×8 are too small for the backbone fast"):
        Experiment.prepare(resolve("digits", overrides={"net": {"backbone": "fast"}}), data)
    sizes = {"train": {"sizes": [0.25, 1.0], "size_milestones": [0.5]}}
    with pytest.raises(UsageError, match="images of 2×2 are too small for the backbone tiny"):
        Experiment.prepare(resolve("digits", overrides=sizes), data)


def test_later_steps_move_filters_less_and_heads_as_much() -> None:
    schedule = Schedule(optimizer="muon", lr=0.1, head_lr=2.0, filter_lr=3.0, divide_lr=True)
    parameters = [nn.Parameter(torch.zeros(2, 2, 3, 3)), nn.Parameter(torch.zeros(2, 2))]
    for step in (1, 2, 5):
        now = schedule.for_step(step).for_step(step)  # settled once
        factors = [group["lr_factor"] for group in now.make_optimizer(parameters).param_groups]
        assert [now.lr * factor for factor in factors] == pytest.approx([0.3 / step, 0.2])
    with pytest.raises(UsageError, match="above 0"):
        Schedule(head_lr=0.0)


def test_reflected_padding_is_numpys() -> None:
    pixels = torch.randint(1, 256, (40, 2, 6, 5), dtype=torch.uint8)
    draws = torch.rand(40, 3)
    shifted = shift_and_mirror(pixels, 2, True, draws, reflect=True)
    padded = np.pad(pixels.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)), mode="reflect")
    for image, canvas, (down, right, mirror) in zip(shifted.numpy(), padded, draws.tolist(), strict=True):
        top, left = int(down * 5), int(right * 5)
        cut = canvas[:, top : top + 6, left : left + 5]
        assert (image == (cut[:, :, ::-1] if mirror < 0.5 else cut)).all()


def test_each_image_is_mirrored_in_every_other_epoch() -> None:
    pixels = torch.zeros(100, 1, 2, 2, dtype=torch.uint8)
    pixels[:, :, :, 1] = 255
    images, augment = Images.of(pixels, torch.zeros(100)), Augment(flip=True, alternate=True)
    mirrored = []
    for epoch in range(4):
        turns = augment.mirror_draws(100, epoch, torch.Generator().manual_seed(3))
        draws = augment.draw(100, torch.Generator().manual_seed(epoch), turns)
        mirrored.append(augment.batch(images, torch.arange(100), draws)[:, 0, 0, 0] > 0)
    assert torch.equal(mirrored[0], mirrored[2])
    assert torch.equal(mirrored[1], mirrored[3])
    assert torch.equal(mirrored[0], ~mirrored[1])
    assert 30 < mirrored[0].sum() < 70
    assert Augment(flip=True).mirror_draws(100, 0, torch.Generator()) is None


class Counting(nn.Module):
    """Counts the images it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.images = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.images += 0 if self.training else len(x)
        return x


def track(method: Method) -> Counting:
    """A count of the images that the method's network is asked about from now on."""
    net, counting = method.backbone, Counting().train(method.training)
    assert isinstance(net, SmallNet)
    net.convs[0] = nn.Sequential(net.convs[0], counting)
    return counting


@pytest.mark.parametrize("moves", [False, True])
def test_judging_before_and_after_a_correction_is_one_pass_unless_it_moves_the_network(moves: bool) -> None:
    experiment = Trial("wa", {"redraw": False}).experiment()
    learn_step(experiment.fit(experiment.stream[1]), lambda: None)
    fit, tests = experiment.fit(experiment.stream[2]), experiment.stream.tests(experiment.stream[2])
    counting = track(fit.method)
    if moves:
        end = fit.method.end

        def end_and_move(step: Step, fit: Fit) -> dict[str, float]:
            with torch.no_grad():
                fit.method.backbone.get_parameter("norms.0.bias").add_(0.3)
            return end(step, fit)

        fit.method.end = end_and_move  # type: ignore[method-assign]
    lesson = train_and_evaluate(fit, tests)
    herded = len(fit.step.images)
    assert counting.images == herded + (2 if moves else 1) * len(tests)
    after = predict_all(fit.method, tests, fit.augment, fit.runtime)
    assert torch.equal(lesson.after.confidence, after.confidence)
    assert not torch.equal(lesson.before.confidence, lesson.after.confidence)


def test_features_are_known_again_only_for_the_same_images() -> None:
    method = make("wa")
    method.build(Architecture("tiny", (1, 8, 8)))
    method.head.grow(3)
    method.eval()
    x, known = torch.randn(4, 1, 8, 8), KnownFeatures()
    with torch.no_grad(), known.asked_by(method):
        first = method.features(x)
    with torch.no_grad(), known.asked_by(method):
        assert method.features(x) is first
        torch.testing.assert_close(method.features(x.flip(3)), known.backbone(x.flip(3)))
    with torch.no_grad(), known.asked_by(method):
        torch.testing.assert_close(method.features(x.flip(3)), known.backbone(x.flip(3)))
        assert method.backbone.maps(x)[-1].shape[1] == method.backbone.width
    assert method.backbone is known.backbone


def test_choosing_exemplars_looks_at_each_image_once_and_leaves_the_teacher_alone() -> None:
    experiment = Trial("wa", {}).experiment()
    learn_step(experiment.fit(experiment.stream[1]), lambda: None)
    fit = experiment.fit(experiment.stream[2])
    fit.method.backbone.mirror = True
    seen = []

    def judge() -> None:
        counting = track(fit.method)
        fit.remember()
        assert fit.method.teacher is not None
        seen.extend([counting.images, fit.method.backbone.mirror, fit.method.teacher.backbone.mirror])

    learn_step(fit, judge)
    assert seen == [len(fit.step.images), True, False]


@pytest.mark.parametrize(("method", "old"), [("wa", 4 * 5), ("joint", 40), ("lwf", 0)])
def test_an_epoch_shows_exemplars_as_often_as_the_schedule_says(method: str, old: int) -> None:
    """Five exemplars a class, twice, and in step 2 twice that.

    Joint training has no exemplars but all images, each once; LwF has nothing.
    """
    overrides: dict[str, dict[str, Any]] = {
        "train": {"exemplar_repeats": 2, "multiply_repeats": True, "epochs": 1, "first_epochs": 2, "batch_size": 16},
        "stream": {"steps": "4,4,2"},
        "memory": {"size": 20},
    }
    experiment = Experiment.prepare(resolve("digits", method, overrides=overrides), Trial(method, {}).data(40))
    labels: list[Tensor] = []
    loss = experiment.method.loss

    def noted(x: Tensor, y: Tensor) -> Tensor:
        labels.append(y)
        return loss(x, y)

    experiment.method.loss = noted  # type: ignore[method-assign]
    shown = []
    for step in list(experiment.stream)[:2]:
        labels.clear()
        fit = experiment.fit(step)
        learn_step(fit, lambda: None)
        shown.append(torch.bincount(torch.cat(labels)).tolist())
        assert fit.images_seen == sum(shown[-1]) == experiment.loads()[step.index - 1]
    assert shown == [[2 * 40] * 4, [old] * 4 + [40] * 4]


def test_a_further_stage_shows_each_of_its_images_once_as_it_is() -> None:
    main = resolve("cifar100", "wa", "cifar100-fast").train
    further = main.further(epochs=9, lr=0.5, shape="milestones", milestones=(4,)).for_step(5)
    assert (further.epochs, further.exemplar_repeats, further.sizes) == (9, 1, (1.0,))
    assert main.further(epochs=2).for_step(1).epochs == 2
    assert further.weight_decay == main.weight_decay


def test_numbers_of_epochs_and_repeats_below_one_are_refused() -> None:
    for setting in ("first_epochs", "exemplar_repeats"):
        with pytest.raises(UsageError, match=f"train.{setting} is 0, but it must be at least 1"):
            Schedule(**{setting: 0})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="reach past the 2 epochs"):
        Schedule(epochs=9, first_epochs=2, shape="milestones", milestones=(4,))
