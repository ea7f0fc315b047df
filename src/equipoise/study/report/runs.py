"""Runs as a report sees them: read from the files of their directories alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from equipoise.core.directory import MAX_FILE_BYTES, Directory
from equipoise.core.open_dir import printable
from equipoise.core.tensors import read_tensors
from equipoise.engine.metrics import averages
from equipoise.engine.results import Label, StepResult, read_results
from equipoise.engine.settings import upgrade
from equipoise.errors import RunError
from equipoise.study.run_dir import read_config

Array = NDArray[Any]
MAX_CLASSES = 10_000
"""A confusion matrix of more classes does not fit into memory, let alone onto a page."""


class MemoryKeys(TypedDict):
    """The memory's settings that a report reads."""

    size: int
    per: str
    selection: NotRequired[str]


class StreamKeys(TypedDict):
    """The stream's settings that a report reads."""

    classes: NotRequired[int | None]
    validation: NotRequired[int]


class NetKeys(TypedDict):
    """The network's settings that a report reads."""

    backbone: str


class TrainKeys(TypedDict):
    """The schedule's settings that a report reads."""

    epochs: int


class SettingsKeys(TypedDict):
    """The settings that a report reads. It needs no method, so it can show runs of plug-ins that are gone."""

    dataset: str
    method: str
    recipe: str
    seed: int
    memory: MemoryKeys
    stream: StreamKeys
    net: NetKeys
    train: TrainKeys
    fields: dict[str, Any]


class ConfigKeys(TypedDict):
    """The part of config.json that a report reads."""

    settings: SettingsKeys
    classes: NotRequired[list[Label]]
    sizes: NotRequired[list[int]]
    command: NotRequired[str]
    equipoise: NotRequired[str]
    commit: NotRequired[str | None]
    python: NotRequired[str]
    versions: NotRequired[dict[str, str]]
    machine: NotRequired[dict[str, Any]]


@dataclass(frozen=True)
class StepPredictions:
    """Predictions on every test image after a step, with or without its correction."""

    labels: Array
    top1: Array
    confidence: Array
    norms: Array | None
    """Norm of each class's weights; None if the head does not have one row per class."""


@dataclass(frozen=True)
class RunRecord:
    """A run that was read from its directory."""

    directory: Directory
    config: dict[str, Any]
    """The content of config.json."""
    steps: list[StepResult]
    summary: dict[str, float | None] | None
    """None while the run is not finished."""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings, with current names."""
        return upgrade(self.config["settings"])

    @property
    def method(self) -> str:
        return str(self.settings["method"])

    @property
    def planned(self) -> int:
        """Number of steps when the run is finished."""
        return len(self.config.get("sizes") or self.steps)

    @property
    def seen(self) -> int:
        return self.steps[-1].seen

    @cached_property
    def names(self) -> list[str]:
        """Names of all classes seen; blank ones are quoted."""
        names = [str(result.name) for result in self.steps[-1].per_class]
        return [printable(name.strip() or repr(name)) for name in names]

    @cached_property
    def step_of(self) -> Array:
        """The step that learned each class, from 1."""
        return np.repeat([step.step for step in self.steps], [step.new for step in self.steps])

    @property
    def norm(self) -> int:
        """The norm that the method aligns by. Methods that do not align report the L1 norm."""
        return 2 if self.settings.get("fields", {}).get("norm") == 2 else 1

    @property
    def corrected(self) -> bool:
        """Whether the method corrects the model after training."""
        return any(step.corrected for step in self.steps)

    def predictions(self, step: int) -> tuple[StepPredictions, StepPredictions]:
        """Return the predictions after ``step``: final, and before the correction (the same if there was none)."""
        name = f"predictions/step-{step}.safetensors"
        tensors = read_tensors(self.directory, name, limit=MAX_FILE_BYTES)
        after = self._predictions(step, tensors, "")
        return after, self._predictions(step, tensors, "_uncorrected") if "top1_uncorrected" in tensors else after

    def _predictions(self, step: int, tensors: dict[str, Tensor], suffix: str) -> StepPredictions:
        seen = self.steps[step - 1].seen
        try:
            labels, top1 = _integers(tensors["labels"]), _integers(tensors[f"top1{suffix}"])
            confidence = _floats(tensors[f"confidence{suffix}"])
            norms = tensors.get(f"norms_{self.norm}{suffix}")
            found = StepPredictions(labels, top1, confidence, None if norms is None else _floats(norms))
            if not labels.shape == top1.shape == confidence.shape or labels.ndim != 1 or not len(labels):
                raise ValueError("it needs one label, prediction and confidence per test image")
            if min(labels.min(), top1.min()) < 0 or max(labels.max(), top1.max()) >= seen:
                raise ValueError(f"a label or prediction is none of the {seen} classes")
            if confidence.min() < 0 or confidence.max() > 1:
                raise ValueError("a confidence is not between 0 and 1")
            if found.norms is not None and found.norms.shape != (seen,):
                raise ValueError(f"it needs norms of {seen} classes")
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"the predictions of step {step} are damaged ({error})") from error
        return found

    def check(self) -> None:
        """Raise an error unless everything that a report shows is present and consistent."""
        seen = 0
        for step in self.steps:
            seen += step.new
            if step.new < 1 or step.seen != seen or len(step.per_class) != seen or len(step.per_step) != step.step:
                raise RunError(f"metrics.jsonl is damaged (the classes of step {step.step} do not add up)")
            if seen > MAX_CLASSES:
                raise RunError(f"it has more than {MAX_CLASSES} classes, too many for a report")
            if step.accuracy is None or step.accuracy_uncorrected is None or step.accuracy_top5 is None:
                raise RunError(f"step {step.step} was not evaluated: there are no test images")
            self.predictions(step.step)


def _integers(tensor: Tensor) -> Array:
    values = tensor.numpy()
    if values.dtype.kind not in "iu":
        raise TypeError(f"class numbers are stored as {values.dtype}")
    return values.astype(np.int64)


def _floats(tensor: Tensor) -> Array:
    values = tensor.numpy().astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("a number is not finite")
    return values


def read_run(directory: Path | Directory) -> RunRecord:
    """Read the settings, results and summary of a run."""
    directory = Directory(directory) if isinstance(directory, Path) else directory
    if not directory.exists("metrics.jsonl"):
        raise RunError("no step is finished yet")
    config = read_config(directory)
    try:
        msgspec.convert({**config, "settings": upgrade(config["settings"])}, ConfigKeys)
        steps = read_results(directory.read_json_lines("metrics.jsonl"), "metrics.jsonl", config.get("classes") or ())
        if not steps:
            raise RunError("no step is finished yet")
        summary = None
        if directory.exists("summary.json"):
            stored = msgspec.convert(directory.read_json("summary.json"), dict[str, float | None])
            summary = averages(steps) | stored  # older versions did not store all of them
    except msgspec.ValidationError as error:
        raise RunError(f"config.json or summary.json is damaged ({error})") from error
    return RunRecord(directory, config, steps, summary)
