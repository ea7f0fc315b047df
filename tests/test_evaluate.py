"""Figures of a run, compared with plain arithmetic."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from equipoise.data.images import Images
from equipoise.engine.evaluate import predict_all
from equipoise.engine.metrics import confusion, error_counts, forgetting, per_class, per_step, summarise
from equipoise.engine.results import ClassResult, ErrorCounts, StepResult
from equipoise.engine.step import learn_step, train_and_evaluate
from equipoise.learn.inference import InferencePass
from equipoise.testing import Trial


def test_error_counts_are_those_of_table_1() -> None:
    torch.manual_seed(0)
    labels, predicted = torch.randint(10, (500,)), torch.randint(10, (500,))
    old = 6
    e = {"e_n": 0, "e_o": 0, "e_on": 0, "e_oo": 0, "e_no": 0}
    for y, p in zip(labels.tolist(), predicted.tolist(), strict=True):
        if y != p and y >= old:
            e["e_n"] += 1
            e["e_no"] += p < old
        if y != p and y < old:
            e["e_o"] += 1
            e["e_on" if p >= old else "e_oo"] += 1
    counts = error_counts(labels, predicted, old)
    assert asdict(counts) == e
    assert counts.e_o == counts.e_on + counts.e_oo


def test_all_errors_of_a_first_step_are_of_new_classes() -> None:
    counts = error_counts(torch.tensor([0, 1, 2]), torch.tensor([0, 2, 2]), 0)
    assert counts == ErrorCounts(e_n=1)


def test_confusion_and_per_class() -> None:
    labels, predicted = torch.tensor([0, 0, 0, 2, 2]), torch.tensor([0, 1, 1, 2, 0])
    assert confusion(labels, predicted, 3).tolist() == [[1, 2, 0], [0, 0, 0], [1, 0, 1]]
    first, second, third = per_class(labels, predicted, ["cat", "dog", "owl"])
    assert first == ClassResult("cat", pytest.approx(100 / 3), 1, 3)  # type: ignore[arg-type]
    assert second == ClassResult("dog", None, 0, 0)
    assert third == ClassResult("owl", 50.0, 1, 2)
    assert per_step(labels, predicted, [2, 1]) == [pytest.approx(100 / 3), 50.0]


def test_both_averages_and_forgetting() -> None:
    # three steps; accuracies on the classes of each step after each step
    history: list[list[float | None]] = [[90.0], [70.0, 80.0], [60.0, 85.0, 88.0]]
    # step 1's classes: best before the last is 90, now 60; step 2's: best 80, now 85
    assert forgetting(history) == pytest.approx(((90 - 60) + (80 - 85)) / 2)
    assert forgetting(history[:1]) is None
    results = [
        StepResult(step=number, seen=number, new=1, accuracy=accuracy, per_step=line)
        for number, (accuracy, line) in enumerate(zip([90.0, 75.0, 77.0], history, strict=True), 1)
    ]
    assert summarise(results) == {
        "average_without_first": pytest.approx((75 + 77) / 2),
        "average_with_first": pytest.approx((90 + 75 + 77) / 3),
        "last": 77.0,
        "forgetting": pytest.approx(12.5),
    }
    assert summarise(results[:1])["average_without_first"] is None


def test_a_step_result_separates_before_from_after_the_correction() -> None:
    """One test image of each of eight classes; the predictions are given."""
    experiment = Trial("wa", {}).experiment(steps="4,4", classes=8)
    learner, (first, second) = experiment.learner, experiment.stream
    learn_step(learner.fit(first, experiment.training_images(first)))
    tests = experiment.stream.tests(second)
    tests = tests.select(torch.stack([(tests.labels == label).nonzero()[0, 0] for label in range(8)]))
    fit = learner.fit(second, experiment.training_images(second))
    before, after = [7, 6, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 0]
    # the predicted class first, then the others in order: of the last row after the correction, 7 is not among five
    logits = [10 * torch.eye(8)[predicted] - torch.arange(8) for predicted in (before, after)]
    given = iter(logits)
    fit.method.classify = lambda features: next(given)  # type: ignore[method-assign]
    fit.method.teacher_predict = lambda x: torch.zeros(len(x), 4)  # type: ignore[method-assign]
    result = train_and_evaluate(fit, tests, list("abcdefgh")).result
    assert (result.accuracy, result.accuracy_uncorrected) == (87.5, 75)
    assert (result.accuracy_top5, result.accuracy_top5_uncorrected) == (87.5, 100)
    assert (result.accuracy_old, result.accuracy_new) == (100, 75)
    assert (result.total_old, result.total_new) == (4, 4)
    assert (result.seen, result.new, result.step, result.classes) == (8, 4, 2, list("efgh"))
    assert result.errors == ErrorCounts(e_n=1, e_no=1)
    assert result.errors_uncorrected == ErrorCounts(e_o=2, e_on=2)
    assert result.per_step == [100, 75]
    assert [entry.correct for entry in result.per_class] == [1, 1, 1, 1, 1, 1, 1, 0]
    assert [entry.name for entry in result.per_class] == list("abcdefgh")


@pytest.mark.parametrize("classes", [3, 8])
def test_top_five_and_confidence(classes: int) -> None:
    """With five classes or fewer, the true class is always among the five highest logits."""
    trial = Trial("wa", {})
    learner = trial.experiment().learner
    logits = torch.randn(40, classes, generator=torch.Generator().manual_seed(0))
    learner.method.classify = lambda features: logits  # type: ignore[method-assign]
    labels = torch.randint(classes, (40,), generator=torch.Generator().manual_seed(1))
    images = Images.of(torch.zeros(40, 1, 8, 8, dtype=torch.uint8), labels)
    found = predict_all(InferencePass(learner.method, images, learner.augment, learner.settings.runtime))
    for row, label in enumerate(labels.tolist()):
        ranked = sorted(range(classes), key=lambda c: -float(logits[row, c]))
        assert int(found.top1[row]) == ranked[0]
        assert bool(found.in_top5[row]) == (label in ranked[:5])
        chances = (logits[row] - logits[row].max()).exp()
        assert float(found.confidence[row]) == pytest.approx(float(chances.max() / chances.sum()))
    assert not found.all_alike
