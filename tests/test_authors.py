"""Where a method's authors do something that is easily missed: known answers, and their settings in the recipes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data.augment import Augment, rotate
from equipoise.data.images import Images
from equipoise.data.memory import Memory
from equipoise.engine.recipes import resolve
from equipoise.engine.settings import Settings
from equipoise.engine.step import learn_step
from equipoise.errors import UsageError
from equipoise.learn.backbones import Architecture
from equipoise.learn.fit import Fit
from equipoise.learn.loop import TrainingLoop, epoch_rows
from equipoise.learn.schedule import Schedule
from equipoise.methods.bic import BiC
from equipoise.methods.der import DER
from equipoise.methods.il2m import IL2M
from equipoise.methods.lucir import LUCIR
from equipoise.methods.registry import make, registry
from equipoise.methods.rps import RPS, PathLayer
from equipoise.methods.si import SI
from tests.test_methods import AUGMENT, MIXED, NEW, OLD, Learned, array, begin, cross_entropy, fit_for, make_images

PAPER = {"cifar100": "cifar100-paper", "imagenet100": "imagenet100-paper", "imagenet1000": "imagenet1000-paper"}


def paper(method: str, dataset: str = "cifar100") -> Settings:
    return resolve(dataset, method, PAPER[dataset])


def lite(method: str) -> Settings:
    return resolve("cifar100", method, "cifar100-lite")


# ---- EEIL


def test_eeil_shows_twelve_versions_of_each_image() -> None:
    """Original, another brightness, another contrast; the same cropped; and all six flipped (authors' code)."""
    augment = Augment((0.5,), (0.25,), pad=4, flip=True, brightness=63 / 255, contrast=0.8, versions=12)
    pixels = torch.randint(60, 190, (1, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images, where = Images.of(pixels), torch.zeros(12, dtype=torch.long)
    draws = augment.draw(12, torch.Generator().manual_seed(3), versions=torch.arange(12))
    made = (augment.batch(images, where, draws) * 0.25 + 0.5).mul(255).round().numpy()
    original = pixels[0].double().numpy()
    mean = original.mean((1, 2), keepdims=True)
    for version, (down, right, _, brightness, contrast) in enumerate(draws[:, 4:].tolist()):
        changed = [
            original,
            original + 63 * (2 * brightness - 1),
            (original - mean) * (1 + 0.8 * (2 * contrast - 1)) + mean,
        ][version % 3]
        expected = np.floor(np.clip(changed, 0, 255))
        if version % 6 >= 3:
            padded = np.pad(expected, ((0, 0), (4, 4), (4, 4)))
            top, left = int(down * 9), int(right * 9)
            expected = padded[:, top : top + 32, left : left + 32]
        if version >= 6:
            expected = expected[:, :, ::-1]
        np.testing.assert_allclose(made[version], expected, atol=1)  # floats round differently
        assert (np.abs(made[version] - original) > 2).any() == (version > 0)


@pytest.mark.parametrize("shown", [12, 1])
def test_an_epoch_shows_each_image_in_different_versions(shown: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All twelve, or one of them, drawn again in each epoch."""
    method = make("eeil", {"noise": 0.0})
    method.build(Architecture("tiny", (1, 8, 8)))
    fit = fit_for(method, 1, make_images([0, 1, 2] * 5), Memory(30), epochs=2)
    fit.loop.augment = Augment((0.5,), (0.25,), pad=1, flip=True, versions=12)
    seen: list[list[tuple[int, int]]] = []
    original_epoch, original_draw = TrainingLoop._epoch, Augment.draw
    original_batch = Augment.batch

    def draw(self: Augment, count: int, generator: torch.Generator, flips: Any = None, versions: Any = None) -> Tensor:
        draws = original_draw(self, count, generator, flips, versions)
        draws[:, 0] = versions  # not used without a resized crop
        return draws

    def batch(self: Augment, images: Images, where: Tensor, draws: Tensor, size: int | None = None) -> Tensor:
        seen[-1] += zip(where.tolist(), draws[:, 0].int().tolist(), strict=True)
        return original_batch(self, images, where, draws, size)

    def epoch(self: TrainingLoop, *rest: Any) -> tuple[Tensor, int]:
        seen.append([])
        return original_epoch(self, *rest)

    monkeypatch.setattr(Augment, "draw", draw)
    monkeypatch.setattr(Augment, "batch", batch)
    monkeypatch.setattr(TrainingLoop, "_epoch", epoch)
    begin(method, fit.step, fit)
    fit.train(fit.step.images, schedule=Schedule(epochs=2, batch_size=16, lr=0.01, versions=shown))
    for pairs in seen:
        assert len(pairs) == len(set(pairs)) == 15 * shown
        assert sorted({image for image, _ in pairs}) == list(range(15))
    if shown == 1:
        assert seen[0] != seen[1]
        assert len({version for _, version in seen[0]}) > 3


def test_eeil_fine_tuning_shows_its_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = Learned("eeil", finetune_epochs=1, finetune_versions=12)
    shown: list[int] = []
    original = Fit.train

    def spy(self: Fit, images: Images, loss: Any, schedule: Schedule, **named: Any) -> None:
        shown.append(len(epoch_rows(self.method, self.step, images, schedule)) // len(images))
        original(self, images, loss, schedule, **named)

    monkeypatch.setattr(Fit, "train", spy)
    learned.method.end(learned.second.step, learned.second)
    assert shown == [12]


def test_eeil_fine_tunes_with_a_hundredth_of_the_rate_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    schedules: list[Schedule] = []
    learned = Learned("eeil", finetune_epochs=30)
    monkeypatch.setattr(Fit, "train", lambda fit, images, loss, schedule, **named: schedules.append(schedule))
    learned.method.end(learned.second.step, learned.second)
    (schedule,) = schedules
    found = [schedule.lr_at(epoch) for epoch in (0, 9, 10, 19, 20, 29)]
    assert found == pytest.approx([0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001])


def test_eeil_shows_one_version_per_epoch_in_short_recipes() -> None:
    """So that an epoch costs what it costs other methods."""
    assert paper("eeil").augment.items() <= lite("eeil").augment.items()
    assert (lite("eeil").augment["versions"], lite("eeil").train.versions) == (12, 1)


def test_eeil_versions_on_imagenet_change_brightness_and_contrast_half_of_the_time() -> None:
    settings = paper("eeil", "imagenet1000")
    assert not settings.fields["finetune_augment"]
    augment = Augment((0.5,), (0.25,), flip=True, **{k: settings.augment[k] for k in ("versions", "brightness")})
    versions = torch.arange(2).repeat(1000)
    draws = augment.draw(2000, torch.Generator().manual_seed(0), versions=versions)
    assert torch.equal(draws[:, 6] < 0.5, versions == 1)  # flipped
    for column in (7, 8):
        changed = draws[:, column][draws[:, column] != 0.5]
        assert 900 < len(changed) < 1100
        assert changed.min() < 0.01
        assert changed.max() > 0.99


def test_eeil_can_fine_tune_without_augmentation(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    for augment in (True, False):
        learned = Learned("eeil", finetune_epochs=1, finetune_augment=augment)
        monkeypatch.setattr(Fit, "train", lambda *rest, **named: given.append(named["augment"]))
        learned.method.end(learned.second.step, learned.second)
        monkeypatch.undo()
    assert given == [True, False]


def test_milestones_of_the_first_step_must_lie_within_it() -> None:
    with pytest.raises(UsageError, match=r"train.first_milestones \[25\] lie beyond the 20 epochs"):
        Schedule(epochs=40, first_epochs=20, lr_schedule="milestones", milestones=(30,), first_milestones=(25,))


# ---- IL2M


def test_il2m_corrects_where_softmax_is_saturated() -> None:
    """Means of logits still differ when all probabilities are near 1."""
    first, now = torch.tensor([[14.0, 0.0, 0.0]]), torch.tensor([[11.0, 0.0, 0.0]])
    ratios = {}
    for score in ("logits", "softmax"):
        method = make("il2m", {"score": score} if score == "softmax" else {})
        assert isinstance(method, IL2M)
        assert method.score == score  # logits are the default
        level = [(x if score == "logits" else x.softmax(1))[0, 0] for x in (first, now)]
        method.sizes = torch.tensor([1, 2])
        method.first, method.now = (torch.stack([mean, *torch.ones(2)]) for mean in level)
        method.confidence = torch.ones(2)
        scores = torch.tensor([[0.2, 0.5, 0.1]])
        ratios[score] = (method.rectify(scores)[0, 0] / scores[0, 0]).item()
    assert ratios["logits"] == pytest.approx(14 / 11)
    assert ratios["softmax"] == pytest.approx(1, abs=1e-3)


def test_il2m_can_draw_its_head_again() -> None:
    for reinit in (False, True):
        learned = Learned("il2m", reinit_head=reinit)
        assert torch.equal(learned.method.head.weight[:OLD], learned.before.head.weight) != reinit


# ---- RPS-Net


def test_rps_has_the_authors_network_on_cifar() -> None:
    settings = paper("rps")
    method = make("rps", {**settings.fields, "parallel": 1})
    assert isinstance(method, RPS)
    method.build(Architecture("tiny", (3, 32, 32)))
    shapes = [tuple(maps.shape[1:3]) for maps in method.paths.maps(torch.zeros(2, 3, 32, 32))]
    widths, sides = [64, 64, 64, 128, 128, 256, 256, 512, 512], [32, 32, 32, 32, 16, 16, 8, 8, 8]
    assert shapes == list(zip(widths, sides, strict=True))
    layers = [layer for layer in method.paths.layers if isinstance(layer, PathLayer)]
    convs = [sum(isinstance(part, nn.Conv2d) for part in layer.parallel[0].modules()) for layer in layers]
    assert convs == [1, 2, 2, 2, 2, 2, 2, 2, 2]
    assert [number for number, layer in enumerate(layers, 1) if layer.shortcut is not None] == [4, 6, 8]
    assert settings.augment["rotation"] == 10
    assert settings.memory["selection"] == "random"


def test_rps_has_the_authors_network_on_imagenet() -> None:
    """A 7×7 stem with stride 2, and pooling after layers 3, 5, 7 and 9."""
    for dataset in ("imagenet100", "imagenet1000"):
        settings = paper("rps", dataset)
        method = make("rps", {**settings.fields, "parallel": 1})
        assert isinstance(method, RPS)
        method.build(Architecture("tiny", (3, 224, 224)))
        sides = [maps.shape[2] for maps in method.paths.maps(torch.zeros(1, 3, 224, 224))]
        assert sides == [112, 112, 56, 56, 28, 28, 14, 14, 7]
        assert settings.memory["selection"] == "random"


def test_the_short_recipe_of_rps_has_nine_narrow_layers() -> None:
    settings = lite("rps")
    assert [2 * width for width in settings.fields["widths"]] == list(paper("rps").fields["widths"])
    assert settings.augment["rotation"] == 10
    assert settings.memory["selection"] == "random"
    assert settings.train.head_lr < lite("wa").train.head_lr  # the distillation of later steps has a large weight


def test_rotation_turns_an_image_about_its_centre() -> None:
    image = torch.zeros(1, 1, 9, 9, dtype=torch.uint8)
    image[0, 0, 4, 5:] = 200  # a ray to the right
    up = rotate(image, torch.tensor([90.0]))[0, 0]
    assert up[:4, 4].eq(200).all() or up[5:, 4].eq(200).all()
    assert int(up.eq(200).sum()) == 4
    assert torch.equal(rotate(image, torch.tensor([0.0])), image)
    wide = torch.zeros(1, 1, 9, 17, dtype=torch.uint8)
    wide[0, 0, 4, 9:12] = 200  # three pixels: still three when upright, although the image is not square
    assert int(rotate(wide, torch.tensor([90.0]))[0, 0, :, 8].eq(200).sum()) == 3


def test_rotation_is_drawn_between_its_limits_and_leaves_other_draws_alone() -> None:
    plain, turned = Augment(pad=2, flip=True), Augment(pad=2, flip=True, rotation=10.0)
    draws = [augment.draw(6, torch.Generator().manual_seed(0)) for augment in (plain, turned)]
    assert torch.equal(draws[0], draws[1][:, : draws[0].shape[1]])
    pixels = torch.full((6, 1, 33, 33), 255, dtype=torch.uint8)
    made = turned.batch(Images.of(pixels), torch.arange(6), draws[1])
    assert made.shape == (6, 1, 33, 33)
    assert not torch.equal(made, plain.batch(Images.of(pixels), torch.arange(6), draws[0]))


# ---- DER


def test_a_brightness_factor_multiplies_as_torchvision_does() -> None:
    augment = Augment((0.0,), (1.0,), brightness_factor=63 / 255)
    pixels = torch.tensor([0, 100, 200, 255], dtype=torch.uint8).expand(50, 3, 1, 4)
    draws = augment.draw(50, torch.Generator().manual_seed(0))
    made = augment.batch(Images.of(pixels), torch.arange(50), draws) * 255
    factors = 1 + 63 / 255 * (2 * draws[:, 7] - 1)
    expected = (factors[:, None] * torch.tensor([0.0, 100.0, 200.0, 255.0])).clamp(max=255).floor()
    torch.testing.assert_close(made[:, 0, 0], expected, atol=1e-3, rtol=0)
    assert 0.75 < float(factors.min()) < 0.8


def test_der_reinitialises_both_heads_after_the_warm_up() -> None:
    learned = Learned("der", reinit_after=2)
    method = learned.method
    assert isinstance(method, DER)
    heads = [method.head.weight.detach().clone(), method.aux_head.weight.detach().clone()]
    parameters = [id(method.head.weight), id(method.aux_head.weight)]
    for epoch in (0, 1, 3):
        method.before_epoch(epoch)
        assert torch.equal(method.head.weight, heads[0])
    method.before_epoch(2)
    for now, then in zip((method.head.weight, method.aux_head.weight), heads, strict=True):
        assert not torch.isclose(now, then).any()
        assert now.abs().max() <= now.shape[1] ** -0.5
    assert [id(method.head.weight), id(method.aux_head.weight)] == parameters  # the optimizer still has them


def test_resnet18_for_cifar_starts_with_a_3x3_convolution_and_identities() -> None:
    net = Architecture("resnet18-cifar", (3, 32, 32))().eval()
    x = torch.randn(2, 3, 32, 32)
    maps = net.maps(x)
    assert [tuple(each.shape[1:]) for each in maps] == [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]
    convs = [part for part in net.modules() if isinstance(part, nn.Conv2d)]
    assert convs[0].kernel_size == (3, 3)
    assert sum(p.numel() for p in net.parameters()) == 11_168_832  # torchvision's 11,689,512 - fc 513,000 - stem 7,680
    stem: Any = net.stem
    torch.testing.assert_close(maps[0], stem(x))  # both blocks of the first group are identities at first


@pytest.mark.parametrize("name", sorted(registry()))
def test_resnet18_for_cifar_works_with_every_method(name: str) -> None:
    """All but RPS-Net, which builds its own network, train it."""
    method = make(name, {"projection": 64} if name in ("acil", "ranpac") else {})
    method.build(Architecture("resnet18-cifar", (3, 32, 32)))
    memory = Memory(8)
    for index, labels in ((1, [0, 1, 2] * 2), (2, [3, 4] * 2)):
        images = make_images(labels, seed=index)
        big = images.read(torch.arange(len(images))).repeat(1, 3, 4, 4)
        fit = fit_for(method, index, Images.of(big, images.labels), memory)
        begin(method, fit.step, fit)
        if fit.images is None:
            continue
        x = AUGMENT.plain(fit.images, torch.arange(len(fit.images)))
        loss = method.train().loss(x, fit.images.labels)
        loss.backward()
        assert loss.isfinite()
        shapes = {tuple(weight.shape) for weight in method.parameters()}
        assert ((512, 512, 3, 3) in shapes) == (name != "rps")  # the last stage


def test_podnet_distils_all_maps_of_resnet18_for_cifar_but_the_last_after_their_relu() -> None:
    maps = Architecture("resnet18-cifar", (3, 32, 32))(make("podnet").final_relu).maps(
        torch.randn(2, 3, 32, 32), before_last=True
    )
    assert all((each >= 0).all() for each in maps[:-1])


# ---- biases and future units

WITH_BIAS = {"bic", "icarl", "lwf-mc", "eeil", "il2m", "rps", "foster", "memo"}


@pytest.mark.parametrize("name", sorted(registry()))
def test_a_bias_can_be_given_to_every_linear_head(name: str) -> None:
    plain = make(name)
    if not plain.has_linear_head:
        assert not plain.bias
        with pytest.raises(UsageError, match=f"{name} has no linear head"):
            make(name, {"bias": True})
        return
    for bias in (False, True):
        method = make(name, {"bias": bias})
        method.build(Architecture("tiny", (1, 8, 8)))
        fit = fit_for(method, 1, make_images([0, 1, 2] * 4), Memory(30))
        learn_step(fit)
        assert (method.head.bias is not None) == bias
    if name in WITH_BIAS:
        assert plain.bias


def test_models_of_older_versions_have_no_bias() -> None:
    identity = resolve("glyphs", "icarl", "glyphs").identity()
    assert identity["fields"].pop("bias") is True
    assert Settings.from_identity(identity).fields["bias"] is False
    identity = resolve("glyphs", "il2m", "glyphs").identity()
    assert identity["fields"].pop("score") == "logits"
    assert Settings.from_identity(identity).fields["score"] == "softmax"


@pytest.mark.parametrize("name", ["icarl", "lwf-mc"])
def test_units_of_future_classes_are_trained_towards_0(name: str) -> None:
    learned = Learned(name, units=9, train_future=True)
    method: Any = learned.method
    assert method.future.classes == 9 - OLD - NEW
    x, y = learned.batch(MIXED)
    logits, old = learned.logits(x)
    with torch.no_grad():
        future = array(method.future(method.features(x)))
    target = np.zeros((8, 9))
    target[np.arange(8), y.numpy()] = 1
    target[:, :OLD] = 1 / (1 + np.exp(-old))
    output = 1 / (1 + np.exp(-np.concatenate([logits, future], 1)))
    expected = -(target * np.log(output) + (1 - target) * np.log(1 - output)).mean()
    assert method.loss(x, y).item() == pytest.approx(expected, rel=1e-4)


def test_a_new_class_takes_over_the_unit_that_was_trained_for_it() -> None:
    learned = Learned("lwf-mc", units=9, train_future=True)
    before: Any = learned.before
    assert before.future.classes == 9 - OLD
    torch.testing.assert_close(learned.method.head.weight[OLD:], before.future.weight[:NEW])

    with pytest.raises(UsageError, match=r"set method.units"):
        make("icarl", {"train_future": True})


# ---- BiC


def test_bic_fits_its_pair_as_the_released_code_does() -> None:
    """SGD with momentum on cross-entropy + 0.1 · β²/2, with batch norms in training mode."""
    learned = Learned("bic", memory=60, bias_fit="sgd", bias_epochs=10, bias_lr=0.1)
    method, fit = learned.method, learned.second
    assert isinstance(method, BiC)
    fit.train(fit.images or fit.step.images)
    buffers = {name: value.clone() for name, value in method.backbone.named_buffers()}
    fit.schedule = Schedule(epochs=1, batch_size=1000, lr=0.05)
    held = method.held
    x = AUGMENT.plain(held, torch.arange(len(held)))
    with torch.no_grad():
        logits = method.train().logits(x).double()
    for name, value in method.backbone.named_buffers():
        value.copy_(buffers[name])
    pair = torch.tensor([1.0, 0.0], dtype=torch.double, requires_grad=True)
    momentum = torch.zeros(2, dtype=torch.double)
    for epoch in range(10):
        corrected = torch.cat([logits[:, :OLD], pair[0] * logits[:, OLD:] + pair[1]], 1)
        loss = F.cross_entropy(corrected, held.labels) + 0.1 * pair[1] ** 2 / 2
        (gradient,) = torch.autograd.grad(loss, pair)
        momentum = 0.9 * momentum + gradient
        rate = 0.1 * 0.1 ** sum(epoch >= milestone for milestone in (3, 6, 8, 9))
        pair = (pair - rate * momentum).detach().requires_grad_()
    figures = method.end(fit.step, fit)
    assert [figures["alpha"], figures["beta"]] == pytest.approx(pair.tolist(), rel=1e-3)
    for name, value in method.backbone.named_buffers():
        torch.testing.assert_close(value, buffers[name])  # statistics of the held-out images are not kept


def test_herding_on_raw_features_is_an_option() -> None:
    """Long features pull the mean towards them, unless all have unit length."""
    features = torch.tensor([[1.0, 0.0], [0.9, 0.3], [0.0, 8.0], [0.1, 1.0]])
    images = make_images([0, 0, 0, 0])
    chosen = {}
    for normalise in (True, False):
        memory = Memory(1, per="class", normalise=normalise)
        memory.update(images, 1, lambda _: features, ())
        chosen[normalise] = memory.exemplars[0].rows.tolist()
        rows = F.normalize(features, dim=1) if normalise else features
        nearest = (rows - rows.mean(0)).norm(dim=1).argmin()
        assert chosen[normalise] == [int(nearest)]
    assert chosen[True] != chosen[False]


# ---- SI, weight decay, fine-tuning


def test_si_limits_the_sum_of_importances_not_each_step() -> None:
    """A step in which a weight raised the loss takes importance away (authors' code)."""
    method = make("si", {"damping": 1.0, "cap": 10.0})
    assert isinstance(method, SI)
    method.weight = nn.Parameter(torch.zeros(3))
    for name in ("path", "start", "importance", "anchor"):
        method.register_buffer(f"{name}_weight", torch.zeros(3))
    fit: Any = None
    step: Any = None
    for path in ([3.0, 1.0, -2.0], [-1.0, -2.0, 3.0]):
        method.path_weight = torch.tensor(path)
        method.end(step, fit)
    assert method.get_buffer("importance_weight").tolist() == [2.0, 0.0, 3.0]


def test_finetune_has_no_memory_and_no_clipping() -> None:
    learned = Learned("finetune")
    method, fit = learned.method, learned.second
    x, y = learned.batch([3, 4, 4])
    logits, _ = learned.logits(x)
    assert method.loss(x, y).item() == pytest.approx(cross_entropy(logits, y), rel=1e-4)
    assert fit.images is not None
    assert int(fit.images.labels.min()) == OLD
    learn_step(fit_for(method, 2, fit.step.images, learned.memory))
    assert len(learned.memory) == 0
    assert (method.head.weight < 0).any()


def test_lucir_can_fine_tune_its_head_on_balanced_exemplars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features are fixed, and the rows of old classes move too; the loss has no less-forget term (it is constant)."""
    learned = Learned("lucir", finetune=True, finetune_epochs=4)
    method, fit = learned.method, learned.second
    assert isinstance(method, LUCIR)
    assert method.corrects
    head, backbone = method.head.weight.detach().clone(), [p.clone() for p in method.backbone.parameters()]
    schedules: list[tuple[Schedule, list[int]]] = []
    original = Fit.train

    def spy(self: Fit, images: Images, loss: Any, schedule: Schedule, *rest: Any, **named: Any) -> None:
        schedules.append((schedule, torch.bincount(images.labels).tolist()))
        original(self, images, loss, schedule, *rest, **named)

    monkeypatch.setattr(Fit, "train", spy)
    method.end(fit.step, fit)
    (schedule, counts), = schedules  # fmt: skip
    assert len(set(counts)) == 1
    assert [schedule.lr_at(epoch) for epoch in range(4)] == pytest.approx([0.01, 0.01, 0.001, 0.001])
    assert not torch.isclose(method.head.weight[:OLD], head[:OLD]).all()
    assert all(torch.equal(now, then) for now, then in zip(method.backbone.parameters(), backbone, strict=True))
    assert not make("lucir").corrects


# ---- exemplars are not shown more and more often


@pytest.mark.parametrize(("steps", "last"), [(5, 5), (10, 2), (20, 1)])
def test_repeated_exemplars_never_outnumber_new_images(steps: int, last: int) -> None:
    """cifar100-fast shows 2,000 exemplars as often as there were steps, but at most as many as new images."""
    schedule, method = resolve("cifar100", "wa", "cifar100-fast").train, make("wa")
    new, old = 50_000 // steps, 100 - 100 // steps
    labels = torch.cat([torch.full((new,), 99), torch.arange(old).repeat_interleave(2000 // old)])
    images = Images(
        Images.of(torch.zeros(1, 1, 1, 1, dtype=torch.uint8)).store, torch.zeros(len(labels)).long(), labels
    )
    step: Any = type("Step", (), {"index": steps, "old": old, "new": 100 // steps})
    shown = epoch_rows(method, step, images, schedule)
    exemplars = len(labels) - new
    assert len(shown) == new + last * exemplars
