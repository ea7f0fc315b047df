"""One run: a method learns a stream, step by step, and is judged after each."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from equipoise import methods, ranks
from equipoise.data import sources
from equipoise.data.augment import Augment
from equipoise.data.dataset import Dataset
from equipoise.data.images import Images, join
from equipoise.data.memory import Memory
from equipoise.data.stream import ClassStream, Step
from equipoise.errors import DataError, UsageError
from equipoise.learn.method import Method
from equipoise.learn.trainer import Fit
from equipoise.seeding import seed_everything
from equipoise.study.evaluate import step_metrics, summarise
from equipoise.study.lesson import head_norms_of, learn_and_judge, try_out
from equipoise.study.progress import Reporter, Start
from equipoise.study.recipe import Settings
from equipoise.study.rundir import RunDir


@dataclass(frozen=True)
class Result:
    """What a run found out."""

    directory: Path
    rows: list[dict[str, Any]]
    """The lines of metrics.jsonl."""
    summary: dict[str, float | None]


def default_directory(settings: Settings) -> Path:
    return Path("runs") / f"{Path(settings.recipe).stem}-{settings.method}-seed{settings.seed}"


@dataclass
class Experiment:
    """The parts of a run, made from its settings; nothing learned yet."""

    settings: Settings
    stream: ClassStream
    augment: Augment
    memory: Memory
    method: Method

    @staticmethod
    def prepare(settings: Settings, dataset: Dataset) -> Experiment:
        settings.runtime.start()
        if settings.stream.validation:
            dataset = dataset.validating(settings.stream.validation)
        stream = ClassStream(dataset, settings.stream.steps, settings.stream.order, settings.stream.classes)
        augment = replace(dataset.augment, **settings.augment)
        augment.check(dataset.train.store.shape[0])
        memory = settings.make_memory()
        method = methods.make(settings.method, settings.fields)
        if method.rehearses == "memory":
            memory.check(len(stream.order))
        if ranks.world() > 1 and not method.shares:
            raise UsageError(f"the method {settings.method} cannot be learned by several processes: use --devices 1")
        if method.needs_exemplars and memory.size == 0:
            raise UsageError(f"the method {settings.method} needs exemplars, and --memory is 0: give it a number")
        network = settings.architecture(dataset.train.store.shape)
        if (smallest := min(settings.train.sizes)) < 1:
            network.at(smallest)()  # refused now, if its pictures would be too small, and not in mid-training
        seed_everything(settings.seed, "build")
        method.build(network)
        settings.runtime.place(method)
        return Experiment(settings, stream, augment, memory, method)

    def images(self, step: Step) -> Images:
        """What ``step`` is trained on: its own images, and those of old classes that the method rehearses."""
        rehearses = self.method.rehearses
        old = {"memory": self.memory.images(), "everything": self.stream.before(step), "nothing": None}[rehearses]
        return step.images if old is None else join([step.images, old])

    def workload(self) -> list[int]:
        """Images trained on in each step and epoch, foreseen."""
        counts = torch.bincount(self.stream.train.labels, minlength=len(self.stream.order))
        loads = []
        for step in self.stream:
            old = counts[: step.old]
            if self.method.rehearses == "memory":
                repeats = self.settings.train.for_step(step.index).exemplar_repeats
                old = old.clamp(max=self.memory.quota(step.old)) * repeats
            elif self.method.rehearses == "nothing":
                old = old[:0]
            loads.append(len(step.images) + int(old.sum()))
        return loads

    def loads(self) -> list[int]:
        """Images trained on in each step, every epoch counted, foreseen."""
        train = self.settings.train
        return [train.for_step(index).epochs * images for index, images in enumerate(self.workload(), 1)]

    def fit(self, step: Step) -> Fit:
        settings = self.settings
        return Fit(
            self.method,
            step,
            self.images(step),
            self.memory,
            settings.train,
            self.augment,
            settings.runtime,
            key=(settings.seed, "step", step.index),
        )


def load_data(settings: Settings, data_root: str | Path | None) -> Dataset:
    return sources.load(settings.dataset, data_root, **settings.data)


def execute(settings: Settings, directory: Path, load: Callable[[], Dataset], reporter: Reporter) -> Result:
    """Learn every step that is not yet in ``directory``; several processes may do so together."""
    rundir = RunDir(directory, settings)
    ranks.tell(rundir.check)
    experiment = ranks.after_first(lambda: Experiment.prepare(settings, load()))
    method, memory, stream = experiment.method, experiment.memory, experiment.stream
    _check_same(settings, stream)
    with ExitStack() as stack:
        found = ranks.tell(lambda: stack.enter_context(rundir.open(stream)).found())
        rundir.restore(found, method, memory, stream.train.store)
        rows = list(found.rows)
        loads = experiment.loads()
        reporter.run(Start(settings, stream.sizes, loads, tuple(rows), directory, found.epochs))
        for step in stream:
            if step.index > len(found.rows):
                rows.append(_learn(experiment, step, rundir, reporter))
                reporter.step(rows[-1])
        summary = summarise(rows)
        if ranks.first():
            rundir.finish(summary, memory, stream.tests(stream[len(rows)]))
        reporter.done(rows, summary, directory)
        return Result(directory, rows, summary)


def _check_same(settings: Settings, stream: ClassStream) -> None:
    """Processes on several machines must do the same, and see the same images."""
    if ranks.world() > 1:
        precision = settings.runtime.precision
        if ranks.tell(lambda: precision) != precision:
            raise UsageError(
                f"process {ranks.rank() + 1} of {ranks.world()} would compute in another precision than the first: "
                "set runtime.precision to 32 or bf16"
            )
        mine = stream.fingerprint()
        if ranks.tell(lambda: mine) != mine:
            raise DataError(
                f"process {ranks.rank() + 1} of {ranks.world()} sees other images than the first: "
                "bring the data on its machine up to date"
            )


def _learn(experiment: Experiment, step: Step, rundir: RunDir, reporter: Reporter) -> dict[str, Any]:
    """One step; its figures are on disk when this returns."""
    began = time.perf_counter()
    method = experiment.method
    fit = experiment.fit(step)
    fit.watcher = reporter
    if ranks.first():
        fit.journal = rundir.stages
    lesson = learn_and_judge(fit, experiment.stream.tests(step))
    ranks.agree(method)
    after, before = lesson.after, lesson.before
    row = step_metrics(after, before, experiment.stream.sizes[: step.index]) | lesson.facts
    row |= _mean_norms(lesson.norms_before, method, step)
    row["exemplars"] = len(experiment.memory)
    row["seconds"] = time.perf_counter() - began + fit.carried
    row["images_per_second"] = fit.images_seen / max(fit.seconds, 1e-9)
    row["seconds_by_part"] = _parts(fit, row["seconds"])
    row["memory_peak_mb"] = _memory_peak()
    predictions = {
        "labels": after.labels,
        "top1": after.top1,
        "in_top5": after.in_top5,
        "confidence": after.confidence,
        **head_norms_of(method),
    }
    if lesson.corrected:  # else there is nothing to tell apart
        predictions |= {"top1_uncorrected": before.top1, "confidence_uncorrected": before.confidence}
        predictions |= {f"{name}_uncorrected": norms for name, norms in lesson.norms_before.items()}
    if ranks.first():
        rundir.finish_step(row, method.state_dict(), experiment.memory.rows(), predictions)
    return row


def _parts(fit: Fit, seconds: float) -> dict[str, float]:
    """Where a step's time went. What was trained before the run was last stopped counts as training, teacher or not."""
    parts = {part: fit.clock.seconds[part] for part in ("teacher", "herding", "evaluation", "checkpoint")}
    parts["train"] = max(fit.seconds - parts["teacher"], 0.0)
    return parts | {"other": max(seconds - sum(parts.values()), 0.0)}


def _memory_peak() -> float:
    """The most memory this process has had so far, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def _mean_norms(before: dict[str, torch.Tensor], method: Method, step: Step) -> dict[str, float | None]:
    """Mean norm of old and of new rows as training left them: γ before clamping is their ratio."""
    norms = before.get(f"norms_{getattr(method, 'norm', 1)}")
    return {
        "norms_old": norms[: step.old].mean().item() if norms is not None and step.old else None,
        "norms_new": norms[step.old :].mean().item() if norms is not None else None,
    }


def estimate(experiment: Experiment) -> float:
    """Seconds that training will take, from a short try of the first two steps on this machine."""
    rates: list[float] = []
    loads = experiment.loads()
    for index in (1, 2)[: len(experiment.stream)]:
        step = experiment.stream[index]
        images = step.images if index == 1 else join([step.images, experiment.stream.before(step)])
        rate = try_out(experiment.fit(step), images)
        if rate is None:  # a method that trains no more
            return loads[0] / rates[0]
        rates.append(rate)
    return loads[0] / rates[0] + sum(loads[1:]) / rates[-1]
