"""One run: a method learns a stream of classes step by step and is evaluated after each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from equipoise.core import distributed
from equipoise.data import sources
from equipoise.data.dataset import Dataset
from equipoise.data.images import Images, join
from equipoise.data.stream import ClassStream, Step
from equipoise.engine.learner import Learner
from equipoise.engine.metrics import summarise
from equipoise.engine.results import StepResult
from equipoise.engine.settings import Settings
from equipoise.errors import DataError, UsageError
from equipoise.learn.backbones.pretrained import input_statistics
from equipoise.learn.stage import TrainedStages
from equipoise.study.console import RunListener, RunStart, Summary
from equipoise.study.features import extract_cached
from equipoise.study.run_dir import RunDir


@dataclass(frozen=True)
class RunResult:
    """The results of a run."""

    directory: Path
    steps: list[StepResult]
    """The lines of metrics.jsonl."""
    summary: Summary


def default_directory(settings: Settings) -> Path:
    """Return the default directory of a run."""
    return Path("runs") / f"{Path(settings.recipe).stem}-{settings.method}-seed{settings.seed}"


@dataclass
class Experiment:
    """A stream and a learner that has not learned anything yet."""

    stream: ClassStream
    learner: Learner

    @staticmethod
    def prepare(settings: Settings, dataset: Dataset) -> Experiment:
        """Check the settings and make the network."""
        settings.runtime.start()
        if settings.stream.validation:
            dataset = dataset.with_validation(settings.stream.validation)
        statistics = input_statistics(settings.net.backbone, settings.net.weights)
        augment = replace(dataset.augment, **statistics, **settings.augment)
        learner = Learner.create(settings, dataset.train.store.shape, augment)
        stream = ClassStream(dataset, settings.stream.steps, settings.stream.order, settings.stream.classes)
        if learner.method.rehearsal == "memory":
            learner.memory.check(len(stream.order))
        return Experiment(stream, learner)

    def extract(self) -> None:
        """Replace all images by features if the backbone is frozen; called by all processes."""
        if self.learner.extractor is not None:
            self.stream.train = extract_cached(self.stream.train, self.learner.extractor)
            self.stream.test = extract_cached(self.stream.test, self.learner.extractor)

    @property
    def settings(self) -> Settings:
        return self.learner.settings

    def training_images(self, step: Step) -> Images:
        """Return the images that a step is trained on."""
        return self.learner.training_images(step, self.stream.before(step))

    def images_per_epoch(self) -> list[int]:
        """Predict how many images an epoch of each step will show."""
        counts = torch.bincount(self.stream.train.labels, minlength=len(self.stream.order))
        method, predicted = self.learner.method, []
        for step in self.stream:
            old = counts[: step.old]
            if method.rehearsal == "memory":
                old = old.clamp(max=self.learner.memory.quota(step.old))
                old = old * self.settings.train.repeats(step.index, len(step.images), int(old.sum()))
            elif method.rehearsal != "all":
                old = old[:0]
            predicted.append((len(step.images) + int(old.sum())) * self.settings.train.versions)
        return predicted

    def workloads(self) -> list[int]:
        """Predict how many images each step will train on, over all epochs."""
        train = self.settings.train
        return [train.for_step(index).epochs * images for index, images in enumerate(self.images_per_epoch(), 1)]

    def estimate_seconds(self) -> float:
        """Estimate the training time with a short trial of the first two steps (modifies the method)."""
        rates: list[float] = []
        workloads = self.workloads()
        for index in (1, 2)[: len(self.stream)]:
            step = self.stream[index]
            images = step.images if index == 1 else join([step.images, self.stream.before(step)])
            rate = self.learner.throughput(step, images)
            if rate is None:  # the method trains only in the first step
                return workloads[0] / rates[0]
            rates.append(rate)
        return workloads[0] / rates[0] + sum(workloads[1:]) / rates[-1]


def load_data(settings: Settings, data_root: str | Path | None) -> Dataset:
    """Load the data set of a run."""
    return sources.load(settings.dataset, data_root, **settings.data)


def execute(
    settings: Settings,
    directory: Path,
    load: Callable[[], Dataset],
    listener: RunListener,
    trained: TrainedStages | None = None,
) -> RunResult:
    """Learn every step that is not yet in ``directory``; called by all processes of a group."""
    run_dir = RunDir(directory, settings, trained)
    distributed.broadcast(run_dir.check)
    experiment = distributed.main_first(lambda: Experiment.prepare(settings, load()))
    learner, stream = experiment.learner, experiment.stream
    _check_same(settings, stream)
    with ExitStack() as stack:
        progress = distributed.broadcast(lambda: stack.enter_context(run_dir.open(stream, learner.method)))
        experiment.extract()
        run_dir.restore(progress, learner, stream.train.store)
        results = list(progress.results)
        workloads = experiment.workloads()
        listener.run(RunStart(settings, stream.sizes, workloads, tuple(results), directory, progress.epochs))
        for step in stream:
            if step.index > len(progress.results):
                results.append(_learn(experiment, step, run_dir, listener))
                listener.step(results[-1])
        summary = summarise(results)
        if distributed.is_main():
            run_dir.finish(summary, learner.memory, stream.tests(stream[len(results)]))
        listener.done(results, summary, directory)
        return RunResult(directory, results, summary)


def _check_same(settings: Settings, stream: ClassStream) -> None:
    """Raise an error unless all processes have the same precision and see the same images."""
    if distributed.world_size() > 1:
        which = f"process {distributed.rank() + 1} of {distributed.world_size()}"
        precision = settings.runtime.precision
        if distributed.broadcast(lambda: precision) != precision:
            raise UsageError(
                f"{which} would compute in a different precision from the first: set runtime.precision to 32 or bf16"
            )
        mine = stream.fingerprint()
        if distributed.broadcast(lambda: mine) != mine:
            raise DataError(f"{which} sees different images from the first: update the data on its machine")


def _learn(experiment: Experiment, step: Step, run_dir: RunDir, listener: RunListener) -> StepResult:
    """Learn one step; its result is on disk when this returns."""
    learner, stream = experiment.learner, experiment.stream
    store = run_dir.current_step if distributed.is_main() else None
    images, tests = experiment.training_images(step), stream.tests(step)
    outcome = learner.learn(step, images, tests, stream.names[: step.seen], listener, store)
    if distributed.is_main():
        run_dir.finish_step(outcome, learner)
    return outcome.result
