"""The result of a step: one schema for metrics.jsonl, steps.json, ``--json``, the API and the pages.

Every file that holds results is read through ``read_results``, which checks types and upgrades old formats.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from equipoise.core.json_files import format_json
from equipoise.errors import RunError

FORMAT = 2
"""1: equipoise 0.1.0 (fe23206). 2: one schema for runs and models."""

MAX_STEPS = 100_000
"""Steps of a run or model; a step takes 30 times as much memory as the shortest JSON for it."""

Label = str | int | float | bool
"""The name of a class. Folders give strings; labels from Python may be numbers or booleans."""


@dataclass(frozen=True)
class ClassResult:
    """How well one class is recognised on the evaluation images."""

    name: Label
    """The class."""
    accuracy: float | None
    """In percent; None without evaluation images."""
    correct: int | None = None
    """Number of images that are classified correctly; None if unknown, as in runs of format 1."""
    total: int | None = None
    """Number of evaluation images of the class; None as above."""


@dataclass(frozen=True)
class ErrorCounts:
    """Misclassified images, as in Table 1 of the paper."""

    e_n: int = 0
    """Images of new classes that are misclassified."""
    e_o: int = 0
    """Images of old classes that are misclassified."""
    e_on: int = 0
    """Images of old classes predicted as new classes."""
    e_oo: int = 0
    """Images of old classes predicted as other old classes."""
    e_no: int | None = 0
    """Images of new classes predicted as old classes; None if unknown, as in runs of format 1."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one step did, and how well the model performs after it. Accuracies are in percent.

    Runs are evaluated on the test images of all classes seen so far, models on their held-out images.
    """

    step: int
    """Number of the step, from 1."""
    kind: Literal["learn", "forget", "rename", "merge", "move"] = "learn"
    """Whether classes were learned or removed, or which correction was made."""
    classes: list[Label] = field(default_factory=list)
    """Classes that this step added."""
    extended: list[Label] = field(default_factory=list)
    """Known classes that got more images."""
    changed: list[Label] = field(default_factory=list)
    """Classes that were corrected: old and new name, a class and those merged into it, or the class of moved images."""
    forgotten: int = 0
    """Number of classes that were removed."""
    seen: int
    """Number of classes after the step."""
    new: int
    """Number of classes that were learned in the step."""

    evaluated: Literal["images", "leave-one-out"] = "images"
    """Evaluated on images that were not trained on, or on all images, each predicted by the solution without it."""
    accuracy: float | None = None
    """Top-1 accuracy on all classes seen; None without evaluation images."""
    accuracy_macro: float | None = None
    """Mean accuracy over classes, unweighted."""
    ece: float | None = None
    """Expected calibration error in percent: how far confidence is from accuracy, on average (models)."""
    accuracy_top5: float | None = None
    """Top-5 accuracy."""
    accuracy_uncorrected: float | None = None
    """Top-1 accuracy before the correction."""
    accuracy_top5_uncorrected: float | None = None
    """Top-5 accuracy before the correction."""
    accuracy_old: float | None = None
    """Top-1 accuracy on the classes learned before this step."""
    accuracy_new: float | None = None
    """Top-1 accuracy on the classes learned in this step."""
    total_old: int = 0
    """Evaluation images of old classes."""
    total_new: int = 0
    """Evaluation images of new classes."""
    errors: ErrorCounts = ErrorCounts()
    """Misclassified evaluation images, by kind."""
    errors_uncorrected: ErrorCounts = ErrorCounts()
    """The same before the correction."""
    per_step: list[float | None] = field(default_factory=list)
    """Accuracy on the classes of each step so far."""
    per_class: list[ClassResult] = field(default_factory=list)
    """Result of each class seen, in the order in which they were learned."""

    gamma: float | None = None
    """Factor of Weight Aligning."""
    figures: dict[str, float] = field(default_factory=dict)
    """Other metrics of the method, such as BiC's alpha and beta."""
    norms_old: float | None = None
    """Mean weight norm of old classes before the correction."""
    norms_new: float | None = None
    """Mean weight norm of new classes before the correction."""

    images: int = 0
    """Training images of the new classes."""
    exemplars: int = 0
    """Images in the memory after the step."""
    held_out: int = 0
    """Images held out of training in this step (models)."""
    skipped_files: int = 0
    """Files in the folder that were not used (models)."""
    epochs: int = 0
    """Epochs of the main training stage."""
    seconds: float = 0.0
    """Duration of the step."""
    images_per_second: float = 0.0
    """Training throughput."""
    seconds_by_part: dict[str, float] = field(default_factory=dict)
    """Where the time went: train, teacher, herding, evaluation, checkpoint, other."""
    memory_peak_mb: float = 0.0
    """Peak resident memory of the process."""
    finished: str = ""
    """When the step was finished (ISO 8601, UTC)."""
    equipoise: str = ""
    """Version of equipoise."""
    advice: str | None = None
    """What would improve the model most (models)."""
    warning: str | None = None
    """A sentence if the model favours old or new classes."""

    @property
    def corrected(self) -> bool:
        """Whether the step had a correction that is worth showing."""
        changed = self.accuracy_uncorrected is not None and self.accuracy != self.accuracy_uncorrected
        return self.gamma is not None or changed

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return dataclasses.asdict(self)


def write_lines(results: Sequence[StepResult]) -> str:
    """Return the text of metrics.jsonl: one line per step."""
    try:
        return "".join(format_json(result.to_dict()) + "\n" for result in results)
    except ValueError as error:
        what = f"a metric of step {len(results)} is not finite ({error})"
        raise RunError(f"{what}: check whether training diverged") from error


def read_results(rows: Any, where: str, names: Sequence[Label] = ()) -> list[StepResult]:
    """Check and upgrade a list of results; ``names`` are a run's classes, which format 1 kept in config.json only."""
    try:
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise TypeError("it is not a list of steps")
        if len(rows) > MAX_STEPS:
            raise ValueError(f"it has {len(rows)} steps, more than the limit of {MAX_STEPS}")
        results = [msgspec.convert(_upgrade(row, names), StepResult) for row in rows]
        if [result.step for result in results] != list(range(1, len(rows) + 1)):
            raise ValueError("steps are missing")
        for result in results:
            if any(not 0 <= (entry.correct or 0) <= (entry.total or 0) for entry in result.per_class):
                raise ValueError(f"step {result.step} has impossible counts in per_class")
    except KeyError as error:
        raise RunError(f"{where} is damaged ({error} is missing)") from error
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise RunError(f"{where} is damaged ({error})") from error
    return results


def _upgrade(row: Mapping[str, Any], names: Sequence[Label]) -> dict[str, Any]:
    """Return a row of format 1 as format 2."""
    if "errors" in row:
        return dict(row)
    new = {RENAMED.get(key, key): value for key, value in row.items()}  # keys that are not in the schema are ignored
    unknown = {"e_no": None} if "top1" in row else {}  # runs did not count it
    for suffix in ("", "_uncorrected"):
        counts = {name: row[f"{name}{suffix}"] for name in ERRORS if f"{name}{suffix}" in row}
        new[f"errors{suffix}"] = unknown | counts
    if "top1" in row:  # a run
        new["per_class"] = [
            {"name": names[c] if c < len(names) else f"class {c}", "accuracy": value}
            for c, value in enumerate(row["per_class"])
        ]
        new["figures"] = {name: row[name] for name in ("alpha", "beta") if name in row}
    else:  # a model
        new["per_class"] = [
            {
                "name": entry["class"],
                "accuracy": 100 * entry["right"] / entry["of"] if entry["of"] else None,
                "correct": entry["right"],
                "total": entry["of"],
            }
            for entry in row["per_class"]
        ]
        new["seen"] = len(row["per_class"])
        new["new"] = len(row["classes"]) + len(row["extended"])
    return new


ERRORS = tuple(f.name for f in dataclasses.fields(ErrorCounts))
RENAMED = {
    "top1": "accuracy",
    "top5": "accuracy_top5",
    "top1_uncorrected": "accuracy_uncorrected",
    "top5_uncorrected": "accuracy_top5_uncorrected",
    "tests_old": "total_old",
    "tests_new": "total_new",
    "when": "finished",
    "count": "forgotten",
    "files_left_out": "skipped_files",
}
"""Keys of format 1 that have another name now."""
