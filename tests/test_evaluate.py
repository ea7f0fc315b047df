"""Figures of a run, compared with plain arithmetic."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch

from equipoise.data.images import Images
from equipoise.engine.evaluate import Predictions, predict_all, predictions_from
from equipoise.engine.metrics import (
    TOP1,
    TOP5,
    accuracy,
    calibration_error,
    confusion,
    error_counts,
    forgetting,
    macro_accuracy,
    metrics_for,
    per_class,
    per_step,
    summarise,
)
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
    assert {type(value) for value in asdict(counts).values()} == {int}, "for JSON"
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
        StepResult(step=number, seen=number, new=1, accuracy=top1, accuracy_top5=top5, per_step=line)
        for number, (top1, top5, line) in enumerate(
            zip([90.0, 75.0, 77.0], [100.0, 96.0, 91.0], history, strict=True), 1
        )
    ]
    assert summarise(results) == {
        "average_without_first": pytest.approx((75 + 77) / 2),
        "average_with_first": pytest.approx((90 + 75 + 77) / 3),
        "last": 77.0,
        "average_top5_without_first": pytest.approx((96 + 91) / 2),
        "average_top5_with_first": pytest.approx((100 + 96 + 91) / 3),
        "last_top5": 91.0,
        "forgetting": pytest.approx(12.5),
    }
    one = summarise(results[:1])
    assert (one["average_without_first"], one["average_top5_without_first"]) == (None, None)


def test_forgetting_leaves_out_classes_without_test_images() -> None:
    # steps 1 and 4 have no test images at first, step 2 none in the end; step 3 counts from its best, 70
    history: list[list[float | None]] = [
        [None],
        [40.0, 80.0],
        [20.0, 90.0, 70.0],
        [30.0, 95.0, 60.0, None],
        [10.0, None, 50.0, 65.0, 99.0],
    ]
    assert forgetting(history) == pytest.approx(((40 - 10) + (70 - 50)) / 2)


def test_calibration_error_of_bins_with_equal_numbers() -> None:
    confidence = torch.tensor([0.1, 0.2, 0.8, 0.9])
    correct = torch.tensor([False, True, True, True])
    # two bins: |0.15 − 0.5| and |0.85 − 1|, each with half of the images
    assert calibration_error(confidence, correct, bins=2) == pytest.approx(100 * (0.35 + 0.15) / 2)
    assert calibration_error(confidence[:0], correct[:0]) is None


@pytest.mark.parametrize("images", [7, 46, 100])
def test_calibration_error_has_15_bins_if_there_are_enough_images(images: int) -> None:
    draws = np.random.default_rng(images)
    confidence = draws.random(images)
    correct = draws.random(images) < confidence
    order = sorted(range(images), key=lambda i: confidence[i])
    bins = np.array_split(order, min(15, images))  # of 46 images, the first bin has one more than the others
    expected = sum(len(mine) / images * abs(confidence[mine].mean() - correct[mine].mean()) for mine in bins)
    found = calibration_error(torch.from_numpy(confidence), torch.from_numpy(correct))
    assert found == pytest.approx(100 * expected)


def test_top_five_accuracy_is_shown_of_more_than_five_classes() -> None:
    assert [metrics_for(classes) for classes in (2, 5, 6)] == [[TOP1], [TOP1], [TOP1, TOP5]]


def test_each_class_and_each_image_counts_the_same() -> None:
    labels, predicted = torch.tensor([0, 0, 0, 1, 3]), torch.tensor([0, 0, 2, 1, 0])
    assert accuracy(labels == predicted) == pytest.approx(60)
    assert macro_accuracy(per_class(labels, predicted, "abcd")) == pytest.approx((200 / 3 + 100 + 0) / 3)
    assert accuracy(labels[:0] == 0) is None
    assert macro_accuracy(per_class(labels[:0], labels[:0], "abcd")) is None


def test_the_summary_of_a_run_without_test_images_is_unknown() -> None:
    assert set(summarise([StepResult(step=1, seen=1, new=1, per_step=[None])]).values()) == {None}


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


def test_a_network_that_has_died_gives_every_image_the_same_logits() -> None:
    labels = torch.tensor([0, 1, 2])
    logits = torch.tensor([[1.0, 3.0, 2.0]] * 3)
    assert predictions_from(logits, labels).all_alike
    one_moved = logits + torch.tensor([[0.0], [0.0], [1.0]])  # the same order and probabilities, but other logits
    assert not predictions_from(one_moved, labels).all_alike
    one_sharper = logits * torch.tensor([[1.0], [2.0], [1.0]])
    assert not predictions_from(one_sharper, labels).all_alike


def test_numbers_of_classes_are_exact_in_half_precision() -> None:
    """Half precision cannot tell 2999 from 3000."""
    logits = torch.zeros(2, 3001, dtype=torch.half)
    logits[0, 2999], logits[1, 3000] = 8, 8
    found = predictions_from(logits, torch.tensor([2999, 2999]))
    assert found.top1.tolist() == [2999, 3000]
    assert found.in_top5[0]
    assert found.confidence[0] == pytest.approx(math.exp(8) / (math.exp(8) + 3000))


def test_a_certain_prediction_is_no_class_and_equal_logits_are_the_first_class() -> None:
    """The confidence 1 is not class 1, which is the least likely one here."""
    logits = torch.tensor([[100.0, -50, 1, 2, 3, 4, 5, 6], [0.0] * 8])
    found = predictions_from(logits, torch.tensor([1, 0]))
    assert found.confidence.tolist() == [1, 1 / 8]
    assert not found.in_top5[0]
    assert found.top1.tolist() == [0, 0]


def test_predictions_are_not_all_alike_by_default() -> None:
    nothing = torch.zeros(0)
    assert not Predictions(nothing, nothing, nothing, nothing).all_alike


def test_without_images_there_are_no_predictions() -> None:
    learner = Trial("wa", {}).experiment().learner
    images = Images.of(torch.zeros(0, 1, 8, 8, dtype=torch.uint8), torch.zeros(0, dtype=torch.long))
    found = predict_all(InferencePass(learner.method, images, learner.augment, learner.settings.runtime))
    assert [len(part) for part in (found.labels, found.top1, found.in_top5, found.confidence)] == [0, 0, 0, 0]
