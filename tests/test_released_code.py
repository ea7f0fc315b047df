"""Methods compared with the formulas of the code that their authors released, on the same random numbers.

Each reference below is written anew, as plain arithmetic, from the formulas of one function of a released repository; a
comment names it. tests/test_methods.py compares the same methods with the equations of their papers. Where the released
code offers a choice or differs from the paper, the options that follow it are set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data.augment import Augment
from equipoise.data.images import Images, join
from equipoise.data.memory import Memory
from equipoise.data.stream import Step
from equipoise.learn.backbones import Architecture
from equipoise.learn.backbones.base import Backbone
from equipoise.learn.fit import Fit
from equipoise.learn.head import Head
from equipoise.learn.method import Method
from equipoise.learn.runtime import Runtime
from equipoise.learn.schedule import Schedule
from equipoise.methods.registry import make

Array = NDArray[np.float64]
Loss = Callable[[Tensor, Tensor], Tensor]

AUGMENT = Augment((0.5,), (0.25,))
TIGHT = 1e-9
"""Relative tolerance of what is computed in float64 throughout."""
SINGLE = 2e-5
"""The same where features pass through ``fit.features``, which returns float32."""

SEEDS = [0, 1, 2]
EQUAL = [(2, 2), (3, 3, 3), (2, 2, 2, 2)]
"""Classes per step. The released code of WA and BiC knows only equal steps."""
UNEQUAL = [(5, 2), (2, 4, 3), (7, 3, 2)]
cases = pytest.mark.parametrize("seed", SEEDS)
equal_steps = pytest.mark.parametrize("sizes", EQUAL, ids=str)
all_steps = pytest.mark.parametrize("sizes", [*EQUAL, *UNEQUAL], ids=str)


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


# ---- a small network in float64, and a method in the middle of its last step


class Net(Backbone):
    """Three convolutions without batch norm, so that training and evaluation mode are the same."""

    def __init__(self, final_relu: bool) -> None:
        super().__init__()
        self.width, self.map_widths, self.final_relu = 6, [4, 5, 6], final_relu
        shapes = [(4, 1, 2, 3), (5, 4, 2, 3), (6, 5, 2, 3)]
        self.kernels = nn.ParameterList(torch.randn(*shape) / math.sqrt(math.prod(shape[1:])) for shape in shapes)

    def forward_stages(self, x: Tensor) -> list[Tensor]:
        x, stages = x.double(), []
        for depth, kernel in enumerate(self.kernels):
            x = F.conv2d(x.tanh() if depth else x, kernel)  # maps of both signs
            stages.append(x)
        return [*stages[:-1], x.relu()] if self.final_relu else stages

    def pool(self, last: Tensor) -> Tensor:
        return last.mean((2, 3))

    def maps(self, x: Tensor, before_last: bool = False) -> list[Tensor]:
        return self.forward_stages(x)

    def embed(self, x: Tensor) -> Tensor:
        return self.pool(self.forward_stages(x)[-1])


class Nets(Architecture):
    """Makes ``Net`` for any method."""

    def __call__(self, final_relu: bool = True) -> Backbone:
        return Net(final_relu)


@dataclass
class Stage:
    """A call of ``fit.train``, which these tests replace."""

    images: Images
    loss: Loss | None = None
    schedule: Schedule | None = None
    parameters: Any = None
    name: str = "train"
    augment: bool = True
    frozen: bool = False


@dataclass
class Learned:
    """A method that has learned all steps but the last, and begun that one."""

    name: str
    sizes: tuple[int, ...]
    seed: int
    fields: dict[str, Any] = field(default_factory=dict)
    per_class: int = 12
    memory: int = 120
    pairs: list[Array] = field(default_factory=list)
    """α and β of BiC after each step."""

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.numbers = torch.Generator().manual_seed(self.seed + 100)
        self.method = make(self.name, self.fields)
        self.method.build(Nets("net", (1, 8, 8)))
        self.kept = Memory(self.memory)
        for index in range(1, len(self.sizes) + 1):
            self.begin(index)
            if index < len(self.sizes):
                self.trained = self.method.snapshot()  # the previous model before its correction
                self.end()
                self.kept = self.fit.memory

    def begin(self, index: int) -> None:
        """Start a step, and move all weights as training would."""
        old, new = sum(self.sizes[: index - 1]), self.sizes[index - 1]
        images = self.images([c for c in range(old, old + new) for _ in range(self.per_class)])
        exemplars = self.kept.images()
        step = Step(index, old, new, images)
        together = images if exemplars is None else join([images, exemplars])
        schedule = Schedule(epochs=1, batch_size=16, lr=0.05, lr_schedule="constant")
        self.fit = Fit(self.method, step, together, self.kept, schedule, AUGMENT, Runtime(), (self.seed, index))
        self.method.start_step(step)
        self.head_before = [rows.detach().clone() for rows in self.method.head.parameters()]
        self.method.begin(step, self.fit)
        self.method.train()
        self.begun = [rows.detach().clone() for rows in self.method.head.parameters()]
        self.move()

    @torch.no_grad()
    def move(self, amount: float = 0.3) -> None:
        """Change all weights that training would change, as one update."""
        for weights in self.method.parameters():
            if weights.requires_grad:
                weights.add_(amount * torch.randn(weights.shape, generator=self.numbers))
        if isinstance(self.method.head.scale, Tensor):
            self.method.head.scale.fill_(1.2 + torch.rand((), generator=self.numbers))
        self.method.after_update()

    def end(self) -> tuple[dict[str, float], list[Stage]]:
        """Finish the step without training; return its figures and the stages that it would train."""
        stages: list[Stage] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Fit, "train", lambda fit, *given, **named: stages.append(Stage(*given, **named)))
            figures = self.method.end(self.fit.step, self.fit)
            self.fit.update_memory()
        if self.name == "bic":
            pair = 0.5 + torch.rand(2, generator=self.numbers)
            torch.as_tensor(self.method.pair).data = pair
            self.pairs.append(array(pair))
        return figures, stages

    def images(self, labels: list[int]) -> Images:
        pixels = torch.randint(0, 256, (len(labels), 1, 8, 8), generator=self.numbers, dtype=torch.uint8)
        return Images.of(pixels, torch.tensor(labels))

    def batch(self, count: int = 14, first: int = 0) -> tuple[Tensor, Tensor]:
        """Return random images whose labels run through all classes from ``first``."""
        labels = [first + i % (self.seen - first) for i in range(count)]
        images = self.images(labels)
        return AUGMENT.plain(images, torch.arange(count)), images.labels

    @property
    def seen(self) -> int:
        return sum(self.sizes)

    @property
    def old(self) -> int:
        return self.seen - self.sizes[-1]


def array(tensor: Tensor | float | nn.Module) -> Array:
    assert not isinstance(tensor, nn.Module)
    return np.asarray(torch.as_tensor(tensor).detach().double().numpy())


def features_of(model: Method, x: Tensor) -> Array:
    with torch.no_grad():
        return array(model.features(x))


def linear(head: Head, features: Array) -> Array:
    """W f + b, with or without a bias."""
    bias = 0.0 if head.bias is None else array(head.bias)
    return features @ array(head.weight).T + bias


def log_softmax(row: Array) -> Array:
    return np.asarray(row - row.max() - np.log(np.exp(row - row.max()).sum()))


def cross_entropy(logits: Array, y: Tensor) -> float:
    return float(np.mean([-log_softmax(row)[label] for row, label in zip(logits, y.tolist(), strict=True)]))


def soft_cross_entropy(logits: Array, targets: Array, T: float) -> float:
    """-Σ softmax(target / T) log softmax(output / T), averaged over images; no factor T²."""
    total = 0.0
    for output, target in zip(logits, targets, strict=True):
        total -= float((np.exp(log_softmax(target / T)) * log_softmax(output / T)).sum())
    return total / len(logits)


def unit(rows: Array) -> Array:
    return np.asarray(rows / np.sqrt((rows**2).sum(-1, keepdims=True)))


def best(scores: Array) -> list[int]:
    return [int(row.argmax()) for row in scores]


@pytest.mark.parametrize(
    ("name", "ends_in_relu"), [("wa", True), ("bic", True), ("icarl", False), ("lucir", False), ("podnet", False)]
)
def test_features_after_or_before_the_last_relu(name: str, ends_in_relu: bool) -> None:
    """Whether the released networks end in a ReLU before the average over positions.

    WA: preresnet32.py, PreResNet.forward. BiC: imagenet_main.py, ImagenetModel. iCaRL: utils_cifar100.py, build_cnn.
    LUCIR: modified_resnet_cifar.py. PODNet: my_resnet.py and models/podnet.py (raw_features).
    """
    learned = Learned(name, (3, 2), 0)
    assert (features_of(learned.method, learned.batch()[0]) >= 0).all() == ends_in_relu


@pytest.mark.parametrize("name", ["lucir", "podnet"])
def test_scale_is_learned_and_kept(name: str) -> None:
    """LUCIR: modified_linear.py, sigma. PODNet: postprocessors.py, FactorScalar. Both start at 1, once."""
    first, second = Learned(name, (3,), 0), Learned(name, (3, 2), 0)
    assert [float(rows) for rows in first.head_before if rows.dim() == 0] == [1.0]
    assert [float(rows) for rows in second.begun if rows.dim() == 0] == [float(array(second.trained.head.scale))]
    second.method.loss(*second.batch()).backward()
    assert isinstance(second.method.head.scale, nn.Parameter)
    assert second.method.head.scale.grad


# ---- WA: bwbwzhao/Weight-Aligning, by the paper's first author


def wa_factor(weight: Array, old: int) -> float:
    """bwbwzhao/Weight-Aligning, iLearn.py, learn: the factor of the newest classes' outputs."""
    lengths: list[float] = [sum(abs(value) for value in row) for row in weight.tolist()]  # --norm is 1 by default
    factor = (sum(lengths[:old]) / old) / (sum(lengths[old:]) / (len(lengths) - old))
    return min(factor, 1.0)


def wa_outputs(model: Method, x: Tensor, old: int) -> Array:
    """bwbwzhao/Weight-Aligning, iLearn.py, NCS_forward: outputs are scaled, where we scale weights (and bias)."""
    outputs = linear(model.head, features_of(model, x))
    if old:
        outputs[:, old:] *= wa_factor(array(model.head.weight), old)
    return outputs


def wa_loss(learned: Learned, x: Tensor, y: Tensor, ratio: float) -> float:
    """bwbwzhao/Weight-Aligning, iLearn.py, train_model."""
    outputs = linear(learned.method.head, features_of(learned.method, x))
    if not learned.old:
        return cross_entropy(outputs, y)
    teacher = wa_outputs(learned.trained, x, learned.old - learned.sizes[-2])  # trained, not aligned yet
    distilled = soft_cross_entropy(outputs[:, : learned.old], teacher, 2)
    return ratio * distilled + (1 - ratio) * cross_entropy(outputs, y)


@cases
@equal_steps
@pytest.mark.parametrize("bias", [False, True])
def test_wa_loss(sizes: tuple[int, ...], seed: int, bias: bool) -> None:
    learned = Learned("wa", sizes, seed, {"bias": bias})
    x, y = learned.batch()
    stage = len(sizes) - 1
    assert learned.method.loss(x, y).item() == pytest.approx(wa_loss(learned, x, y, stage / (stage + 1)), rel=TIGHT)


@cases
@pytest.mark.parametrize("sizes", UNEQUAL, ids=str)
def test_wa_loss_of_unequal_steps(sizes: tuple[int, ...], seed: int) -> None:
    """The released λ is stage / (stage + 1), for equal steps only. The text has C_old / (C_old + C), as we do."""
    learned = Learned("wa", sizes, seed)
    x, y = learned.batch()
    assert learned.method.loss(x, y).item() == pytest.approx(
        wa_loss(learned, x, y, learned.old / learned.seen), rel=TIGHT
    )


@cases
def test_wa_first_step_and_ce_have_no_distillation(seed: int) -> None:
    first = Learned("wa", (4,), seed)
    x, y = first.batch()
    assert first.method.loss(x, y).item() == pytest.approx(wa_loss(first, x, y, 0.0), rel=TIGHT)
    without = Learned("ce", (3, 3), seed)
    x, y = without.batch()
    assert without.method.loss(x, y).item() == pytest.approx(wa_loss(without, x, y, 0.0), rel=TIGHT)


@cases
@pytest.mark.parametrize("bias", [False, True])
def test_wa_clips_the_weights_after_an_update(seed: int, bias: bool) -> None:
    """bwbwzhao/Weight-Aligning, iLearn.py, train_model: fc.weight is clamped after the update, fc.bias is not."""
    learned = Learned("wa", (3, 3), seed, {"bias": bias})
    method = learned.method
    method.loss(*learned.batch()).backward()
    weights = list(method.head.parameters())
    expected = [array(rows) - 0.9 * array(torch.as_tensor(rows.grad)) for rows in weights]
    torch.optim.SGD(method.parameters(), lr=0.9).step()
    method.after_update()
    assert (expected[0] < 0).any()
    np.testing.assert_allclose(array(weights[0]), np.maximum(expected[0], 0), rtol=TIGHT, atol=1e-12)
    if bias:
        assert (expected[1] < 0).any()
        np.testing.assert_allclose(array(weights[1]), expected[1], rtol=TIGHT)


@cases
@all_steps
@pytest.mark.parametrize("bias", [False, True])
def test_wa_correction_and_prediction(sizes: tuple[int, ...], seed: int, bias: bool) -> None:
    """bwbwzhao/Weight-Aligning, iLearn.py, learn and test_model."""
    learned = Learned("wa", sizes, seed, {"bias": bias})
    stretch = (0.2, 1.0, 5.0)[seed]
    method, old = learned.method, learned.old
    method.head.weight.data[old:] *= stretch  # γ below and above 1
    x, _ = learned.batch(40)
    factor, expected = wa_factor(array(method.head.weight), old), wa_outputs(method, x, old)
    if stretch != 1:
        assert (factor == 1) == (stretch < 1)
    figures, _ = learned.end()
    assert figures["gamma"] == pytest.approx(factor, rel=TIGHT)
    with torch.no_grad():
        found = array(method.predict(x))
    np.testing.assert_allclose(found, expected, rtol=TIGHT, atol=1e-12)
    assert best(found) == best(expected)


@cases
def test_wa_starts_each_step_with_a_new_head(seed: int) -> None:
    """bwbwzhao/Weight-Aligning, main.py: a new nn.Linear for all classes; copying the old rows is commented out."""
    learned = Learned("wa", (3, 3, 3), seed)
    (before,), (begun,) = learned.head_before, learned.begun
    assert begun.shape == (9, 6)
    assert not (begun[:6] == before).any()
    assert begun.abs().max() <= 1 / math.sqrt(6)  # nn.Linear's initialisation
    assert begun.min() < 0  # clipped after the first update only


# ---- BiC: wuyuebupt/LargeScaleIncrementalLearning


def bic_corrected(outputs: Array, newest: int, pair: Array) -> Array:
    """wuyuebupt/LargeScaleIncrementalLearning, resnet.py, resnet_model_fn (EVAL): its beta is α, its gamma is β."""
    corrected = outputs.copy()
    for image in range(len(outputs)):
        for label in range(outputs.shape[1] - newest, outputs.shape[1]):
            corrected[image, label] = pair[0] * outputs[image, label] + pair[1]
    return corrected


def bic_loss(learned: Learned, x: Tensor, y: Tensor, lambda_: float) -> float:
    """wuyuebupt/LargeScaleIncrementalLearning, resnet.py, resnet_model_fn (TRAIN), without weight decay."""
    outputs = linear(learned.method.head, features_of(learned.method, x))
    teacher = linear(learned.trained.head, features_of(learned.trained, x))
    if len(learned.sizes) > 2:  # the model of the first step has no correction
        teacher = bic_corrected(teacher, learned.sizes[-2], learned.pairs[-1])
    distilled = soft_cross_entropy(outputs[:, : learned.old], teacher, 2)
    return lambda_ * distilled + (1 - lambda_) * cross_entropy(outputs, y)


@cases
@equal_steps
def test_bic_loss(sizes: tuple[int, ...], seed: int) -> None:
    learned = Learned("bic", sizes, seed)
    x, y = learned.batch()
    before = len(sizes) - 1
    expected = bic_loss(learned, x, y, before / (before + 1))
    assert learned.method.loss(x, y).item() == pytest.approx(expected, rel=TIGHT)


@cases
@pytest.mark.parametrize("sizes", UNEQUAL, ids=str)
def test_bic_loss_of_unequal_steps(sizes: tuple[int, ...], seed: int) -> None:
    """The released λ counts steps, all equal. The paper's counts classes, as ours does."""
    learned = Learned("bic", sizes, seed)
    x, y = learned.batch()
    assert learned.method.loss(x, y).item() == pytest.approx(
        bic_loss(learned, x, y, learned.old / learned.seen), rel=TIGHT
    )


@cases
@all_steps
def test_bic_correction_and_prediction(sizes: tuple[int, ...], seed: int) -> None:
    learned = Learned("bic", sizes, seed)
    method = learned.method
    x, _ = learned.batch(40)
    expected = linear(method.head, features_of(method, x))
    with torch.no_grad():
        np.testing.assert_allclose(array(method.predict(x)), expected, rtol=TIGHT)  # not corrected before the fit
    learned.end()
    expected = bic_corrected(expected, sizes[-1], learned.pairs[-1])  # earlier pairs are not used any more
    with torch.no_grad():
        found = array(method.predict(x))
    np.testing.assert_allclose(found, expected, rtol=TIGHT)
    assert best(found) == best(expected)


def bic_fit(sizes: tuple[int, ...], seed: int, fit: str) -> tuple[float, float, Array]:
    """Return our loss of α and β, the released one without its penalty, and the pair."""
    learned = Learned("bic", sizes, seed, {"bias_fit": fit})
    _, stages = learned.end()
    (stage,) = [each for each in stages if each.name == "bias"]
    assert stage.loss is not None
    assert not stage.augment  # input_function(False, …)
    x, y = learned.batch()
    outputs = bic_corrected(linear(learned.method.head, features_of(learned.method, x)), sizes[-1], learned.pairs[-1])
    return stage.loss(x, y).item(), cross_entropy(outputs, y), learned.pairs[-1]


@cases
@equal_steps
def test_bic_fits_its_pair_by_cross_entropy(sizes: tuple[int, ...], seed: int) -> None:
    """wuyuebupt/LargeScaleIncrementalLearning, resnet.py, resnet_model_fn with flag_bias, without the penalty."""
    ours, released, _ = bic_fit(sizes, seed, "adam")
    assert ours == pytest.approx(released, rel=TIGHT)


@cases
def test_bic_penalises_beta(seed: int) -> None:
    """wuyuebupt/LargeScaleIncrementalLearning, resnet.py, resnet_model_fn with flag_bias; α is free, β is its gamma."""
    ours, released, pair = bic_fit((3, 3, 3), seed, "sgd")
    assert ours == pytest.approx(released + 0.1 * pair[1] ** 2 / 2, rel=TIGHT)


# ---- iCaRL: srebuffi/iCaRL, iCaRL-TheanoLasagne


def icarl_loss(outputs: Array, y: Tensor, teacher: Array | None) -> float:
    """srebuffi/iCaRL, main_cifar_100_theano.py: binary cross-entropy, averaged over images and all units."""
    losses = []
    for i, row in enumerate(outputs.tolist()):
        for place, output in enumerate(row):
            target = 1.0 if place == int(y[i]) else 0.0
            if teacher is not None and place < teacher.shape[1]:  # also for exemplars, whatever their label
                target = 1 / (1 + math.exp(-float(teacher[i, place])))
            p = 1 / (1 + math.exp(-output))
            losses.append(-target * math.log(p) - (1 - target) * math.log(1 - p))
    return float(np.mean(losses))


def icarl_outputs(learned: Learned, x: Tensor) -> tuple[Array, Array | None]:
    outputs = linear(learned.method.head, features_of(learned.method, x))
    if not learned.old:
        return outputs, None
    return outputs, linear(learned.trained.head, features_of(learned.trained, x))


@cases
@pytest.mark.parametrize("sizes", [(4,), *EQUAL, *UNEQUAL], ids=str)
def test_icarl_loss_without_classes_to_come(sizes: tuple[int, ...], seed: int) -> None:
    learned = Learned("icarl", sizes, seed, {"units": sum(sizes)})
    x, y = learned.batch()
    outputs, teacher = icarl_outputs(learned, x)
    expected = icarl_loss(outputs, y, teacher)
    assert learned.method.loss(x, y).item() == pytest.approx(expected, rel=TIGHT)


def icarl_with_units_to_come(sizes: tuple[int, ...], seed: int, units: int) -> tuple[float, float, float]:
    """Return our loss, the released one, and the part of it from units whose class has not arrived."""
    learned = Learned("icarl", sizes, seed, {"units": units})
    x, y = learned.batch()
    outputs, teacher = icarl_outputs(learned, x)
    to_come = np.random.default_rng(seed).normal(size=(len(x), units - learned.seen))
    released = icarl_loss(np.concatenate([outputs, to_come], 1), y, teacher)
    part = float(np.log1p(np.exp(to_come)).sum()) / (len(x) * units)  # targets are 0
    return learned.method.loss(x, y).item(), released, part


@cases
@all_steps
def test_icarl_loss_of_the_classes_seen_with_a_hundred_units(sizes: tuple[int, ...], seed: int) -> None:
    ours, released, to_come = icarl_with_units_to_come(sizes, seed, 100)
    assert ours == pytest.approx(released - to_come, rel=TIGHT)


@cases
@all_steps
def test_icarl_loss_with_classes_to_come(sizes: tuple[int, ...], seed: int) -> None:
    learned = Learned("icarl", sizes, seed, {"units": 20, "train_future": True})
    x, y = learned.batch()
    outputs, teacher = icarl_outputs(learned, x)
    to_come: Any = linear(learned.method.future, features_of(learned.method, x))  # type: ignore[arg-type]
    assert to_come.shape[1] == 20 - learned.seen
    released = icarl_loss(np.concatenate([outputs, to_come], 1), y, teacher)
    assert learned.method.loss(x, y).item() == pytest.approx(released, rel=TIGHT)


def icarl_means(model: Method, exemplars: Images, classes: int) -> Array:
    """srebuffi/iCaRL, main_cifar_100_theano.py: means of exemplars and of their mirror images, as class_means."""
    x = AUGMENT.plain(exemplars, torch.arange(len(exemplars)))
    mirrored = torch.from_numpy(x.numpy()[:, :, :, ::-1].copy())
    plain, flipped = unit(features_of(model, x)), unit(features_of(model, mirrored))
    means = []
    for label in range(classes):
        mine = [i for i, other in enumerate(exemplars.labels.tolist()) if other == label]
        mean = (sum(plain[i] for i in mine) / len(mine) + sum(flipped[i] for i in mine) / len(mine)) / 2
        means.append(mean / math.sqrt(float((mean**2).sum())))
    return np.array(means)


@cases
@all_steps
def test_icarl_means_and_prediction(sizes: tuple[int, ...], seed: int) -> None:
    learned = Learned("icarl", sizes, seed, memory=5 * sum(sizes))
    method = learned.method
    learned.end()
    exemplars = learned.fit.memory.images()
    assert exemplars is not None
    assert len(exemplars) == 5 * learned.seen
    means = icarl_means(method, exemplars, learned.seen)
    np.testing.assert_allclose(array(method.means), means, atol=SINGLE)
    method.double()  # the means, too
    x, _ = learned.batch(40)
    features = unit(features_of(method, x))
    # srebuffi/iCaRL, utils_cifar100.py, accuracy_measure: scores are negative squared distances
    scores = np.array([[-float(((mean - row) ** 2).sum()) for mean in means] for row in features])
    with torch.no_grad():
        found = array(method.predict(x))
    np.testing.assert_allclose(-(found**2), scores, atol=SINGLE)
    assert best(found) == best(scores)


def test_icarl_prediction_far_from_all_means() -> None:
    """The released code keeps a zero mean for a class to come, which wins where no cosine exceeds ½: a difference.

    Its class_means has 100 columns from the start, and ‖f - 0‖² = 1 < 2 - 2 cos(f, mean). Ours is always a class seen.
    """
    learned = Learned("icarl", (3, 2), 0)
    learned.end()
    learned.method.double()
    features = torch.randn(300, 6, generator=learned.numbers)
    means = np.concatenate([array(learned.method.means), np.zeros((95, 6))])
    distances = ((unit(array(features))[:, None] - means[None]) ** 2).sum(2)
    released = best(-distances)
    ours = best(array(learned.method.classify(features)))
    near = (unit(array(features)) @ means[:5].T).max(1) > 0.5
    assert 30 < near.sum() < 270
    for agree, theirs, mine in zip(near, released, ours, strict=True):
        assert mine < 5
        assert mine == theirs if agree else theirs >= 5


def icarl_herding(features: Array, count: int) -> tuple[list[int], int]:
    """srebuffi/iCaRL, main_cifar_100_theano.py: the ranking, and how many images are ranked before one is picked again.

    An image that is picked again gets no second rank, so nothing is stored twice. But it is subtracted again.
    """
    rows = unit(features)
    mean = rows.mean(0)
    wanted, before_repeat, picks = mean.copy(), -1, 0
    ranked: list[int] = []
    while len(ranked) < min(count, len(rows)) and picks < 1000:
        pick = int(np.argmax([float(wanted @ row) for row in rows]))
        picks += 1
        if pick not in ranked:
            ranked.append(pick)
        elif before_repeat < 0:
            before_repeat = len(ranked)
        wanted = wanted + mean - rows[pick]
    return ranked, len(ranked) if before_repeat < 0 else before_repeat


def our_herding(features: Tensor, count: int) -> list[int]:
    images = Images.of(torch.zeros(len(features), 1, 1, 1, dtype=torch.uint8))
    chosen = Memory(count, per="class").select(images, count, lambda some: features[some.rows], (0,))
    rows: list[int] = chosen[0].rows.tolist()
    return rows


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("width", "count", "repeats"), [(64, 10, False), (3, 20, True)])
def test_herding_order_of_icarl(seed: int, width: int, count: int, repeats: bool) -> None:
    """Ours never picks an image again. Both are equal until the released code does: here never, or early."""
    features = torch.randn(60, width, generator=torch.Generator().manual_seed(seed)) + 0.3
    released, same = icarl_herding(array(features), count)
    ours = our_herding(features, count)
    assert len(set(ours)) == len(ours) == len(set(released)) == len(released) == count
    assert ours[:same] == released[:same]
    assert (same < count) == repeats
    if not repeats:
        assert ours == released


def test_herding_differs_after_the_first_repeat() -> None:
    """Three images in a plane, of which the first is close to the mean: the released code wants it again at once."""
    features = torch.tensor([[1.0, 0.0], [0.9, 0.5], [0.9, -0.45], [0.2, 1.0], [0.2, -1.0], [1.0, 0.02]])
    released, same = icarl_herding(array(features), 6)
    ours = our_herding(features, 6)
    assert same < 6
    assert ours[:same] == released[:same]
    assert sorted(ours) == sorted(released) == list(range(6))
    assert ours != released


# ---- LUCIR: hshustc/CVPR19_Incremental_Learning, cifar100-class-incremental and utils_incremental


def lucir_cosines(method: Method, features: Array) -> Array:
    """modified_linear.py, SplitCosineLinear: the scores of old and new classes before the scale sigma."""
    return unit(features) @ unit(array(method.head.weight)).T


def lucir_loss(learned: Learned, x: Tensor, y: Tensor, less_forget: bool = True) -> float:
    """utils_incremental/incremental_train_and_eval_MR_LF.py, with run.sh's options: λ 5, adapted, margin 0.5, K 2."""
    method, old = learned.method, learned.old
    features = features_of(method, x)
    cosines = lucir_cosines(method, features)
    loss = cross_entropy(float(array(method.head.scale)) * cosines, y)
    if not old:
        return loss
    before = features_of(learned.trained, x)
    apart = [1 - float(a @ b) / math.sqrt(float(a @ a) * float(b @ b)) for a, b in zip(features, before, strict=True)]
    if less_forget:
        loss += 5 * math.sqrt(old / learned.sizes[-1]) * sum(apart) / len(apart)  # class_incremental_cosine_cifar100.py
    ranked = []
    for scores, label in zip(cosines.tolist(), y.tolist(), strict=True):
        if label < old:
            highest = sorted(scores[old:], reverse=True)[:2]
            ranked += [max(0.0, 0.5 - (scores[label] - novel)) for novel in highest]
    return loss + (sum(ranked) / len(ranked) if ranked else 0.0)


@cases
@pytest.mark.parametrize("sizes", [(4,), *EQUAL, *UNEQUAL], ids=str)
def test_lucir_loss(sizes: tuple[int, ...], seed: int) -> None:
    learned = Learned("lucir", sizes, seed)
    x, y = learned.batch()
    assert learned.method.loss(x, y).item() == pytest.approx(lucir_loss(learned, x, y), rel=TIGHT)


@cases
def test_lucir_loss_of_a_batch_without_old_images(seed: int) -> None:
    learned = Learned("lucir", (3, 4), seed)
    x, y = learned.batch(first=3)
    assert learned.method.loss(x, y).item() == pytest.approx(lucir_loss(learned, x, y), rel=TIGHT)


@cases
@all_steps
def test_lucir_imprints_new_rows(sizes: tuple[int, ...], seed: int) -> None:
    """class_incremental_cosine_cifar100.py, "imprint weights": direction and length of the new rows; old ones stay."""
    learned = Learned("lucir", sizes, seed)
    images, old = learned.fit.step.images, learned.old
    features = unit(features_of(learned.trained, AUGMENT.plain(images, torch.arange(len(images)))))
    before = array(learned.head_before[0])
    length = sum(math.sqrt(float(row @ row)) for row in before) / old
    expected = []
    for label in range(old, learned.seen):
        mean = features[images.labels.numpy() == label].mean(0)
        expected.append(mean / math.sqrt(float(mean @ mean)) * length)
    begun = array(learned.begun[0])
    np.testing.assert_array_equal(begun[:old], before)
    np.testing.assert_allclose(begun[old:], np.array(expected), atol=SINGLE)


@cases
@all_steps
def test_lucir_freezes_old_rows_and_predicts_by_its_head(sizes: tuple[int, ...], seed: int) -> None:
    """class_incremental_cosine_cifar100.py: fc1 has a learning rate of 0; compute_accuracy.py: the largest output."""
    learned = Learned("lucir", sizes, seed)
    method, old = learned.method, learned.old
    learned.move()
    learned.end()
    rows = array(method.head.weight)
    np.testing.assert_array_equal(rows[:old], array(learned.begun[0])[:old])
    assert (rows[old:] != array(learned.begun[0])[old:]).all()
    x, _ = learned.batch(40)
    expected = float(array(method.head.scale)) * lucir_cosines(method, features_of(method, x))
    with torch.no_grad():
        found = array(method.predict(x))
    np.testing.assert_allclose(found, expected, rtol=TIGHT, atol=1e-12)
    assert best(found) == best(expected)


@cases
@all_steps
def test_lucir_fine_tunes_its_head_with_the_margin_ranking(sizes: tuple[int, ...], seed: int) -> None:
    """cbf_class_incremental_cosine_cifar100.py, ft_flag 2: the same loss; its less-forget term is constant there."""
    learned = Learned("lucir", sizes, seed, {"finetune": True})
    method = learned.method
    _, (stage,) = learned.end()
    assert stage.loss is not None
    assert [weights is method.head.weight for weights in stage.parameters] == [True]  # not sigma
    method.train()
    with torch.no_grad():  # as an update of all rows would; none is frozen
        method.head.weight.add_(0.3 * torch.randn(method.head.weight.shape, generator=learned.numbers))
    x, y = learned.batch()
    expected = lucir_loss(learned, x, y, less_forget=False)
    assert stage.loss(x, y).item() == pytest.approx(expected, rel=TIGHT)


# ---- DER: Rhyssiyan/DER-ClassIL.pytorch, decouple in exps/der_womask/*/configs/1.yaml


@cases
@all_steps
@pytest.mark.parametrize("temperature", [5.0, 1.0])
def test_der_learns_a_new_head_with_a_temperature(sizes: tuple[int, ...], seed: int, temperature: float) -> None:
    """Yan et al., Sec. 3.4: the classifier is drawn anew; a softmax of logits / T, with the features fixed."""
    fields = {} if temperature == 5 else {"finetune_temperature": temperature}  # CIFAR and ImageNet
    learned = Learned("der", sizes, seed, fields)
    method = learned.method
    trained = array(method.head.weight)
    _, (stage,) = learned.end()
    assert stage.loss is not None
    assert [rows is method.head.weight for rows in stage.parameters] == [True]  # DER's heads have no bias
    assert stage.schedule is not None
    rates = [stage.schedule.lr_at(epoch) for epoch in range(30)]
    assert rates == pytest.approx([0.1] * 15 + [0.01] * 15)
    drawn = array(method.head.weight)
    assert drawn.shape == trained.shape == (learned.seen, 6 * len(sizes))
    assert not np.isclose(drawn, trained).any()  # no row is kept
    assert np.abs(drawn).max() <= 1 / math.sqrt(6 * len(sizes))  # nn.Linear's initialisation
    x, y = learned.batch()
    logits = features_of(method, x) @ drawn.T
    assert stage.loss(x, y).item() == pytest.approx(cross_entropy(logits / temperature, y), rel=TIGHT)


# ---- PODNet: arthurdouillard/incremental_learning.pytorch, options/podnet/podnet_cnn_cifar100.yaml


PROXIES = [10, 3, 1]
"""Proxies per class, by seed; the authors' are 10."""


def pod_similarities(method: Method, features: Array, proxies: int) -> Array:
    """inclearn/lib/network/classifiers.py, CosineClassifier with neg_stable_cosine_distance, and _reduce_proxies."""
    rows = unit(array(method.head.weight))
    found = np.zeros((len(features), len(rows) // proxies))
    for i, row in enumerate(unit(features)):
        for label in range(found.shape[1]):
            mine = rows[label * proxies : (label + 1) * proxies]
            close = np.array([-float(((row - proxy) ** 2).sum()) for proxy in mine])
            found[i, label] = float((np.exp(log_softmax(close)) * close).sum())
    return found


def pod_nca(similarities: Array, y: Tensor, scale: float, margin: float = 0.6) -> float:
    """inclearn/lib/losses/base.py, nca with exclude_pos_denominator, without hinge or class weights."""
    losses = []
    for row, label in zip(similarities, y.tolist(), strict=True):
        scaled = scale * (row - margin)  # from every class, not only the label's
        scaled = scaled - scaled.max()
        raised = [1.0 if i == label else math.exp(value) for i, value in enumerate(scaled)]  # exp(0) for the label
        losses.append(math.log(sum(raised)) - scaled[label])
    return float(np.mean(losses))


def pod_spatial(now: list[Tensor], then: list[Tensor]) -> float:
    """inclearn/lib/losses/distillation.py, pod with collapse_channels spatial."""
    total = 0.0
    for maps in zip(now, then, strict=True):
        pooled = []
        for each in maps:
            squares = array(each) ** 2
            images, channels, height, width = squares.shape
            rows = np.zeros((images, channels * (height + width)))
            for i in range(images):
                over_width = [squares[i, c, h].sum() for c in range(channels) for h in range(height)]
                over_height = [squares[i, c, :, w].sum() for c in range(channels) for w in range(width)]
                rows[i] = [*over_width, *over_height]
            pooled.append(unit(rows))
        total += float(np.mean([math.sqrt(float(d @ d)) for d in pooled[0] - pooled[1]]))
    return total / len(now)


def pod_flat(now: Array, then: Array) -> float:
    """inclearn/lib/losses/base.py, embeddings_similarity."""
    return float(np.mean([1 - float(a @ b) for a, b in zip(unit(now), unit(then), strict=True)]))


def pod_loss(learned: Learned, x: Tensor, y: Tensor, proxies: int) -> float:
    """inclearn/models/podnet.py, PODNet._compute_loss."""
    method = learned.method
    features, scale = features_of(method, x), float(array(method.head.scale))
    loss = pod_nca(pod_similarities(method, features, proxies), y, scale)
    if not learned.old:
        return loss
    with torch.no_grad():
        now, then = method.backbone.maps(x), learned.trained.backbone.maps(x)
    factor = math.sqrt(learned.seen / learned.sizes[-1])
    loss += 1.0 * factor * pod_flat(features, features_of(learned.trained, x))
    return loss + 3.0 * factor * pod_spatial(now, then)


@cases
@pytest.mark.parametrize("sizes", [(4,), *EQUAL, *UNEQUAL], ids=str)
def test_podnet_loss(sizes: tuple[int, ...], seed: int) -> None:
    proxies = PROXIES[seed]
    learned = Learned("podnet", sizes, seed, {"proxies": proxies})
    x, y = learned.batch()
    assert learned.method.loss(x, y).item() == pytest.approx(pod_loss(learned, x, y, proxies), rel=TIGHT)


@cases
def test_podnet_gradients(seed: int) -> None:
    """The largest similarity, subtracted for stability, stays in the loss and is part of the released gradient.

    Compared with central differences of the reference.
    """
    learned = Learned("podnet", (3,), seed, {"proxies": 2})
    method = learned.method
    x, y = learned.batch()
    method.loss(x, y).backward()
    scale = method.head.scale
    assert isinstance(scale, Tensor)
    for weights in (method.head.weight, scale):
        grad = array(torch.as_tensor(weights.grad)).ravel()
        for place in range(min(len(grad), 8)):
            values = []
            for shift in (1e-5, -1e-5):
                weights.data.view(-1)[place] += shift
                values.append(pod_loss(learned, x, y, 2))
                weights.data.view(-1)[place] -= shift
            assert grad[place] == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5, abs=1e-8)


@cases
@all_steps
def test_podnet_fine_tunes_all_proxies_with_the_same_loss(sizes: tuple[int, ...], seed: int) -> None:
    """inclearn/models/podnet.py, PODNet._train_task with tuning: classifier; the distillation does not reach it."""
    learned = Learned("podnet", sizes, seed)
    method = learned.method
    _, (stage,) = learned.end()
    assert stage.loss is not None
    assert [weights is method.head.weight for weights in stage.parameters] == [True]  # not the scale
    x, y = learned.batch()
    similarities = pod_similarities(method, features_of(method, x), 10)
    expected = pod_nca(similarities, y, float(array(method.head.scale)))
    assert stage.loss(x, y).item() == pytest.approx(expected, rel=TIGHT)


@cases
@all_steps
def test_podnet_prediction(sizes: tuple[int, ...], seed: int) -> None:
    """inclearn/models/podnet.py, PODNet._eval_task (cnn): the largest similarity. Ours are scaled, and shifted by 2."""
    proxies = PROXIES[seed]
    learned = Learned("podnet", sizes, seed, {"proxies": proxies})
    method = learned.method
    learned.end()
    x, _ = learned.batch(40)
    similarities = pod_similarities(method, features_of(method, x), proxies)
    with torch.no_grad():
        found = array(method.predict(x))
    np.testing.assert_allclose(found / float(array(method.head.scale)) - 2, similarities, rtol=TIGHT)
    assert best(found) == best(similarities)


@cases
def test_podnet_freezes_old_proxies(seed: int) -> None:
    """options/podnet/podnet_cnn_cifar100.yaml: groupwise_factors, old_weights 0; only until fine-tuning."""
    learned = Learned("podnet", (3, 2), seed)
    rows, begun = array(learned.method.head.weight), array(learned.begun[0])
    np.testing.assert_array_equal(rows[:30], begun[:30])
    assert (rows[30:] != begun[30:]).all()


def test_podnet_scale_is_free() -> None:
    """inclearn/lib/network/postprocessors.py, FactorScalar."""
    learned = Learned("podnet", (3, 2), 0)
    scale = learned.method.head.scale
    assert isinstance(scale, Tensor)
    scale.data.fill_(0.8)
    learned.method.after_update()
    assert scale.item() == pytest.approx(0.8)


def pod_imprinted(seed: int) -> tuple[Array, Array]:
    """Return the new proxies and those of the released code, for classes of two kinds of images and two proxies.

    inclearn/lib/network/classifiers.py, CosineClassifier.add_imprinted_classes with multi_class_diff kmeans.
    """

    class TwoKinds(Learned):
        def images(self, labels: list[int]) -> Images:
            images = super().images(labels)
            pixels = images.read(torch.arange(len(images))).clone()
            for first in range(0, len(labels), 6):  # six of each kind, and twelve per class
                pixels[first : first + 6] = pixels[first] // 8 * 7 + pixels[first : first + 6] // 8
            return Images.of(pixels, images.labels)

    learned = TwoKinds("podnet", (3, 2), seed, {"proxies": 2})
    images = learned.fit.step.images
    features = unit(features_of(learned.trained, AUGMENT.plain(images, torch.arange(len(images)))))
    rows, begun = learned.head_before[0], array(learned.begun[0])
    length = np.mean([math.sqrt(float(row @ row)) for row in array(rows)])
    centres = np.array([features[first : first + 6].mean(0) for first in range(0, 24, 6)])
    ours = begun[len(rows) :]
    for label in range(2):  # the order of clusters is arbitrary
        pair = slice(2 * label, 2 * label + 2)
        if float(ours[2 * label] @ centres[2 * label]) < float(ours[2 * label] @ centres[2 * label + 1]):
            centres[pair] = centres[pair][::-1].copy()
    return ours, length * centres


@cases
def test_podnet_imprints_the_directions_of_clusters(seed: int) -> None:
    ours, released = pod_imprinted(seed)
    np.testing.assert_allclose(unit(ours), unit(released), atol=SINGLE)


@cases
def test_podnet_imprints_the_lengths_of_clusters(seed: int) -> None:
    ours, released = pod_imprinted(seed)
    np.testing.assert_allclose(ours, released, rtol=1e-3)


POD_MAPS = [(16, 32, 32), (32, 16, 16), (64, 8, 8), (64, 8, 8)]


def maps_of(name: str, side: int) -> list[Tensor]:
    torch.manual_seed(0)
    net = Architecture(name, (3, side, side))(make("podnet").final_relu).eval()
    with torch.no_grad():
        return net.maps(torch.randn(2, 3, side, side), before_last=True)


def test_podnet_distils_four_maps_of_resnet32() -> None:
    """inclearn/convnet/my_resnet.py, CifarResNet.forward (rebuffi): the ends of stages 1 to 3, and of the last block.

    Its stage 3 ends before the last block, which is a stage of its own, so two of the four maps are 64 × 8 × 8.
    """
    assert [tuple(each.shape[1:]) for each in maps_of("resnet32", 32)] == POD_MAPS


@pytest.mark.parametrize(("name", "side"), [("resnet32", 32), ("resnet18", 64)])
def test_podnet_distils_maps_that_no_relu_has_passed(name: str, side: int) -> None:
    """inclearn/convnet/my_resnet.py and resnet.py: maps are taken before any ReLU at the end of a stage."""
    maps = maps_of(name, side)
    assert all((each < 0).any() for each in maps)
    if name == "resnet18":
        assert [each.shape[1] for each in maps] == [64, 128, 256, 512]
    net = Architecture(name, (3, side, side))(make("podnet").final_relu).eval()
    x = torch.randn(2, 3, side, side)
    with torch.no_grad():
        assert torch.equal(net.maps(x)[-1], net.maps(x, before_last=True)[-1])
