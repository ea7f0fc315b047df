"""Methods that train nothing: NCM, SLDA, ridge, RanPAC, ACIL and FeCAM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge as SklearnRidge
from torch import Tensor
from torch.nn import functional as F

from equipoise.core.seeding import generator
from equipoise.data.images import Images
from equipoise.data.stream import Step
from equipoise.engine.learner import Learner
from equipoise.engine.recipes import resolve
from equipoise.errors import UsageError
from equipoise.learn.backbones import Architecture
from equipoise.learn.closed_form import ClosedForm, canonical_order
from equipoise.learn.ridge import Moments, fit_ridge
from equipoise.methods.registry import make
from equipoise.methods.slda import oas
from tests.test_ridge import draw

CLASSES = 4


def rows(sizes: list[int] | None = None, width: int = 12) -> tuple[Tensor, Tensor]:
    values, labels = draw(sizes or [20] * CLASSES, width, spread=1.5)
    return values.abs(), labels


def learned(method: str, features: Tensor, labels: Tensor, steps: list[int], **overrides: Any) -> Learner:
    """Learn rows of features as they are, in steps of the given numbers of classes."""
    sections = {"net": {"backbone": "identity"}, **overrides}
    settings = resolve("folder", method, "features", overrides=sections)
    learner = Learner.create(settings, (features.shape[1], 1, 1), _plain())
    old = 0
    for index, new in enumerate(steps, 1):
        mine = (labels >= old) & (labels < old + new)
        images = Images.of(features[mine][:, :, None, None], labels[mine])
        step = Step(index, old, new, images)
        learner.learn(step, images, images, [str(c) for c in range(old + new)])
        old += new
    return learner


def _plain() -> Any:
    from equipoise.engine.learner import ROWS_AS_THEY_ARE

    return ROWS_AS_THEY_ARE


def classify(learner: Learner, features: Tensor) -> Tensor:
    with torch.no_grad():
        return learner.method.eval().predict(features[:, :, None, None])


@pytest.mark.parametrize("method", ["ncm", "slda", "ridge", "ranpac", "fecam"])
@pytest.mark.parametrize("memory", ["all", 0])
def test_steps_do_not_matter(method: str, memory: str | int) -> None:
    """One step or four: the same answers, from all rows or from moments only."""
    features, labels = rows([9, 20, 14, 17])
    fields = {"fields": {"projection": 50}} if method == "ranpac" else {}
    options = {"memory": {"size": memory}, **fields}
    whole = classify(learned(method, features, labels, [4], **options), features)
    stepwise = classify(learned(method, features, labels, [1, 1, 2], **options), features)
    if memory == "all" and method in ("ridge", "ranpac", "slda"):
        assert torch.equal(whole, stepwise)
    else:
        assert torch.equal(whole.argmax(1), stepwise.argmax(1))


def test_moments_give_the_weights_of_all_rows() -> None:
    features, labels = rows()
    kept = learned("ridge", features, labels, [2, 2], memory={"size": "all"}, fields={"strength": 2.0, "even": False})
    moments = learned("ridge", features, labels, [2, 2], memory={"size": 0}, fields={"strength": 2.0, "even": False})
    cosine = F.cosine_similarity(kept.method.head.weight, moments.method.head.weight)
    torch.testing.assert_close(cosine, torch.ones(CLASSES))
    assert len(kept.memory) == len(labels)
    assert len(moments.memory) == 0
    assert kept.method.state_dict()["scatter"].numel() == 0, "what is kept as rows is not kept twice"


@pytest.mark.parametrize("memory", ["all", 0])
def test_every_class_counts_the_same_by_default(memory: str | int) -> None:
    """scikit-learn solves the same problem with weights: 1 / n for each of a class's n images."""
    features, labels = rows([9, 20, 14, 17])
    options = {"memory": {"size": memory}, "fields": {"strength": 2.0}}
    head = learned("ridge", features, labels, [2, 2], **options).method.head
    weights = 1 / torch.bincount(labels)[labels]
    other = SklearnRidge(2.0).fit(features.double(), F.one_hot(labels).double(), sample_weight=weights)
    cosine = F.cosine_similarity(head.weight.detach().double(), torch.from_numpy(other.coef_))
    torch.testing.assert_close(cosine, torch.ones(CLASSES, dtype=torch.float64))


def test_leave_one_out_logits_are_those_of_the_images_they_name() -> None:
    """Compare with models of scikit-learn that are fitted without each image."""
    features, labels = rows([5, 7, 6, 4])
    fields = {"strength": 2.0, "even": False}
    method = learned("ridge", features, labels, [4], memory={"size": "all"}, fields=fields).method
    assert method.loo_logits is not None
    assert method.loo_rows is not None
    assert sorted(method.loo_rows.tolist()) == list(range(22))
    x, y = features.double().numpy(), F.one_hot(labels).double().numpy()
    whole = SklearnRidge(2.0).fit(x, y)
    temperature = whole.coef_[0, 0] / float(method.head.weight.detach()[0, 0])
    for place, row in enumerate(method.loo_rows.tolist()):
        others = np.arange(22) != row
        expected = SklearnRidge(2.0).fit(x[others], y[others]).predict(x[[row]])[0] / temperature
        np.testing.assert_allclose(method.loo_logits[place].numpy(), expected, rtol=1e-3, atol=1e-3)


def test_ncm_is_the_cosine_to_class_means() -> None:
    features, labels = rows()
    means = torch.stack([features[labels == c].mean(0) for c in range(CLASSES)])
    expected = 20 * F.cosine_similarity(features[:, None], means[None], dim=2)
    learner = learned("ncm", features, labels, [2, 2])
    torch.testing.assert_close(classify(learner, features), expected)
    torch.testing.assert_close(learner.method.state_dict()["means"], means)


@pytest.mark.parametrize("shrinkage", [None, 0.3])
def test_slda_is_linear_discriminant_analysis(shrinkage: float | None) -> None:
    features, labels = rows()
    within = torch.cat([features[labels == c] - features[labels == c].mean(0) for c in range(CLASSES)]).double()
    if shrinkage is None:  # scikit-learn divides by n, and we by n minus the number of classes
        scaled = within.numpy() * np.sqrt(len(within) / (len(within) - CLASSES))
        amount = OAS(assume_centered=True).fit(scaled).shrinkage_
    else:
        amount = shrinkage
    learner = learned("slda", features, labels, [2, 2], fields={"shrinkage": shrinkage})
    covariance = within.T @ within / (len(within) - CLASSES)
    size = len(covariance)
    identity = torch.eye(size, dtype=torch.float64)
    if shrinkage is None:
        other = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=float(amount), priors=[1 / CLASSES] * CLASSES)
        other.fit(features.double().numpy(), labels.numpy())
        ours = classify(learner, features).argmax(1).numpy()
        assert (ours == other.predict(features.double().numpy())).mean() > 0.98
        identity = identity * covariance.trace() / size
    mixed = (1 - amount) * covariance + amount * identity  # the authors add the identity itself
    means = torch.stack([features[labels == c].double().mean(0) for c in range(CLASSES)])
    precision = torch.linalg.inv(mixed)
    expected = features.double() @ precision @ means.T - 0.5 * (means @ precision * means).sum(1)
    difference = classify(learner, features).double() - expected
    torch.testing.assert_close(difference, difference[:, :1].expand(-1, CLASSES), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("sizes", [[2, 1], [9, 20, 14, 3]])
@pytest.mark.parametrize("shrinkage", [None, 0.0, 0.3])
@pytest.mark.parametrize("memory", ["all", 0])
def test_slda_of_classes_of_unequal_size(
    sizes: list[int], even: bool, shrinkage: float | None, memory: str | int
) -> None:
    """Each class, or each image, counts the same; the covariance has n − 1 degrees of freedom per class."""
    features, labels = rows(sizes)
    x, counts = features.double(), torch.bincount(labels)
    weights = 1 / counts[labels] if even else torch.ones(len(labels))
    freedom = sum((1 - 1 / n if even else n - 1) for n in sizes)
    means = torch.stack([x[labels == c].mean(0) for c in range(len(sizes))])
    centred = (x - means[labels]) * weights.sqrt()[:, None]
    covariance, size = centred.T @ centred / freedom, x.shape[1]
    amount, target = shrinkage, torch.eye(size, dtype=torch.float64)
    if amount is None:
        as_many = centred * (len(x) / freedom) ** 0.5  # rows with this covariance, as scikit-learn computes it
        amount = float(OAS(assume_centered=True).fit(as_many.numpy()).shrinkage_)
        target = target * covariance.trace() / size
    precision = torch.linalg.pinv((1 - amount) * covariance + amount * target, hermitian=True)
    expected = x @ precision @ means.T - 0.5 * (means @ precision * means).sum(1)
    fields = {"shrinkage": shrinkage, "even": even}
    steps = [1, len(sizes) - 1]
    found = classify(learned("slda", features, labels, steps, fields=fields, memory={"size": memory}), features)
    difference = found.double() - expected
    torch.testing.assert_close(difference, difference[:, :1].expand_as(difference), atol=2e-3, rtol=1e-3)


def test_shrinkage_is_that_of_scikit_learn() -> None:
    x = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 6)
    estimate = OAS(assume_centered=True).fit(x.numpy()).shrinkage_
    assert 0 < estimate < 1
    assert oas(x.T @ x / 9, 9) == pytest.approx(estimate)
    assert oas(torch.eye(3), 9) == 1.0
    assert oas(torch.diag(torch.tensor([1.0, 1.1, 0.9])), 9) == 1.0, "never more than all of it"


@pytest.mark.parametrize("method", ["ncm", "slda", "ridge", "ranpac", "fecam"])
def test_nothing_is_trained(method: str) -> None:
    features, labels = rows()
    overrides = {"net": {"backbone": "mlp"}, "fields": {"projection": 30} if method == "ranpac" else {}}
    learner = learned(method, features, labels, [2, 2], **overrides)
    untouched = Learner.create(learner.settings, (12, 1, 1), _plain()).method.backbone.state_dict()
    for name, value in learner.method.backbone.state_dict().items():
        assert torch.equal(value, untouched[name]), name
    assert learner.method.head.weight.shape[0] == CLASSES


def test_ranpac_is_ridge_on_a_random_projection() -> None:
    features, labels = rows()
    fields = {"fields": {"projection": 40, "even": False}}
    learner = learned("ranpac", features, labels, [2, 2], memory={"size": "all"}, **fields)
    drawn = torch.randn(12, 40, generator=generator("ranpac", 40))
    projected = F.relu(features @ drawn)
    solution = fit_ridge(projected, labels, CLASSES, even=False)
    expected = projected.double() @ solution.weight.T + solution.bias
    torch.testing.assert_close(classify(learner, features).double(), expected, atol=1e-3, rtol=1e-3)


def test_fecam_is_a_mahalanobis_distance_per_class() -> None:
    features, labels = rows()
    learner = learned("fecam", features, labels, [2, 2])
    x = F.normalize(features.double().sqrt(), dim=1)
    expected = []
    for c in range(CLASSES):
        mine = features[labels == c].double()
        covariance = torch.from_numpy(np.cov(mine.sqrt().numpy().T))
        diagonal, size = covariance.diagonal().mean(), len(covariance)
        others = (covariance.sum() - covariance.trace()) / (size * size - size)
        eye = torch.eye(size, dtype=torch.float64)
        covariance = covariance + diagonal * eye + others * (1 - eye)
        diagonal, others = covariance.diagonal().mean(), covariance[~eye.bool()].mean()
        covariance = covariance + diagonal * eye + others * (1 - eye)
        deviation = covariance.diagonal().sqrt()
        inverse = torch.linalg.inv(covariance / deviation[:, None] / deviation[None])
        distance = x - F.normalize(mine.mean(0).sqrt(), dim=0)
        expected.append(-(distance @ inverse * distance).sum(1))
    torch.testing.assert_close(classify(learner, features).double(), torch.stack(expected, 1), atol=1e-3, rtol=1e-3)


def test_fecam_of_one_image_or_one_feature_is_the_nearest_direction() -> None:
    """Without any spread, all variances are alike after shrinkage and normalisation, and so are all features."""
    features, labels = rows([1, 1, 1])
    learner = learned("fecam", features, labels, [2, 1])
    x = F.normalize(features.double().sqrt(), dim=1)
    expected = -(x[:, None] - x[labels.argsort()]).square().sum(2)
    torch.testing.assert_close(classify(learner, features).double(), expected, atol=1e-4, rtol=1e-4)
    one = torch.tensor([[1.0], [2.0], [4.0], [3.0]])
    learner = learned("fecam", one, torch.tensor([0, 0, 1, 1]), [1, 1])
    torch.testing.assert_close(classify(learner, one), torch.zeros(4, 2))  # all have the same direction


@pytest.mark.parametrize("sizes", [[2, 3, 5]])
def test_fecam_shrinks_as_often_and_as_much_as_asked(sizes: list[int]) -> None:
    features, labels = rows(sizes, width=5)
    for times, more, others in ((0, 1.0, 1.0), (1, 0.5, 0.25), (3, 2.0, 0.5)):
        fields = {"shrinkages": times, "shrink_diagonal": more, "shrink_others": others, "tukey": 0.3}
        learner = learned("fecam", features, labels, [3], fields=fields)
        x = F.normalize(features.double() ** 0.3, dim=1)
        expected = []
        for c in range(3):
            mine = features[labels == c].double()
            covariance = np.cov((mine**0.3).numpy().T)
            diagonal = np.eye(5, dtype=bool)
            for _ in range(times):
                on, off = covariance[diagonal].mean(), covariance[~diagonal].mean()
                covariance = covariance + more * on * diagonal + others * off * ~diagonal
            deviation = np.sqrt(covariance.diagonal())
            inverse = torch.from_numpy(np.linalg.pinv(covariance / np.outer(deviation, deviation), hermitian=True))
            distance = x - F.normalize(mine.mean(0) ** 0.3, dim=0)
            expected.append(-(distance @ inverse * distance).sum(1))
        found = classify(learner, features).double()
        torch.testing.assert_close(found, torch.stack(expected, 1), atol=1e-3, rtol=1e-3)


def test_fecam_takes_negative_features_without_tukeys_transform() -> None:
    features, labels = rows()
    with pytest.raises(UsageError, match=r"set method\.tukey=none"):
        learned("fecam", -features, labels, [2, 2])
    fields = {"tukey": None, "shrinkages": 1, "shrink_others": 0.0}
    learner = learned("fecam", -features, labels, [2, 2], fields=fields)
    x = F.normalize(-features.double(), dim=1)
    expected = []
    for c in range(CLASSES):
        covariance = torch.from_numpy(np.cov(x[labels == c].numpy().T))
        covariance = covariance + covariance.diagonal().mean() * torch.eye(len(covariance), dtype=torch.float64)
        deviation = covariance.diagonal().sqrt()
        inverse = torch.linalg.inv(covariance / deviation[:, None] / deviation[None])
        distance = x - x[labels == c].mean(0)
        expected.append(-(distance @ inverse * distance).sum(1))
    torch.testing.assert_close(classify(learner, -features).double(), torch.stack(expected, 1), atol=1e-3, rtol=1e-3)


def test_slda_of_equal_images_is_the_nearest_mean() -> None:
    for seed in range(20):
        centres = torch.randn(3, 80, generator=torch.Generator().manual_seed(seed))
        labels = torch.arange(3).repeat_interleave(3)
        learner = learned("slda", centres[labels], labels, [2, 1])
        assert classify(learner, centres).argmax(1).tolist() == [0, 1, 2]


def test_removing_classes_from_statistics_leaves_the_share_of_the_others() -> None:
    features, labels = rows([20] * 8)
    learner = learned("slda", features, labels, [8], memory={"size": 0})
    scatter = learner.method.state_dict()["scatter"].clone()
    learner.method.keep_classes(torch.tensor([0, 3]))
    torch.testing.assert_close(learner.method.state_dict()["scatter"], scatter / 4)


@pytest.mark.parametrize(("even", "share"), [(True, 2 / 4), (False, (6 + 12) / 60)])
def test_removing_classes_keeps_the_moments_of_the_others(even: bool, share: float) -> None:
    features, labels = rows([6, 18, 24, 12])
    method = learned("slda", features, labels, [4], memory={"size": 0}, fields={"even": even}).method
    scatter = method.state_dict()["scatter"].clone()
    method.keep_classes(torch.tensor([0, 3]))
    left = method.state_dict()
    assert left["counts"].tolist() == [6, 12]
    means = torch.stack([features[labels == c].double().mean(0) for c in (0, 3)])
    torch.testing.assert_close(left["means"], means)
    torch.testing.assert_close(left["scatter"], share * scatter)
    assert method.head.weight.shape == (2, 12)


class Threads(ClosedForm):
    """Notes how many threads it is solved on."""

    seen = 0

    def solve(self, known: Moments) -> tuple[Tensor, Tensor]:
        self.seen = torch.get_num_threads()
        return known.means, known.counts


def test_rows_are_solved_on_one_thread_so_that_the_bits_do_not_depend_on_their_number() -> None:
    method = Threads()
    method.build(Architecture("identity", (3, 1, 1)))
    method.head.grow(2)
    torch.set_num_threads(2)
    try:
        method.solve_rows(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.tensor([1, 0]), 2)
        assert (method.seen, torch.get_num_threads()) == (1, 2)
    finally:
        torch.set_num_threads(1)
    assert method.head.weight.tolist() == [[4, 5, 6], [1, 2, 3]]
    assert method.head.bias is not None
    assert method.head.bias.tolist() == [1, 1]


def test_the_canonical_order_is_that_of_the_bytes_of_rows() -> None:
    rows_ = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))[:, ::2]  # not contiguous
    by_bytes = sorted(range(40), key=lambda row: rows_[row].numpy().tobytes())
    assert canonical_order(rows_).tolist() == by_bytes


@pytest.mark.parametrize("method", ["ncm", "slda", "ridge", "ranpac", "fecam"])
def test_a_method_that_is_solved_has_no_choice_of_a_bias(method: str) -> None:
    with pytest.raises(UsageError, match=rf"{method} has no linear head for a bias: set method\.bias=false"):
        make(method, {"bias": True})


def test_acil_trains_only_in_the_first_step() -> None:
    features, labels = rows()
    sections: dict[str, Any] = {"net": {"backbone": "mlp"}, "train": {"epochs": 2}, "fields": {"projection": 30}}
    settings = resolve("folder", "acil", "features", overrides=sections)
    learner = Learner.create(settings, (12, 1, 1), _plain())
    states = []
    for index, old in enumerate((0, 2), 1):
        mine = (labels >= old) & (labels < old + 2)
        images = Images.of(features[mine][:, :, None, None], labels[mine])
        learner.learn(Step(index, old, 2, images), images, images, list("abcd")[: old + 2])
        states.append({name: value.clone() for name, value in learner.method.backbone.state_dict().items()})
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    kept = [name for name, value in learner.method.state_dict().items() if name.startswith("first_head") and len(value)]
    assert not kept, "the head of the first step was for training only"
    assert classify(learner, features).shape == (len(labels), CLASSES)


@pytest.mark.parametrize("fields", [{"strength": 0.0}, {"strength": -1.0}])
def test_an_invalid_strength_is_rejected(fields: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="strength must be between 1e-12 and"):
        resolve("digits", "ridge", overrides={"fields": fields})


def test_ranpac_does_not_depend_on_the_order_of_rows() -> None:
    draws = torch.Generator().manual_seed(0)
    features, labels = torch.rand(257, 1280, generator=draws), torch.arange(257) % CLASSES
    order = torch.randperm(257, generator=draws)
    heads = []
    for rows_, classes in ((features, labels), (features[order], labels[order])):
        fields = {"fields": {"projection": 100}}
        learner = learned("ranpac", rows_, classes, [2, 2], memory={"size": "all"}, **fields)
        heads.append(learner.method.head.state_dict())
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in ("weight", "bias"))
