"""One step: prepare, train, correct, evaluate, remember."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from equipoise.core import distributed
from equipoise.core.seeding import seed_everything
from equipoise.data.images import Images
from equipoise.engine import metrics
from equipoise.engine.evaluate import Predictions, predict_all, predictions_from
from equipoise.engine.results import Label, StepResult
from equipoise.errors import RunError
from equipoise.learn.fit import Fit
from equipoise.learn.inference import InferencePass
from equipoise.learn.method import Method
from equipoise.learn.timer import Timer
from equipoise.version import __version__


@dataclass(frozen=True)
class StepOutcome:
    """A finished step: its result, and the predictions behind it."""

    result: StepResult
    after: Predictions
    before: Predictions
    """Before the correction; the same as ``after`` if there was none."""
    corrected: bool
    """Whether the step had a correction."""
    norms_before: dict[str, Tensor]
    """Weight norms per class before the correction."""
    norms_after: dict[str, Tensor]

    def tensors(self) -> dict[str, Tensor]:
        """Return what a run stores about each test image and class."""
        after, before = self.after, self.before
        stored = {name: getattr(after, name) for name in ("labels", "top1", "in_top5", "confidence")}
        stored |= self.norms_after
        if self.corrected:
            stored |= {"top1_uncorrected": before.top1, "confidence_uncorrected": before.confidence}
            stored |= {f"{name}_uncorrected": norms for name, norms in self.norms_before.items()}
        return stored


def begin_step(fit: Fit) -> None:
    """Prepare the method for the step of ``fit``."""
    fit.method.timer = Timer()
    seed_everything(*fit.key, "begin")
    fit.method.start_step(fit.step)
    fit.method.begin(fit.step, fit)
    fit.runtime.place(fit.method)


def train_step(fit: Fit) -> None:
    """Prepare a step and train it, without its correction."""
    begin_step(fit)
    if fit.images is not None:
        fit.train(fit.images)


def finish_step(fit: Fit) -> dict[str, float]:
    """Correct a trained step and select its exemplars; return the method's figures."""
    seed_everything(*fit.key, "end")
    figures = fit.method.end(fit.step, fit)
    if fit.method.rehearsal == "memory" or fit.keeps_all:
        fit.update_memory()
    fit.method.teacher = None
    return figures


def learn_step(fit: Fit) -> dict[str, float]:
    """Train and finish a step, without evaluating it."""
    train_step(fit)
    return finish_step(fit)


def train_and_evaluate(fit: Fit, tests: Images, names: Sequence[Label]) -> StepOutcome:
    """Learn the step of ``fit`` and evaluate it on ``tests``, before and after its correction.

    Parameters
    ----------
    fit
        The step.
    tests
        Images of all classes seen, never trained on.
    names
        Names of all classes seen.
    """
    started = time.perf_counter()
    method, step, loop = fit.method, fit.step, fit.loop
    corrected = bool(method.corrects and step.old)
    images = InferencePass(method, tests, fit.augment, fit.runtime, keep=corrected)
    train_step(fit)
    with method.timer("evaluation"):
        before = _evaluate(fit, images) if corrected else None
        norms_before = weight_norms(method)
    figures = finish_step(fit)
    with method.timer("evaluation"):
        after = _evaluate(fit, images)
    distributed.broadcast_weights(method)
    before = before or after
    norm = norms_before.get(f"norms_{method.reported_norm}")
    seconds = time.perf_counter() - started + loop.resumed_seconds
    result = StepResult(
        step=step.index,
        classes=list(names[step.old :]),
        seen=step.seen,
        new=step.new,
        **evaluation(after, before, step.old, method.steps, names),
        gamma=figures.get("gamma"),
        figures={name: float(value) for name, value in figures.items() if name != "gamma"},
        norms_old=norm[: step.old].mean().item() if norm is not None and step.old else None,
        norms_new=norm[step.old :].mean().item() if norm is not None else None,
        images=len(step.images),
        exemplars=len(fit.memory),
        evaluated="leave-one-out" if not len(tests) and len(after.labels) else "images",
        epochs=fit.schedule.for_step(step.index).epochs if fit.images is not None else 0,
        seconds=seconds,
        images_per_second=loop.images_seen / max(loop.seconds, 1e-9),
        seconds_by_part=_seconds_by_part(fit, seconds),
        memory_peak_mb=_memory_peak(),
        finished=now(),
        equipoise=__version__,
    )
    return StepOutcome(result, after, before, corrected, norms_before, weight_norms(method))


def _evaluate(fit: Fit, images: InferencePass) -> Predictions:
    """Predict all images; identical logits for all of them mean that the network has died, which is an error.

    Without evaluation images, a method that can predict its training images without having seen them does so.
    """
    everything, method = fit.everything, fit.method
    if not len(images.images) and everything is not None and method.loo_logits is not None:
        return predictions_from(method.loo_logits, everything.labels[method.loo_rows])
    predictions = predict_all(images)
    trained = fit.images is not None  # otherwise, equal images get equal logits
    if trained and fit.step.seen > 1 and len(predictions.labels) > 1 and predictions.all_alike:
        what = f"all evaluation images get the same logits after step {fit.step.index}: the training has collapsed"
        remedy = " or set method.clip=false" if getattr(fit.method, "clip", False) else ""
        raise distributed.report_once(RunError(f"{what}; lower train.lr (now {fit.schedule.lr:g}){remedy}"))
    return predictions


def evaluation(
    after: Predictions, before: Predictions, old: int, sizes: Sequence[int], names: Sequence[Label]
) -> dict[str, Any]:
    """Return the fields of a StepResult that follow from predictions after and before the correction."""
    labels, predicted, is_old = after.labels, after.top1, after.labels < old
    correct = predicted == labels
    return {
        "accuracy": metrics.accuracy(correct),
        "accuracy_top5": metrics.accuracy(after.in_top5),
        "accuracy_uncorrected": metrics.accuracy(before.top1 == labels),
        "accuracy_top5_uncorrected": metrics.accuracy(before.in_top5),
        "accuracy_old": metrics.accuracy(correct[is_old]),
        "accuracy_new": metrics.accuracy(correct[~is_old]),
        "total_old": int(is_old.sum()),
        "total_new": int((~is_old).sum()),
        "errors": metrics.error_counts(labels, predicted, old),
        "errors_uncorrected": metrics.error_counts(labels, before.top1, old),
        "per_step": metrics.per_step(labels, predicted, sizes),
        "per_class": (classes := metrics.per_class(labels, predicted, names)),
        "accuracy_macro": metrics.macro_accuracy(classes),
    }


def now() -> str:
    """Return the current time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _seconds_by_part(fit: Fit, seconds: float) -> dict[str, float]:
    """Split a step's time. Training before an interruption counts as train, teacher or not."""
    timed = fit.method.timer.seconds
    parts = {part: timed[part] for part in ("teacher", "herding", "evaluation", "checkpoint")}
    parts["train"] = max(fit.loop.seconds - parts["teacher"], 0.0)
    return parts | {"other": max(seconds - sum(parts.values()), 0.0)}


def _memory_peak() -> float:
    """Return the peak resident memory of this process in MB."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def weight_norms(method: Method) -> dict[str, Tensor]:
    """Return the L1 and L2 norms of each class's weights, if the head has one row per class."""
    found = {f"norms_{norm}": method.weight_norms(norm) for norm in (1, 2)}
    return {name: norms for name, norms in found.items() if norms is not None}


def measure_throughput(fit: Fit, images: Images) -> float | None:
    """Estimate images per second with a short trial run (modifies the method); None if the step trains nothing."""
    schedule = fit.schedule.for_step(fit.step.index)
    fit.schedule = schedule.for_stage(epochs=1, lr_schedule="constant")
    few, more = (images.select(torch.arange(min(len(images), count * schedule.batch_size))) for count in (2, 8))
    fit.images = few
    begin_step(fit)
    if fit.images is None:
        return None
    fit.train(few)  # warm up
    started, seen = fit.loop.seconds, fit.loop.images_seen
    fit.train(more)
    return (fit.loop.images_seen - seen) / (fit.loop.seconds - started) / schedule.pixels


def unfairness(result: StepResult) -> str | None:
    """Return a warning if the model favours old or new classes.

    A fair model predicts as many old images as new classes as the other way round. The difference must be significant
    (McNemar's test, two standard deviations) and at least one evaluation image in twenty.
    """
    to_new, to_old = result.errors.e_on, result.errors.e_no or 0
    total = result.total_old + result.total_new
    gap = to_new - to_old
    if not result.total_old or abs(gap) <= 2 * math.sqrt(to_new + to_old) or abs(gap) < 0.05 * total:
        return None
    favoured, others, true = ("new", "old", result.total_new) if gap > 0 else ("old", "new", result.total_old)
    return (
        f"the model favours {favoured} classes: it predicts them for {100 * (true + abs(gap)) / total:.0f} % of the "
        f"evaluated images, but only {100 * true / total:.0f} % belong to them ({max(to_new, to_old)} {others} images "
        f"predicted as {favoured} classes, {min(to_new, to_old)} the other way)"
    )
