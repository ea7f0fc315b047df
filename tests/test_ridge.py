"""Ridge regression in closed form, against solutions that are computed in another way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.linear_model import Ridge as SklearnRidge
from torch import Tensor
from torch.nn import functional as F

from equipoise.learn.bursts import BURST, merge_bursts
from equipoise.learn.closed_form import canonical_order
from equipoise.learn.ridge import FEW_IMAGES, UNTESTED, RidgePath, best_temperature, choose_ridge, fit_ridge, moments


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


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("sizes", [[30, 30, 30], [12, 40, 25], [3, 2, 4]])
@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0, 9.0])
def test_generalised_cross_validation_needs_no_rows(even: bool, sizes: list[int], spread: float) -> None:
    """Compare with the definition: residual sum of squares over the squared share of free parameters."""
    rows, labels = draw(sizes, 12, spread=spread)
    path = RidgePath(moments(rows, labels, 3, even))
    w = torch.from_numpy(weights_of(labels, even)).double()
    x, y = rows.double(), F.one_hot(labels).double()
    x, y = ((part - w @ part / w.sum()) * w.sqrt()[:, None] for part in (x, y))
    errors = []
    for strength in path.strengths():
        hat = x @ torch.linalg.solve(x.T @ x + strength * torch.eye(12, dtype=torch.float64), x.T)
        errors.append(((y - hat @ y) ** 2).sum() / (1 - (hat.trace() + 1) / len(labels)) ** 2)
    assert path.generalised() == path.strengths()[int(torch.stack(errors).argmin())]


@pytest.mark.parametrize(("sizes", "width"), [([5, 7], 4), ([5, 7], 12), ([5, 7], 30)])
@pytest.mark.parametrize("even", [True, False])
def test_strengths_are_relative_to_the_mean_eigenvalue(sizes: list[int], width: int, even: bool) -> None:
    """With fewer rows than features, only as many eigenvalues count as there can be."""
    rows, labels = draw(sizes, width)
    w = weights_of(labels, even)
    x = rows.double().numpy()
    values = np.linalg.eigvalsh(((x - np.average(x, 0, w)) * w[:, None]).T @ (x - np.average(x, 0, w)))
    scale = values.sum() / min(width, 11 if width > 12 else 12)
    expected = np.array([scale * 10**exponent for exponent in np.arange(-4.5, 1.6, 0.5)])
    for factor in (1, 1e-3):
        small = factor * rows
        found = RidgePath(moments(small, labels, 2, even), small, labels).strengths()
        np.testing.assert_allclose(found, factor**2 * expected, rtol=1e-5)
        assert {type(value) for value in found} == {float}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("sizes", "copies"), [([1, 1], 1), ([3, 2], 3), ([4, 3], 2)])
def test_copies_of_rows_add_no_directions(sizes: list[int], copies: int, seed: int) -> None:
    """What is left of a direction by rounding is not one."""
    rows, labels = (part.repeat(copies, *[1] * (part.dim() - 1)) for part in draw(sizes, 40, seed))
    path = RidgePath(moments(rows, labels, 2), rows, labels)
    assert len(path.values) == sum(sizes) - 1
    other = SklearnRidge(alpha=1e-3, solver="svd")
    other.fit(rows.double().numpy(), F.one_hot(labels).double().numpy(), sample_weight=weights_of(labels, even=True))
    np.testing.assert_allclose(path.solve(1e-3)[0].numpy(), other.coef_, atol=1e-8)


def test_leave_one_out_is_finite_where_a_row_determines_its_own_prediction() -> None:
    rows = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    labels = torch.tensor([0, 1])
    path = RidgePath(moments(rows, labels, 2), rows, labels)
    assert leave_one_out(path, rows, labels, 1e-30).isfinite().all()


def test_moments_are_sums_over_images() -> None:
    rows, labels = draw([5, 8, 3], 6)
    x, y = rows.double(), labels.numpy()
    for even in (True, False):
        known, w = moments(rows, labels, 3, even), torch.from_numpy(weights_of(labels, even)).double()
        means = torch.stack([x[y == c].mean(0) for c in range(3)])
        shares = torch.stack([w[y == c].sum() for c in range(3)])
        centre = (w @ x) / w.sum()
        torch.testing.assert_close(known.mean, centre)
        torch.testing.assert_close(known.gram, x.T @ (w[:, None] * x))
        torch.testing.assert_close(known.centred(), (x - centre).T @ (w[:, None] * (x - centre)))
        torch.testing.assert_close(known.between(), sum(shares[c] * means[c].outer(means[c]) for c in range(3)))


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


@pytest.mark.parametrize(("even", "merge"), [(True, False), (False, True), (False, False)])
def test_bursts_are_merged_only_if_classes_count_the_same_and_it_is_asked_for(even: bool, merge: bool) -> None:
    rows, labels = draw([6, 6], 20)
    many = torch.cat([rows, rows[:1] + 0.01 * torch.randn(30, 20)])
    kinds = torch.cat([labels, labels[:1].expand(30)])
    solution = fit_ridge(many, kinds, 2, even, 0.5, merge)
    other = SklearnRidge(alpha=0.5, solver="cholesky")
    other.fit(many.double().numpy(), F.one_hot(kinds).double().numpy(), sample_weight=weights_of(kinds, even))
    torch.testing.assert_close(solution.weight * solution.temperature, torch.from_numpy(other.coef_))


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
    assert solution.offset == UNTESTED
    assert solution.loo.shape == (0, 3)
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


def scores_without(rows: Tensor, labels: Tensor, strength: float, even: bool) -> Tensor:
    """Return leave-one-out scores by scikit-learn, solving without each image; the weights of the others stay."""
    x, y, w = rows.double().numpy(), F.one_hot(labels).double().numpy(), weights_of(labels, even)
    found = []
    for left in range(len(labels)):
        rest = np.arange(len(labels)) != left
        model = SklearnRidge(strength, solver="cholesky").fit(x[rest], y[rest], w[rest])
        found.append(torch.from_numpy(model.predict(x[[left]])[0]))
    return torch.stack(found)


def best_choice(rows: Tensor, labels: Tensor, even: bool) -> tuple[float, float, float]:
    """Try every λ and offset of docs/performance.md, and the best temperature of each, on scikit-learn's scores."""
    counts = torch.bincount(labels)
    several = (counts > 1).nonzero()[:, 0]
    mine = torch.isin(labels, several)
    column = torch.searchsorted(several, labels[mine])
    share = torch.stack([1 / counts[c] / len(several) for c in labels[mine]]).double()
    found = []
    for strength in RidgePath(moments(rows, labels, len(counts), even), rows, labels).strengths():
        scores = scores_without(rows, labels, strength, even)[mine][:, several]
        typical = max(0.0, float(share @ scores[torch.arange(len(column)), column]))
        for offset in (0, 0.2, 0.4, 0.6, 0.8, 1) if even else (0,):
            shifted = scores + offset * typical / counts[several].sqrt()

            def loss(exponent: float, shifted: Tensor = shifted) -> float:
                terms = F.cross_entropy(shifted / 10**exponent, column, reduction="none")
                return float(share @ terms) + float(np.log(10**exponent / 0.05)) ** 2 / (2 * 0.7**2 * len(column))

            best = minimize_scalar(loss, bounds=(np.log10(0.05) - 1.5, np.log10(0.05) + 1.5), method="bounded")
            penalty = 0.1 * (offset - 0.6) ** 2 if even else 0
            found.append((best.fun + penalty, strength, 10**best.x, offset * typical))
    return min(found)[1:]


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("sizes", [[9, 4, 2, 1], [1, 3, 12, 2]])
@pytest.mark.parametrize("spread", [0.5, 1.0, 1.5])
def test_all_is_chosen_by_the_likelihood_of_leave_one_out(sizes: list[int], even: bool, spread: float) -> None:
    rows, labels = draw(sizes, 25, spread=spread)
    strength, temperature, offset = best_choice(rows, labels, even)
    solution = fit_ridge(rows, labels, 4, even)
    assert solution.strength == pytest.approx(strength)
    assert solution.temperature == pytest.approx(temperature, rel=0.012)
    assert solution.offset == pytest.approx(offset)
    x, counts = rows.double().numpy(), torch.bincount(labels).double()
    model = SklearnRidge(strength, solver="cholesky")
    model.fit(x, F.one_hot(labels).double().numpy(), weights_of(labels, even))
    t, extra = solution.temperature, offset / counts.sqrt()
    torch.testing.assert_close(solution.weight * t, torch.from_numpy(model.coef_))
    torch.testing.assert_close(solution.bias * t - extra, torch.from_numpy(model.intercept_))
    assert solution.loo_rows.tolist() == [row for row in range(len(labels)) if counts[labels[row]] > 1]
    assert solution.loo.dtype == torch.float32
    expected = (scores_without(rows, labels, strength, even) + extra)[solution.loo_rows] / t
    torch.testing.assert_close(solution.loo.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("relative", "spread", "seed"), [(0.0, 1.0, 4), (0.2, 0.6, 4), (0.4, 0.3, 2), (0.8, 1.5, 5), (1.0, 0.6, 0)]
)
def test_data_choose_other_offsets(relative: float, spread: float, seed: int) -> None:
    rows, labels = draw([8, 2], 6, seed, spread)
    strength, _, offset = best_choice(rows, labels, even=True)
    solution = fit_ridge(rows, labels, 2, merge=False)
    assert solution.strength == pytest.approx(strength)
    assert solution.offset == pytest.approx(offset)
    assert solution.offset == pytest.approx(relative * true_score(rows, labels, strength))


def test_the_offset_is_never_negative() -> None:
    """With a λ that is far too small, predictions for the images of the true class are below zero."""
    rows, labels = draw([2, 2], 2, seed=5)
    assert true_score(rows, labels, 0.01) < -1
    assert fit_ridge(rows, labels, 2, strength=0.01, merge=False).offset == 0


def test_what_is_given_stays_and_what_cannot_be_tested_has_a_default() -> None:
    rows, labels = draw([5, 6, 1], 9)
    path = RidgePath(moments(rows, labels, 3), rows, labels)
    assert choose_ridge(path, rows, labels, strength=0.25)[0] == 0.25
    assert choose_ridge(path, rows, labels, offset=0.125)[2] == 0.125
    assert choose_ridge(path, rows[:0], labels[:0]) == (path.scale, 0.035, 0.45)
    only = labels == 2  # no image of this class can be left out
    assert choose_ridge(path, rows[only], labels[only]) == (path.scale, 0.035, 0.45)
    assert choose_ridge(path, rows[only], labels[only], 0.25, 0.125) == (0.25, 0.035, 0.125)
    rows, labels = draw([4, 1, 1], 9)  # without another class, nothing can be confused
    for even, offset in ((True, 0.45), (False, 0.0)):
        path = RidgePath(moments(rows, labels, 3, even), rows, labels)
        assert choose_ridge(path, rows, labels) == (path.scale, 0.035, offset)


def test_many_rows_are_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = draw([20, 21, 22], 9)
    path = RidgePath(moments(rows, labels, 3), rows, labels)
    every = {number: choose_ridge(path, rows[::number], labels[::number]) for number in (1, 2, 3)}
    assert len(set(every.values())) == 3
    for logits, number in ((189, 1), (188, 2), (95, 2), (94, 3)):  # 63 rows, three logits each
        monkeypatch.setattr("equipoise.learn.ridge.CHOICES", logits)
        assert choose_ridge(path, rows, labels) == every[number]
    monkeypatch.undo()
    whole = fit_ridge(rows, labels, 3)
    assert whole.loo_rows.tolist() == list(range(63))
    for logits, number in ((189, 1), (188, 2), (95, 2), (94, 3)):
        monkeypatch.setattr("equipoise.learn.ridge.SHOWN", logits)
        solution = fit_ridge(rows, labels, 3)
        assert solution.loo_rows.tolist() == list(range(0, 63, number))
        assert torch.equal(solution.loo, whole.loo[::number])


@pytest.mark.parametrize(("right", "bound"), [(False, 0.05 * 10**1.5), (True, 0.05 / 10**1.5)])
def test_the_temperature_stays_within_a_factor_of_32_of_what_is_expected(right: bool, bound: float) -> None:
    """Large scores that tell nothing ask for a higher one, and small ones that are always right for a lower one."""
    labels = torch.arange(2).repeat(50_000)
    draws = torch.Generator().manual_seed(0)
    noise = 1e4 * torch.randn(100_000, 2, generator=draws, dtype=torch.float64)
    share = torch.full((100_000,), 1e-5, dtype=torch.float64)
    scores = 0.002 * F.one_hot(labels).double() if right else noise
    assert best_temperature(scores, torch.zeros(2), labels, share)[1] == pytest.approx(bound, rel=0.06)


def test_solutions_need_no_gradients() -> None:
    rows, labels = draw([4, 5], 3)
    solution = fit_ridge(rows.requires_grad_(), labels, 2)
    assert not solution.weight.requires_grad
    assert type(solution.strength) is float


def true_score(rows: Tensor, labels: Tensor, strength: float) -> float:
    """Return the mean leave-one-out score of the true class in the first two classes, solving without each image."""
    counts = torch.bincount(labels)
    by_class: list[list[float]] = [[], []]
    for left_out in (labels < 2).nonzero().flatten().tolist():
        rest = torch.arange(len(labels)) != left_out
        model = SklearnRidge(alpha=strength).fit(
            rows[rest].double().numpy(), F.one_hot(labels)[rest].double().numpy(), 1 / counts[labels[rest]].numpy()
        )
        own = int(labels[left_out])
        by_class[own].append(model.predict(rows[left_out : left_out + 1].double().numpy())[0, own])
    return float(np.mean([np.mean(scores) for scores in by_class]))


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
    assert solution.offset == pytest.approx(FEW_IMAGES * true_score(rows, labels, solution.strength))
    assert right[truth < 2].double().mean() > 0.9
    assert right[truth >= 2].double().mean() > 0.9


def test_images_in_wrong_classes_do_not_make_a_class_of_one_image_win() -> None:
    """They make all scores small, and an offset that ignores this would be larger than any of them."""
    random = torch.Generator().manual_seed(2)
    centres = torch.randn(3, 300, generator=random)
    labels = torch.tensor([0] * 12 + [1] * 12 + [2])
    rows = centres[labels] + 1.2 * torch.randn(25, 300, generator=random)
    labels[[0, 1, 2, 12, 13, 14]] = torch.tensor([1, 1, 1, 0, 0, 0])
    truth = torch.arange(3).repeat_interleave(100)
    tests = centres[truth] + 1.2 * torch.randn(300, 300, generator=random)
    solution = fit_ridge(rows, labels, 3)
    right = (tests.double() @ solution.weight.T + solution.bias).argmax(1) == truth
    assert right[truth < 2].double().mean() > 0.85
    assert right[truth == 2].double().mean() > 0.5


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
