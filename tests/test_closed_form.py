"""Methods that train nothing: NCM, SLDA, ridge, RanPAC, ACIL and FeCAM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor
from torch.nn import functional as F

from equipoise.core.seeding import generator
from equipoise.data.images import Images
from equipoise.data.stream import Step
from equipoise.engine.learner import Learner
from equipoise.engine.recipes import resolve
from equipoise.errors import UsageError
from equipoise.learn.ridge import fit_ridge
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


def test_ncm_is_the_cosine_to_class_means() -> None:
    features, labels = rows()
    means = torch.stack([features[labels == c].mean(0) for c in range(CLASSES)])
    expected = 20 * F.cosine_similarity(features[:, None], means[None], dim=2)
    torch.testing.assert_close(classify(learned("ncm", features, labels, [2, 2]), features), expected)


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
        distance = x - F.normalize(x[labels == c].mean(0), dim=0)
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
    with pytest.raises(UsageError, match="strength must be positive"):
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
