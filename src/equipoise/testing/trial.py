"""A method on a few handwritten digits, learned step by step under observation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from equipoise.data.dataset import Dataset
from equipoise.data.sources import load
from equipoise.engine.recipes import resolve
from equipoise.engine.settings import Settings
from equipoise.engine.step import begin_step, finish_step
from equipoise.learn.inference import same_tensors as same
from equipoise.learn.method import Method
from equipoise.methods.registry import lookup
from equipoise.study.experiment import Experiment

State = dict[str, Tensor]


def ensure(holds: object, broken: str) -> None:
    """Raise an ``AssertionError`` if a rule is broken, also where Python leaves out ``assert`` (-O)."""
    if not holds:
        raise AssertionError(broken)


@dataclasses.dataclass
class Trial:
    """A method on a part of the digits: six classes in three steps, with few images each."""

    name: str
    fields: Mapping[str, Any]
    images: int = 24
    precision: str = "32"
    cls: type[Method] | None = None
    """The class, which other processes may not know by its name."""

    def settings(self, seed: int = 0, **stream: Any) -> Settings:
        overrides: dict[str, dict[str, Any]] = {
            "stream": {"steps": "2,2,2", "classes": 6, **stream},
            "memory": {"size": 18},
            "train": {"epochs": 2, "batch_size": 16, "lr": 0.02},
            "fields": short_stages(self.name) | dict(self.fields),
            "runtime": {"threads": 1, "precision": self.precision},
        }
        return resolve("digits", self.name, seed=seed, overrides=overrides)

    def data(self, images: int | None = None) -> Dataset:
        full = load("digits")
        few = [(full.train.labels == c).nonzero().flatten()[: images or self.images] for c in range(10)]
        return dataclasses.replace(full, train=full.train.select(torch.cat(few)))

    def experiment(self, seed: int = 0, images: int | None = None, **stream: Any) -> Experiment:
        return Experiment.prepare(self.settings(seed, **stream), self.data(images))

    def learned(self, count: int, seed: int = 0, images: int | None = None, **stream: Any) -> Experiment:
        """Return an experiment that has learned its first ``count`` steps, each checked by ``learn``."""
        experiment = self.experiment(seed, images, **stream)
        for index in range(1, count + 1):
            learn(experiment, index)
        return experiment


def short_stages(name: str) -> dict[str, Any]:
    """Return small values for every field that counts epochs or samples."""
    fields = {field.name for field in dataclasses.fields(lookup(name)[0])}
    short = {field: 2 for field in fields if "epochs" in field}
    return short | {field: size for field, size in (("samples", 8), ("projection", 64)) if field in fields}


def state_of(method: Method) -> State:
    return {name: value.clone() for name, value in method.state_dict().items()}


def learn(experiment: Experiment, index: int) -> None:
    """Learn one step and check what can be seen while it is learned."""
    learner, step = experiment.learner, experiment.stream[index]
    name, method = experiment.settings.method, learner.method
    fit = learner.fit(step, experiment.training_images(step))
    begin_step(fit)
    teacher = None if method.teacher is None else state_of(method.teacher)
    if fit.images is not None:
        fit.train(fit.images)
    wanted = bool(step.old and method.uses_teacher)
    ensure(wanted == (method.teacher is not None), f"{name}: there is {'no' if wanted else 'an unwanted'} teacher")
    if method.teacher is not None and teacher is not None:
        ensure(same(state_of(method.teacher), teacher), f"{name}: the teacher changed during step {index}")
    before = None
    if step.old and fit.images is not None and not method.corrects:
        mode = method.training
        before = predict_some(experiment)
        method.train(mode)
    finish_step(fit)
    if before is not None:
        ensure(torch.equal(before, predict_some(experiment)), f"{name}: end changes predictions, but corrects is false")
    ensure(len(learner.memory) <= learner.memory.quota(1), f"{name}: the memory holds more than its size")
    check_predictions(experiment, index)


def predict_some(experiment: Experiment, count: int = 16) -> Tensor:
    method = experiment.learner.method.eval()
    with torch.no_grad():
        return method.predict(experiment.learner.augment.plain(experiment.stream.test, torch.arange(count)))


def check_predictions(experiment: Experiment, index: int) -> None:
    """Predictions cover exactly the classes seen, do not depend on the batch, and change nothing."""
    name, method, seen = experiment.settings.method, experiment.learner.method, experiment.stream[index].seen
    before = state_of(method)
    logits = predict_some(experiment)
    ensure(logits.shape == (16, seen), f"{name}: predict returns {tuple(logits.shape)} after {seen} classes")
    ensure(not logits.isnan().any(), f"{name}: predict returns NaN")
    ensure(torch.equal(logits, predict_some(experiment)), f"{name}: predict returns something else the second time")
    x = experiment.learner.augment.plain(experiment.stream.test, torch.arange(16))
    with torch.no_grad():
        classified = method.classify(method.features(x))
    ensure(torch.equal(logits, classified), f"{name}: predict differs from classify(features)")
    torch.testing.assert_close(
        predict_some(experiment, 4), logits[:4], msg=f"{name}: a prediction depends on the other images of its batch"
    )
    ensure(same(before, state_of(method)), f"{name}: predict changes the method")


def copy_of(trial: Trial, source: Experiment) -> Experiment:
    """Return a new experiment with the state and memory of another."""
    copied = trial.experiment()
    copied.learner.method.load_state_dict(state_of(source.learner.method))
    copied.learner.memory.restore(source.learner.memory.row_indices().items(), copied.stream.train.store)
    return copied
