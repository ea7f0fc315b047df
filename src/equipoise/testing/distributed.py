"""Checks of methods that two processes train together."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.core import distributed
from equipoise.data.images import Images
from equipoise.engine.evaluate import Predictions, predict_all
from equipoise.engine.step import begin_step
from equipoise.errors import UsageError
from equipoise.learn.inference import InferencePass
from equipoise.learn.inference import same_tensors as same
from equipoise.methods.registry import register
from equipoise.study.experiment import Experiment
from equipoise.study.process_group import run_in_group
from equipoise.testing.trial import Trial, copy_of, ensure, learn, state_of


def check_distributed(trials: Sequence[Trial]) -> None:
    """Two processes that train together have identical weights and memory after every step, and evaluate like one."""
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
    ensure(error < 1e-4, f"{trial.name}: the gradient of the shards differs from that of the batch by {error:.1e}")


def _check_agreement(experiment: Experiment, index: int) -> None:
    name, learner = experiment.settings.method, experiment.learner
    state, rows = state_of(learner.method), learner.memory.row_indices()
    main_state, main_rows = distributed.broadcast(lambda: (state, rows))
    ensure(same(main_state, state), f"{name}: two processes have different weights after step {index}")
    ensure(main_rows == rows, f"{name}: two processes have different exemplars after step {index}")
    tests = experiment.stream.tests(experiment.stream[index])
    shared = _predict(experiment, tests)
    with distributed.local():
        alone = _predict(experiment, tests)
    for field in ("top1", "in_top5", "confidence"):
        equal = torch.equal(getattr(shared, field), getattr(alone, field))
        ensure(equal, f"{name}: two processes evaluate differently from one ({field})")


def _predict(experiment: Experiment, images: Images) -> Predictions:
    learner = experiment.learner
    return predict_all(InferencePass(learner.method, images, learner.augment, learner.settings.runtime))
