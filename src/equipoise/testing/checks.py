"""Checks of one method in one process."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from equipoise.core.config import field_docs
from equipoise.core.directory import Directory
from equipoise.core.tensors import read_tensors
from equipoise.data.dataset import Dataset
from equipoise.data.stream import Step
from equipoise.engine.settings import Settings
from equipoise.engine.step import learn_step
from equipoise.errors import UsageError
from equipoise.learn.backbones.base import backbones_of, disabled
from equipoise.learn.inference import same_tensors as same
from equipoise.methods.registry import lookup, make
from equipoise.study.console import RunListener
from equipoise.study.experiment import execute
from equipoise.testing.trial import State, Trial, copy_of, ensure, learn, predict_some, state_of


def check_fields(name: str) -> None:
    """Fields have defaults and are documented, ``repr`` can be evaluated, and the class has a docstring."""
    cls, _ = lookup(name)
    docs = field_docs(cls)
    for field in dataclasses.fields(cls):
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        ensure(has_default, f"{name}: the field {field.name} has no default")
        ensure(docs.get(field.name), f"{name}: the field {field.name} has no documentation string below it")
    if sys.flags.optimize < 2:  # -OO removes docstrings
        ensure(cls.__doc__, f"{name}: the class has no docstring")
    ensure(cls.rehearsal in ("memory", "all", "none", "kept"), f"{name}: rehearsal is {cls.rehearsal!r}")
    method = make(name)
    again = eval(repr(method), {cls.__name__: cls})  # noqa: S307 - of our own repr
    ensure(repr(again) == repr(method), f"{name}: evaluating repr does not give the same method")


def check_steps(trial: Trial) -> None:
    """Three steps: finite loss, unchanged teacher, memory within its size, valid predictions."""
    trial.learned(3)


def check_same_seed(trial: Trial) -> None:
    """The same seed gives bit-identical weights, another seed does not."""
    states = [state_of(trial.learned(2, seed).learner.method) for seed in (0, 0, 1)]
    ensure(same(states[0], states[1]), f"{trial.name}: the same seed gave different weights")
    ensure(not same(states[0], states[2]), f"{trial.name}: another seed gave the same weights")


def check_state_is_complete(trial: Trial) -> None:
    """A new method that loads ``state_dict`` predicts the same and continues to learn the same."""
    one = two = trial.experiment()
    for index in (1, 2):
        learn(one, index)
        two = copy_of(trial, one)
        ensure(torch.equal(predict_some(one), predict_some(two)), f"{trial.name}: predictions differ after loading")
    learn(one, 3)
    learn(two, 3)
    equal = same(state_of(one.learner.method), state_of(two.learner.method))
    ensure(equal, f"{trial.name}: training differs after loading")


class StopAfter(RunListener):
    """Interrupts a run after a number of epochs, over all stages."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def epoch(self, epoch: int, loss: float, lr: float) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def check_resume(trial: Trial) -> None:
    """A run that is interrupted after every epoch of every stage ends bit-identical."""
    settings = trial.settings(steps="3,3")
    data = trial.data()
    counter = StopAfter(10**9)
    with tempfile.TemporaryDirectory() as folder:
        whole = _final_state(settings, data, Path(folder) / "whole", counter)
        epochs = 10**9 - counter.left
        directory = Path(folder) / "interrupted"  # one directory: every start continues the one before, by one epoch
        for _ in range(1, epochs):
            with suppress(KeyboardInterrupt):
                execute(settings, directory, lambda: data, StopAfter(1))
                raise AssertionError(f"{trial.name}: the run was not interrupted")
        last = StopAfter(10**9)
        again = _final_state(settings, data, directory, last)
        ensure(10**9 - last.left == min(epochs, 1), f"{trial.name}: a continued run repeated or skipped epochs")
        ensure(same(whole, again), f"{trial.name}: the result differs after an interruption")


def _final_state(settings: Settings, data: Dataset, directory: Path, listener: RunListener) -> State:
    execute(settings, directory, lambda: data, listener)
    (file,) = (directory / "checkpoint").glob("*.safetensors")
    return read_tensors(Directory(file.parent), file.name)


def check_keep_classes(trial: Trial) -> None:
    """After ``keep_classes``, predictions of remaining classes are the same and learning continues, or it raises."""
    experiment = trial.learned(2)
    learner = experiment.learner
    before = predict_some(experiment)
    stay = torch.tensor([0, 2, 3])
    try:
        learner.method.keep_classes(stay)
    except UsageError:
        return
    after = predict_some(experiment)
    ensure(after.shape == (16, 3), f"{trial.name}: predict returns {tuple(after.shape)} for 3 remaining classes")
    others = before.argmax(1) != 1
    same_class = stay[after.argmax(1)] == before.argmax(1)
    ensure(same_class[others].all(), f"{trial.name}: removing a class changes the predictions of others")
    learner.memory.keep_classes(stay)
    images = experiment.stream[3].images
    step = Step(3, 3, 2, dataclasses.replace(images, labels=images.labels - 1))
    learn_step(learner.fit(step, learner.training_images(step)))
    ensure(predict_some(experiment).shape == (16, 5), f"{trial.name}: it cannot learn after a class was removed")
    learner.method.load_state_dict(state_of(learner.method))


def check_extremes(trial: Trial) -> None:
    """Steps of one class, and classes of one image."""
    trial.learned(3, steps="1,1,2", classes=4)
    trial.learned(2, images=1, steps="2,2", classes=4)


def check_bf16(trial: Trial) -> None:
    """Backbones may compute in bfloat16; logits are float32, because a hundred classes need the precision."""
    name, experiment = trial.name, dataclasses.replace(trial, precision="bf16").learned(2)
    method = experiment.learner.method
    made = all(backbone.bf16 for backbone in backbones_of(method))
    ensure(made, f"{name}: a backbone was not made by the architecture")
    logits = predict_some(experiment)
    ensure(logits.dtype == torch.float32, f"{name}: logits are {logits.dtype}, not float32")
    with disabled(method, "bf16"):
        exact = predict_some(experiment)
    close = torch.allclose(logits, exact, rtol=0.1, atol=0.1 * float(exact.abs().max()))
    ensure(close, f"{name}: predictions in bfloat16 differ too much")


CHECKS: tuple[Callable[[Trial], None], ...] = (
    check_steps,
    check_same_seed,
    check_state_is_complete,
    check_resume,
    check_extremes,
    check_keep_classes,
    check_bf16,
)
