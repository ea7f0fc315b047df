"""The contract that every method passes. Run it on yours:

    from equipoise.testing import check_method
    check_method("my-method")

It trains on a few handwritten digits many times; a method on a small network takes about ten seconds.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.core import distributed
from equipoise.core.config import field_docs
from equipoise.core.directory import Directory
from equipoise.core.tensors import read_tensors
from equipoise.data.dataset import Dataset
from equipoise.data.images import Images
from equipoise.data.sources import load
from equipoise.data.stream import Step
from equipoise.engine.evaluate import Predictions, predict_all
from equipoise.engine.recipes import resolve
from equipoise.engine.settings import Settings
from equipoise.engine.step import begin_step, learn_step
from equipoise.errors import UsageError
from equipoise.learn.backbones.base import backbones_of, disabled
from equipoise.learn.inference import InferencePass
from equipoise.learn.inference import same_tensors as same
from equipoise.learn.method import Method
from equipoise.learn.stage import TrainListener
from equipoise.methods.registry import lookup, make, register
from equipoise.study.console import RunListener
from equipoise.study.experiment import Experiment, execute
from equipoise.study.process_group import run_in_group

State = dict[str, Tensor]


def check_method(method: str | type[Method], fields: Mapping[str, Any] | None = None, distribute: bool = True) -> None:
    """Raise an ``AssertionError`` that says which rule a method breaks.

    Parameters
    ----------
    method
        The name of a method, or a class that is not installed yet.
    fields
        Hyper-parameters that differ from the defaults.
    distribute
        Also train in two processes, which takes a while to start; ``check_distributed`` checks many methods in one go.
    """
    name = register(method) if isinstance(method, type) else method
    cls = lookup(name)[0]
    check_fields(name)
    trial = Trial(name, fields or {}, cls=cls)
    for check in CHECKS:
        check(trial)
    if distribute:
        check_distributed([trial])


def check_fields(name: str) -> None:
    """Fields have defaults and are documented, ``repr`` can be evaluated, and the class has a docstring."""
    cls, _ = lookup(name)
    docs = field_docs(cls)
    for field in dataclasses.fields(cls):
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        assert has_default, f"{name}: the field {field.name} has no default"
        assert docs.get(field.name), f"{name}: the field {field.name} has no documentation string below it"
    assert cls.__doc__, f"{name}: the class has no docstring"
    assert cls.rehearsal in ("memory", "all", "none"), f"{name}: rehearsal is {cls.rehearsal!r}"
    method = make(name)
    again = eval(repr(method), {cls.__name__: cls})  # noqa: S307 - of our own repr
    assert repr(again) == repr(method), f"{name}: evaluating repr does not give the same method"


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


def short_stages(name: str) -> dict[str, Any]:
    """Return small values for every field that counts epochs or samples."""
    fields = {field.name for field in dataclasses.fields(lookup(name)[0])}
    return {field: 2 if "epochs" in field else 8 for field in fields if "epochs" in field or field == "samples"}


def state_of(method: Method) -> State:
    return {name: value.clone() for name, value in method.state_dict().items()}


class TeacherRecorder(TrainListener):
    """Records the teacher when the main training starts."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.teacher: State | None = None

    def stage(self, name: str, epochs: int, images: int, done: int) -> None:
        if name == "train" and self.method.teacher is not None:
            self.teacher = state_of(self.method.teacher)


def learn(experiment: Experiment, index: int) -> None:
    """Learn one step and check what can be seen while it is learned."""
    learner, step = experiment.learner, experiment.stream[index]
    name, method = experiment.settings.method, learner.method
    recorder = TeacherRecorder(method)

    def check_teacher() -> None:
        wanted = bool(step.old and method.uses_teacher)
        assert wanted == (method.teacher is not None), f"{name}: there is {'no' if wanted else 'an unwanted'} teacher"
        if method.teacher is not None and recorder.teacher is not None:
            unchanged = same(state_of(method.teacher), recorder.teacher)
            assert unchanged, f"{name}: the teacher changed during step {index}"

    learn_step(learner.fit(step, experiment.training_images(step), recorder), check_teacher)
    assert len(learner.memory) <= learner.memory.size, f"{name}: the memory holds more than its size"
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
    assert logits.shape == (16, seen), f"{name}: predict returns {tuple(logits.shape)} after {seen} classes"
    assert not logits.isnan().any(), f"{name}: predict returns NaN"
    assert torch.equal(logits, predict_some(experiment)), f"{name}: predict returns something else the second time"
    x = experiment.learner.augment.plain(experiment.stream.test, torch.arange(16))
    with torch.no_grad():
        classified = method.classify(method.features(x))
    assert torch.equal(logits, classified), f"{name}: predict differs from classify(features)"
    torch.testing.assert_close(
        predict_some(experiment, 4), logits[:4], msg=f"{name}: a prediction depends on the other images of its batch"
    )
    assert same(before, state_of(method)), f"{name}: predict changes the method"


def check_steps(trial: Trial) -> None:
    """Three steps: finite loss, unchanged teacher, memory within its size, valid predictions."""
    experiment = trial.experiment()
    for index in range(1, len(experiment.stream) + 1):
        learn(experiment, index)


def check_same_seed(trial: Trial) -> None:
    """The same seed gives the same bits, another seed does not."""
    states = []
    for seed in (0, 0, 1):
        experiment = trial.experiment(seed)
        learn(experiment, 1)
        learn(experiment, 2)
        states.append(state_of(experiment.learner.method))
    assert same(states[0], states[1]), f"{trial.name}: the same seed gave different weights"
    assert not same(states[0], states[2]), f"{trial.name}: another seed gave the same weights"


def check_state_is_complete(trial: Trial) -> None:
    """A new method that loads ``state_dict`` predicts the same and continues to learn the same."""
    one, two = trial.experiment(), trial.experiment()
    for index in range(1, len(one.stream)):
        learn(one, index)
        two = copy_of(trial, one)
        assert torch.equal(predict_some(one), predict_some(two)), f"{trial.name}: predictions differ after loading"
    learn(one, len(one.stream))
    learn(two, len(one.stream))
    equal = same(state_of(one.learner.method), state_of(two.learner.method))
    assert equal, f"{trial.name}: training differs after loading"


def copy_of(trial: Trial, source: Experiment) -> Experiment:
    """Return a new experiment with the state and memory of another."""
    copied = trial.experiment()
    copied.learner.method.load_state_dict(state_of(source.learner.method))
    copied.learner.memory.restore(source.learner.memory.row_indices().items(), copied.stream.train.store)
    return copied


class StopAfter(RunListener):
    """Interrupts a run after a number of epochs, over all stages."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def epoch(self, epoch: int, loss: float, lr: float) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def check_resume(trial: Trial) -> None:
    """A run that is interrupted after any epoch of any stage ends with the same bits."""
    settings = trial.settings(steps="3,3")
    data = trial.data()
    counter = StopAfter(10**9)
    with tempfile.TemporaryDirectory() as folder:
        whole = _final_state(settings, data, Path(folder) / "whole", counter)
        epochs = 10**9 - counter.left
        for after in range(1, epochs):
            directory = Path(folder) / str(after)
            try:
                execute(settings, directory, lambda: data, StopAfter(after))
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError(f"{trial.name}: the run was not interrupted")
            again = _final_state(settings, data, directory, RunListener())
            assert same(whole, again), f"{trial.name}: it ended differently after an interruption in epoch {after}"


def _final_state(settings: Settings, data: Dataset, directory: Path, listener: RunListener) -> State:
    execute(settings, directory, lambda: data, listener)
    (file,) = (directory / "checkpoint").glob("*.safetensors")
    return read_tensors(Directory(file.parent), file.name)


def check_keep_classes(trial: Trial) -> None:
    """After ``keep_classes`` the remaining classes are predicted as before, and learning continues; or it refuses."""
    experiment = trial.experiment()
    learner = experiment.learner
    learn(experiment, 1)
    learn(experiment, 2)
    before = predict_some(experiment)
    stay = torch.tensor([0, 2, 3])
    try:
        learner.method.keep_classes(stay)
    except UsageError:
        return
    after = predict_some(experiment)
    assert after.shape == (16, 3), f"{trial.name}: predict returns {tuple(after.shape)} for 3 remaining classes"
    others = before.argmax(1) != 1
    same_class = stay[after.argmax(1)] == before.argmax(1)
    assert same_class[others].all(), f"{trial.name}: removing a class changes the predictions of others"
    learner.memory.keep_classes(stay)
    images = experiment.stream[3].images
    step = Step(3, 3, 2, dataclasses.replace(images, labels=images.labels - 1))
    learn_step(learner.fit(step, learner.training_images(step)), lambda: None)
    assert predict_some(experiment).shape == (16, 5), f"{trial.name}: it cannot learn after a class was removed"
    learner.method.load_state_dict(state_of(learner.method))


def check_extremes(trial: Trial) -> None:
    """Steps of one class, and classes of one image."""
    single = trial.experiment(steps="1,1,2", classes=4)
    for index in range(1, 4):
        learn(single, index)
    scarce = trial.experiment(images=1, steps="2,2", classes=4)
    for index in (1, 2):
        learn(scarce, index)


def check_bf16(trial: Trial) -> None:
    """Backbones may compute in bfloat16; logits are float32, because a hundred classes need the precision."""
    name, experiment = trial.name, dataclasses.replace(trial, precision="bf16").experiment()
    for index in (1, 2):
        learn(experiment, index)
    method = experiment.learner.method
    backbones = backbones_of(method)
    assert all(backbone.bf16 for backbone in backbones), f"{name}: a backbone was not made by the architecture"
    logits = predict_some(experiment)
    assert logits.dtype == torch.float32, f"{name}: logits are {logits.dtype}, not float32"
    with disabled(method, "bf16"):
        exact = predict_some(experiment)
    close = torch.allclose(logits, exact, rtol=0.1, atol=0.1 * float(exact.abs().max()))
    assert close, f"{name}: predictions in bfloat16 differ too much"


CHECKS: tuple[Callable[[Trial], None], ...] = (
    check_steps,
    check_same_seed,
    check_state_is_complete,
    check_resume,
    check_extremes,
    check_keep_classes,
    check_bf16,
)


def check_distributed(trials: Sequence[Trial]) -> None:
    """Two processes that train together have the same bits and memory after every step, and evaluate like one."""
    try:
        run_in_group(functools.partial(_learn_distributed, trials))
    except RuntimeError as error:
        raise AssertionError(str(error)) from error


def _learn_distributed(trials: Sequence[Trial]) -> None:
    """Learn every trial in one of the processes; a method that refuses several processes is skipped."""
    for trial in trials:
        if trial.cls is not None:
            register(trial.cls)
        try:
            experiment = trial.experiment()
        except UsageError:
            continue
        for index in range(1, len(experiment.stream) + 1):
            learn(experiment, index)
            _check_agreement(experiment, index)
            if index == 1:
                _check_gradient(trial, experiment)


def _check_gradient(trial: Trial, learned: Experiment) -> None:
    """The gradients of the shards add up to that of the batch, apart from batch norm."""
    experiment = copy_of(trial, learned)
    learner, step = experiment.learner, experiment.stream[2]
    fit = learner.fit(step, experiment.training_images(step))
    method = learner.method
    begin_step(fit)
    images = fit.images
    if images is None:
        return
    method.eval()
    batch = torch.arange(0, len(images), max(len(images) // 21, 1))[:21]

    def gradient(where: Tensor, weight: float) -> Tensor:
        method.zero_grad()
        (weight * method.loss(learner.augment.plain(images, where), images.labels[where])).backward()
        return torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None])

    mine = gradient(distributed.shard(batch), distributed.shard_weight(batch))
    shared = distributed.all_reduce_sum(mine) / distributed.world_size()
    with distributed.local():
        whole = gradient(batch, 1.0)
    error = (shared - whole).norm() / whole.norm()
    assert error < 1e-4, f"{trial.name}: the gradient of the shards differs from that of the batch by {error:.1e}"


def _check_agreement(experiment: Experiment, index: int) -> None:
    name, learner = experiment.settings.method, experiment.learner
    state, rows = state_of(learner.method), learner.memory.row_indices()
    main_state, main_rows = distributed.broadcast(lambda: (state, rows))
    assert same(main_state, state), f"{name}: two processes have different weights after step {index}"
    assert main_rows == rows, f"{name}: two processes have different exemplars after step {index}"
    tests = experiment.stream.tests(experiment.stream[index])
    shared = _predict(experiment, tests)
    with distributed.local():
        alone = _predict(experiment, tests)
    for field in ("top1", "in_top5", "confidence"):
        equal = torch.equal(getattr(shared, field), getattr(alone, field))
        assert equal, f"{name}: two processes evaluate differently from one ({field})"


def _predict(experiment: Experiment, images: Images) -> Predictions:
    learner = experiment.learner
    return predict_all(InferencePass(learner.method, images, learner.augment, learner.settings.runtime))
