"""Ridge regression in closed form, against solutions that are computed in another way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge as SklearnRidge
from torch import Tensor
from torch.nn import functional as F

from equipoise.learn.bursts import BURST, merge_bursts
from equipoise.learn.closed_form import canonical_order
from equipoise.learn.ridge import FEW_IMAGES, RidgePath, best_temperature, choose_ridge, fit_ridge, moments


def draw(sizes: list[int], width: int, seed: int = 0, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return rows around a random mean per class, in random order."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    centres = torch.randn(len(sizes), width, generator=random)
    rows = centres[labels] + spread * torch.randn(len(labels), width, generator=random)
    order = torch.randperm(len(labels), generator=random)
    return rows[order], labels[order]


def weights_of(labels: Tensor, even: bool) -> np.ndarray:
    counts = torch.bincount(labels).double()
    return (1 / counts[labels] if even else torch.ones(len(labels))).numpy()


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("width", [7, 60])
def test_the_solution_is_scikit_learns(even: bool, width: int) -> None:
    """With more rows than features, and with fewer, where an n × n matrix is solved instead."""
    rows, labels = draw([12, 5, 9], width)
    path = RidgePath(moments(rows, labels, 3, even), rows, labels)
    weight, bias = path.solve(0.7)
    other = SklearnRidge(alpha=0.7, solver="cholesky")
    other.fit(rows.double().numpy(), F.one_hot(labels).double().numpy(), sample_weight=weights_of(labels, even))
    np.testing.assert_allclose(weight.numpy(), other.coef_, atol=1e-9)
    np.testing.assert_allclose(bias.numpy(), other.intercept_, atol=1e-9)
    same = RidgePath(moments(rows, labels, 3, even)).solve(0.7)
    torch.testing.assert_close(same[0], weight)


def leave_one_out(path: RidgePath, rows: Tensor, labels: Tensor, strength: float) -> Tensor:
    return path.leave_one_out(path.project(rows), labels, strength)


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("width", [4, 40])
def test_leave_one_out_is_exact(even: bool, width: int) -> None:
    """Solve again without each row; the weights of the other rows stay as they are."""
    rows, labels = draw([6, 4, 5], width)
    predicted = leave_one_out(RidgePath(moments(rows, labels, 3, even), rows, labels), rows, labels, 0.3)
    x, y, w = rows.double().numpy(), F.one_hot(labels).double().numpy(), weights_of(labels, even)
    for left in range(len(labels)):
        others = np.arange(len(labels)) != left
        model = SklearnRidge(alpha=0.3, solver="cholesky").fit(x[others], y[others], sample_weight=w[others])
        np.testing.assert_allclose(predicted[left].numpy(), model.predict(x[left : left + 1])[0], atol=1e-8)


def test_generalised_cross_validation_needs_no_rows() -> None:
    """Compare with the definition: residual sum of squares over the squared share of free parameters."""
    rows, labels = draw([30, 30, 30], 12, spread=3.0)
    path = RidgePath(moments(rows, labels, 3, even=False))
    x, y = rows.double(), F.one_hot(labels).double()
    x, y = x - x.mean(0), y - y.mean(0)
    errors = []
    for strength in path.strengths():
        hat = x @ torch.linalg.solve(x.T @ x + strength * torch.eye(12, dtype=torch.float64), x.T)
        errors.append(((y - hat @ y) ** 2).sum() / (1 - (hat.trace() + 1) / 90) ** 2)
    assert path.generalised() == path.strengths()[int(torch.stack(errors).argmin())]


def test_moments_of_classes_add_up() -> None:
    rows, labels = draw([5, 8, 3], 6)
    whole = moments(rows, labels, 3)
    first, second = labels < 2, labels == 2
    joined = moments(rows[first], labels[first], 2).join(moments(rows[second], labels[second] - 2, 1))
    for name in ("counts", "means", "gram"):
        torch.testing.assert_close(getattr(joined, name), getattr(whole, name))


@given(seed=st.integers(0, 99), classes=st.integers(2, 6))
@settings(max_examples=20, deadline=None)
def test_the_order_of_classes_changes_no_bit(seed: int, classes: int) -> None:
    rows, labels = draw([4 + c for c in range(classes)], 10, seed)
    solution = fit_ridge(rows, labels, classes)
    renamed = torch.randperm(classes, generator=torch.Generator().manual_seed(seed))
    other = fit_ridge(rows, renamed[labels], classes)
    assert torch.equal(other.weight[renamed], solution.weight)
    assert torch.equal(other.bias[renamed], solution.bias)
    assert solution.loo is not None
    assert other.loo is not None
    assert torch.equal(other.loo[:, renamed], solution.loo)


def test_the_canonical_order_depends_on_the_rows_only() -> None:
    rows = torch.randn(50, 3)
    shuffled = rows[torch.randperm(50)]
    assert torch.equal(rows[canonical_order(rows)], shuffled[canonical_order(shuffled)])


def test_bursts_count_as_one_image() -> None:
    rows, labels = draw([6, 6], 20)
    burst = rows[:1] + 0.01 * torch.randn(30, 20)
    many, kinds = torch.cat([rows, burst]), torch.cat([labels, labels[:1].expand(30)])
    merged, kept, group = merge_bursts(many, kinds)
    assert len(merged) == len(kept) == 12
    assert (group[12:] == group[0]).all()
    torch.testing.assert_close(merged[0], torch.cat([rows[:1], burst]).mean(0))
    plain, with_burst = fit_ridge(rows, labels, 2), fit_ridge(many, kinds, 2)
    assert with_burst.loo is not None
    assert with_burst.loo.shape == (42, 2)
    torch.testing.assert_close(with_burst.weight, plain.weight, atol=0.05, rtol=0.05)


def test_similar_images_are_not_chained_into_one() -> None:
    """Images along a line: neighbours are similar, the ends are not, and must not become one image."""
    angle = torch.linspace(0, 3, 40)
    line = torch.stack([angle.cos(), angle.sin()], 1)
    merged, _, _ = merge_bursts(torch.cat([line, -line]), torch.cat([torch.zeros(40), torch.ones(40)]).long())
    assert 4 < len(merged) < 20


def test_a_class_with_few_images_is_not_at_a_disadvantage() -> None:
    """Without an offset, most images of a class with two images are predicted as classes with forty."""
    width = 30
    sizes = [40, 40, 40, 2, 2, 2]
    rows, labels = draw(sizes, width, spread=1.5)
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(len(sizes), width, generator=random)
    tests = centres.repeat_interleave(200, 0) + 1.5 * torch.randn(1200, width, generator=random)
    truth = torch.arange(6).repeat_interleave(200)

    def lost(even: bool) -> tuple[int, int]:
        solution = fit_ridge(rows, labels, 6, even)
        predicted = (tests.double() @ solution.weight.T + solution.bias).argmax(1)
        few, as_few = truth >= 3, predicted >= 3
        return int((few & ~as_few).sum()), int((~few & as_few).sum())

    to_many, to_few = lost(even=True)
    assert lost(even=False)[0] > 3 * to_many
    assert abs(to_many - to_few) < 250


def test_one_image_per_class_is_enough() -> None:
    rows, labels = draw([1, 1, 1], 16)
    solution = fit_ridge(rows, labels, 3)
    assert (solution.weight.isfinite()).all()
    assert solution.offset == FEW_IMAGES
    assert torch.equal((rows.double() @ solution.weight.T + solution.bias).argmax(1), labels)


def test_identical_images_and_constant_features_are_harmless() -> None:
    rows = torch.ones(6, 4)
    solution = fit_ridge(rows, torch.tensor([0, 0, 0, 1, 1, 1]), 2)
    assert solution.weight.isfinite().all()
    assert solution.bias.isfinite().all()


def test_probabilities_are_calibrated() -> None:
    """The temperature minimises the leave-one-out loss and its distance from what is expected; compare with a grid."""
    rows, labels = draw([30, 30, 30, 30], 20, spread=3.0)
    path = RidgePath(moments(rows, labels, 4), rows, labels)
    strength, temperature, _ = choose_ridge(path, rows, labels)
    scores = leave_one_out(path, rows, labels, strength)
    share = torch.full((120,), 1 / 120, dtype=torch.float64)
    loss, best = best_temperature(scores, torch.zeros(4), labels, share)
    assert best == pytest.approx(temperature, rel=1e-6)
    grid = [
        F.cross_entropy(scores / t, labels).item() + np.log(t / 0.05) ** 2 / (2 * 0.7**2 * 120)
        for t in np.logspace(-2.5, 0.5, 400)
    ]
    assert loss == pytest.approx(min(grid), abs=1e-4)


def test_a_few_images_that_are_easy_to_tell_apart_do_not_make_it_certain() -> None:
    """Without what is expected, no temperature would be low enough: every leave-one-out prediction is right."""
    rows, labels = draw([4, 4], 200, spread=0.3)
    assert fit_ridge(rows, labels, 2).temperature > 0.02


def test_one_image_beside_many() -> None:
    """With two classes of many images and two of one, the offset cannot be chosen, and both kinds are recognised."""
    random = torch.Generator().manual_seed(1)
    centres = torch.randn(4, 300, generator=random)
    labels = torch.tensor([0] * 30 + [1] * 30 + [2, 3])
    rows = centres[labels] + 1.2 * torch.randn(62, 300, generator=random)
    truth = torch.arange(4).repeat_interleave(100)
    tests = centres[truth] + 1.2 * torch.randn(400, 300, generator=random)
    solution = fit_ridge(rows, labels, 4)
    right = (tests.double() @ solution.weight.T + solution.bias).argmax(1) == truth
    assert solution.offset == FEW_IMAGES
    assert right[truth < 2].double().mean() > 0.9
    assert right[truth >= 2].double().mean() > 0.9


def test_a_given_strength_is_used() -> None:
    rows, labels = draw([10, 10], 5)
    assert fit_ridge(rows, labels, 2, strength=3.5).strength == 3.5


def test_a_low_rank_is_solved_as_a_full_one() -> None:
    rows, labels = draw([6, 9, 4], 120)
    known = moments(rows, labels, 3)
    low = RidgePath(known)
    assert len(low.values) == 27 < 120
    values, axes = torch.linalg.eigh(known.centred())
    for strength in low.strengths():
        solution = (axes @ (axes.T @ (known.means - known.mean).T / (values + strength)[:, None])).T
        torch.testing.assert_close(low.solve(strength)[0], solution, rtol=1e-6, atol=1e-9)


def test_bursts_do_not_depend_on_classes_that_are_far_away() -> None:
    rows, labels = draw([8, 8], 40)
    rows[labels == 1] += 20  # far away, so that both classes are small clusters seen from the common mean
    merged, _, _ = merge_bursts(rows[labels == 0], labels[labels == 0])
    both, kept, _ = merge_bursts(rows, labels)
    assert torch.equal(both[kept == 0], merged)
    assert len(merged) == 8


def test_images_of_a_fixed_camera_are_no_burst() -> None:
    """All images look alike, and a detail makes the difference between classes."""
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(3).repeat_interleave(20)
    details = 0.5 * torch.randn(3, 50, generator=draws)[labels] + torch.randn(60, 50, generator=draws)
    features = 10 + details
    assert ((features[0] - features[1]).square().sum() / features[0].norm() / features[1].norm()) < BURST
    assert len(merge_bursts(features, labels)[1]) == 60
    frames = features[:1] + 0.05 * torch.randn(30, 50, generator=draws)
    merged = merge_bursts(torch.cat([features, frames]), torch.cat([labels, torch.zeros(30, dtype=torch.long)]))
    assert (merged[1] == 0).sum() == 20, "but frames of one image are"
