"""The contract that every method passes. Authors of new methods run it on theirs:

    from equipoise.testing import check_method
    check_method("my-method")

It learns a few handwritten digits many times over; a method on a small network takes some ten seconds.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise import ranks
from equipoise.data.dataset import Dataset
from equipoise.data.sources import load
from equipoise.data.stream import Step
from equipoise.errors import UsageError
from equipoise.learn.journal import Silent
from equipoise.learn.method import Method
from equipoise.learn.nets import backbones_of, without
from equipoise.learn.trainer import learn_step
from equipoise.methods import lookup, make
from equipoise.settings import describe
from equipoise.study import processes
from equipoise.study.evaluate import predict_all
from equipoise.study.experiment import Experiment, execute
from equipoise.study.progress import Reporter
from equipoise.study.recipe import Settings, resolve

State = dict[str, Tensor]


def check_method(name: str, fields: Mapping[str, Any] | None = None, together: bool = True) -> None:
    """Raise an ``AssertionError`` that says which promise the method called ``name`` breaks.

    ``together`` starts two more processes, in which imports take a while: ``check_together`` does many methods in one.
    """
    check_fields(name)
    trial = Trial(name, fields or {})
    checks = (check_steps, check_same_seed, check_load_goes_on, check_resume, check_extremes, check_forgets, check_bf16)
    for check in checks:
        check(trial)
    if together:
        check_together([trial])


def check_fields(name: str) -> None:
    """Fields have defaults and are documented; ``repr`` gives the method back; the class says what it is."""
    cls, _ = lookup(name)
    docs = describe(cls)
    for field in dataclasses.fields(cls):
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        assert has_default, f"{name}: the field {field.name} has no default"
        assert docs.get(field.name), f"{name}: the field {field.name} has no string under it that says what it is"
    assert cls.__doc__, f"{name}: the class has no docstring"
    method = make(name)
    again = eval(repr(method), {cls.__name__: cls})  # noqa: S307 - of our own repr
    assert repr(again) == repr(method), f"{name}: repr does not give the method back"


@dataclasses.dataclass
class Trial:
    """A method on a part of the digits: six classes in three steps, a few images each."""

    name: str
    fields: Mapping[str, Any]
    images: int = 24
    precision: str = "32"

    def settings(self, seed: int = 0, **stream: Any) -> Settings:
        overrides: dict[str, dict[str, Any]] = {
            "stream": {"steps": "2,2,2", "classes": 6, **stream},
            "memory": {"size": 18},
            "train": {"epochs": 2, "batch_size": 16, "lr": 0.02},
            "fields": short(self.name) | dict(self.fields),
            "runtime": {"threads": 1, "precision": self.precision},
        }
        return resolve("digits", self.name, seed=seed, overrides=overrides)

    def data(self, images: int | None = None) -> Dataset:
        full = load("digits")
        few = [(full.train.labels == c).nonzero().flatten()[: images or self.images] for c in range(10)]
        return dataclasses.replace(full, train=full.train.select(torch.cat(few)))

    def experiment(self, seed: int = 0, images: int | None = None, **stream: Any) -> Experiment:
        return Experiment.prepare(self.settings(seed, **stream), self.data(images))


def short(name: str) -> dict[str, Any]:
    """Extra stages of a method, kept short: every field that counts epochs or samples, if it may be small."""
    wanted = {field.name for field in dataclasses.fields(lookup(name)[0])}
    return {field: 2 if "epochs" in field else 8 for field in wanted if "epochs" in field or field == "samples"}


def state_of(method: Method) -> State:
    return {name: value.clone() for name, value in method.state_dict().items()}


def same(left: State, right: State) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


class Watch(Silent):
    """Notes the teacher when the main training starts."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.teacher: State | None = None

    def stage(self, name: str, epochs: int, images: int, done: int) -> None:
        if name == "train" and self.method.teacher is not None:
            self.teacher = state_of(self.method.teacher)


def learn(experiment: Experiment, index: int) -> None:
    """One step, with the promises that can be seen while it is learned."""
    name, method, step = experiment.settings.method, experiment.method, experiment.stream[index]
    fit = experiment.fit(step)
    watch = Watch(method)
    fit.watcher = watch

    def judge() -> None:
        assert bool(step.old and method.uses_teacher) == (method.teacher is not None), f"{name}: the teacher is missing"
        if method.teacher is not None and watch.teacher is not None:
            assert same(state_of(method.teacher), watch.teacher), (
                f"{name}: the teacher changed while step {index} trained"
            )

    learn_step(fit, judge)
    assert len(experiment.memory) <= experiment.memory.size, f"{name}: the memory holds more than its budget"
    check_predictions(experiment, index)


def scores_of(experiment: Experiment, count: int = 16) -> Tensor:
    method = experiment.method.eval()
    with torch.no_grad():
        return method.predict(experiment.augment.plain(experiment.stream.test, torch.arange(count)))


def check_predictions(experiment: Experiment, index: int) -> None:
    name, seen = experiment.settings.method, experiment.stream[index].seen
    before = state_of(experiment.method)
    scores = scores_of(experiment)
    assert scores.shape == (16, seen), f"{name}: predict gives {tuple(scores.shape)} after {seen} classes"
    assert not scores.isnan().any(), f"{name}: predict gives numbers that are none"
    assert torch.equal(scores, scores_of(experiment)), f"{name}: predict says something else the second time"
    torch.testing.assert_close(scores_of(experiment, 4), scores[:4], msg=f"{name}: a prediction depends on its batch")
    assert same(before, state_of(experiment.method)), f"{name}: predict changes the method"


def check_steps(trial: Trial) -> None:
    """Loss finite, teacher unchanged, memory within its budget, predictions pure and over exactly the classes seen."""
    experiment = trial.experiment()
    for index in range(1, len(experiment.stream) + 1):
        learn(experiment, index)


def check_same_seed(trial: Trial) -> None:
    """Same seed, same bits; another seed, others."""
    states = []
    for seed in (0, 0, 1):
        experiment = trial.experiment(seed)
        learn(experiment, 1)
        learn(experiment, 2)
        states.append(state_of(experiment.method))
    assert same(states[0], states[1]), f"{trial.name}: the same seed gave other weights"
    assert not same(states[0], states[2]), f"{trial.name}: another seed changed nothing"


def check_load_goes_on(trial: Trial) -> None:
    """What ``state_dict`` holds is all there is: a fresh method that loads it predicts the same and learns the same."""
    one, two = trial.experiment(), trial.experiment()
    for index in range(1, len(one.stream)):
        learn(one, index)
        two = trial.experiment()
        two.method.load_state_dict(state_of(one.method))
        two.memory.restore(one.memory.rows().items(), two.stream.train.store)
        assert torch.equal(scores_of(one), scores_of(two)), f"{trial.name}: loaded, it predicts something else"
    learn(one, len(one.stream))
    learn(two, len(one.stream))
    assert same(state_of(one.method), state_of(two.method)), f"{trial.name}: loaded, it goes on to learn something else"


class Interrupt(Reporter):
    """Stops a run after a number of epochs, over all stages."""

    def __init__(self, after: int) -> None:
        self.left = after

    def epoch(self, epoch: int, loss: float, lr: float) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def check_resume(trial: Trial) -> None:
    """Interrupted after any epoch of any stage of the second step, a run goes on to the same end."""
    settings = trial.settings(steps="3,3")
    data = trial.data()
    counter = Interrupt(10**9)
    with tempfile.TemporaryDirectory() as folder:
        whole = _final(settings, data, Path(folder) / "whole", counter)
        epochs = 10**9 - counter.left
        for after in range(1, epochs):
            directory = Path(folder) / str(after)
            try:
                execute(settings, directory, lambda: data, Interrupt(after))
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError(f"{trial.name}: the run was not interrupted")
            again = _final(settings, data, directory, Reporter())
            assert same(whole, again), f"{trial.name}: interrupted after epoch {after} of {epochs}, it ended elsewhere"


def _final(settings: Settings, data: Dataset, directory: Path, reporter: Reporter) -> State:
    from equipoise.files import read_tensors

    execute(settings, directory, lambda: data, reporter)
    (file,) = (directory / "checkpoint").glob("*.safetensors")
    return read_tensors(file)


def check_forgets(trial: Trial) -> None:
    """After ``keep`` a method tells the classes that stay apart, as before, and goes on to learn; or it refuses."""
    experiment = trial.experiment()
    learn(experiment, 1)
    learn(experiment, 2)
    before = scores_of(experiment)
    stay = torch.tensor([0, 2, 3])
    try:
        experiment.method.keep(stay)
    except UsageError:
        return
    after = scores_of(experiment)
    assert after.shape == (16, 3), (
        f"{trial.name}: predict gives {tuple(after.shape)} after one of 4 classes was dropped"
    )
    clear = before.argmax(1) != 1
    same_winner = stay[after.argmax(1)] == before.argmax(1)
    assert same_winner[clear].all(), f"{trial.name}: a dropped class changes the answers that were not its own"
    experiment.memory.keep(stay)
    images = experiment.stream[3].images
    step = Step(3, 3, 2, dataclasses.replace(images, labels=images.labels - 1))
    learn_step(experiment.fit(step), lambda: None)
    assert scores_of(experiment).shape == (16, 5), f"{trial.name}: it cannot learn on after a class was dropped"
    experiment.method.load_state_dict(state_of(experiment.method))


def check_extremes(trial: Trial) -> None:
    """Steps of one class, and classes of one image."""
    single = trial.experiment(steps="1,1,2", classes=4)
    for index in range(1, 4):
        learn(single, index)
    scarce = trial.experiment(images=1, steps="2,2", classes=4)
    for index in (1, 2):
        learn(scarce, index)


def check_together(trials: Sequence[Trial]) -> None:
    """Two processes that learn together have the same bits and the same memory after every step, and judge as one."""
    try:
        processes.together(functools.partial(_learn_together, trials))
    except RuntimeError as error:
        raise AssertionError(str(error)) from error


def _learn_together(trials: Sequence[Trial]) -> None:
    """What each of the processes does."""
    for trial in trials:
        try:
            experiment = trial.experiment()
        except UsageError:
            assert not make(trial.name).shares, (
                f"{trial.name} refuses to be learned by two processes, yet says it shares"
            )
            continue
        for index in range(1, len(experiment.stream) + 1):
            learn(experiment, index)
            _check_agreement(experiment, index)
            if index == 1:
                _check_gradient(trial, experiment)


def _check_gradient(trial: Trial, learned: Experiment) -> None:
    """The gradients of the shares make up that of the batch, without batch norm's part in it."""
    experiment = trial.experiment()
    experiment.method.load_state_dict(state_of(learned.method))
    experiment.memory.restore(learned.memory.rows().items(), experiment.stream.train.store)
    fit = experiment.fit(experiment.stream[2])
    method = experiment.method
    method.begin(fit.step, fit)
    images = fit.images
    if images is None:
        return
    method.eval()
    batch = torch.arange(0, len(images), max(len(images) // 21, 1))[:21]

    def gradient(where: Tensor, weight: float) -> Tensor:
        method.zero_grad()
        (weight * method.loss(experiment.augment.plain(images, where), images.labels[where])).backward()
        return torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None])

    shared = ranks.total(gradient(ranks.share(batch), ranks.weight(batch))) / ranks.world()
    with ranks.alone():
        whole = gradient(batch, 1.0)
    error = (shared - whole).norm() / whole.norm()
    assert error < 1e-4, f"{trial.name}: the shares of a batch have another gradient than the batch ({error:.1e} of it)"


def _check_agreement(experiment: Experiment, index: int) -> None:
    name = experiment.settings.method
    state, rows = state_of(experiment.method), experiment.memory.rows()
    first_state, first_rows = ranks.tell(lambda: (state, rows))
    assert same(first_state, state), f"{name}: two processes have different weights after step {index}"
    assert first_rows == rows, f"{name}: two processes remember different images after step {index}"
    tests = experiment.stream.tests(experiment.stream[index])
    said = predict_all(experiment.method, tests, experiment.augment, experiment.settings.runtime)
    with ranks.alone():
        alone = predict_all(experiment.method, tests, experiment.augment, experiment.settings.runtime)
    for field in ("top1", "in_top5", "confidence"):
        both = getattr(said, field), getattr(alone, field)
        assert torch.equal(*both), f"{name}: two processes judge otherwise than one ({field})"


def check_bf16(trial: Trial) -> None:
    """Backbones may compute in bfloat16: all that follows has 32 bits, in which a hundred classes' scores differ."""
    name, experiment = trial.name, dataclasses.replace(trial, precision="bf16").experiment()
    for index in (1, 2):
        learn(experiment, index)
    backbones = backbones_of(experiment.method)
    assert all(backbone.bf16 for backbone in backbones), f"{name}: a backbone was not made by the architecture"
    scores = scores_of(experiment)
    assert scores.dtype == torch.float32, f"{name}: scores are {scores.dtype}, not in 32 bits"
    with without(experiment.method, "bf16"):
        exact = scores_of(experiment)
    assert torch.allclose(scores, exact, rtol=0.1, atol=0.1 * float(exact.abs().max())), f"{name}: bfloat16 changed all"
