"""Output of the commands for models."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from rich import box
from rich.markup import escape
from rich.table import Column, Table

from equipoise.app.card import counted, describe_classes, describe_step, evaluated_on, percent
from equipoise.app.learn import LearnListener
from equipoise.app.model import Model
from equipoise.app.photo_folder import Decoded, FolderScan, SkippedFile
from equipoise.app.predict import Prediction
from equipoise.app.step_plan import StepPlan
from equipoise.core.console import print_lines
from equipoise.core.open_dir import printable
from equipoise.core.output import overwrite_line, print_csv, print_json, say, warn
from equipoise.core.progress_line import track
from equipoise.engine.progress import ProgressBar, duration
from equipoise.engine.results import StepResult
from equipoise.errors import DataError

LISTED = 20
"""Skipped files that are listed one by one."""
FEW = 5
"""Below this number of images per class, leave-one-out is much lower than the accuracy on new images."""


class LearnConsole(ProgressBar, LearnListener):
    """Shows a step from reading the folder to its accuracy."""

    def reading(self, images: Iterable[Decoded], total: int) -> Iterable[Decoded]:
        return images if self.quiet else track(images, total, "reading", "images")

    def note(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def plan(self, plan: StepPlan, found: FolderScan, seconds: float, epochs_done: int) -> None:
        if not self.quiet:
            print_lines(self.console, [*skipped_lines(found.skipped), *plan_lines(plan, seconds, epochs_done)])
        self.start([plan.load])

    def learned(self, result: StepResult, model: Model) -> None:
        self.close()
        print_lines(self.console, result_lines(result))


class CorrectionConsole(LearnConsole):
    """Shows the progress of a correction, if anything is trained."""

    def plan(self, plan: StepPlan, found: FolderScan, seconds: float, epochs_done: int) -> None:
        self.quiet = self.quiet or not plan.model.trains
        super().plan(plan, found, seconds, epochs_done)

    def learned(self, result: StepResult, model: Model) -> None:
        self.close()


@dataclass
class LearnJson(LearnListener):
    """Prints one JSON object: the plan of a dry run or the step's result, with all skipped files."""

    dry_run: bool

    def plan(self, plan: StepPlan, found: FolderScan, seconds: float, epochs_done: int) -> None:
        self.found = found
        if self.dry_run:
            self._print({
                "classes": plan.added,
                "extended": plan.extended,
                "images": len(plan.step.images),
                "exemplars": len(plan.images) - len(plan.step.images),
                "held_out": plan.held,
                "epochs": plan.epochs,
                "seconds": round(seconds, 1),
            })  # fmt: skip

    def learned(self, result: StepResult, model: Model) -> None:
        self._print(result.to_dict())

    def _print(self, facts: dict[str, Any]) -> None:
        print_json(facts | {"skipped": skipped_list(self.found)})


def skipped_list(found: FolderScan) -> list[dict[str, str]]:
    """Return the skipped files for JSON."""
    return [asdict(entry) for entry in found.skipped]


def skipped_lines(entries: Sequence[SkippedFile]) -> list[str]:
    """List the skipped files for people."""
    if not entries:
        return []
    lines = [f"skipped {counted(len(entries), 'file')} or folders:" if len(entries) > 1 else "skipped:"]
    lines += [f"  {escape(printable(entry.path))}: {escape(printable(entry.reason))}" for entry in entries[:LISTED]]
    if len(entries) > LISTED:
        lines.append(f"  … and {len(entries) - LISTED} more (--json lists all)")
    return lines


def plan_lines(plan: StepPlan, seconds: float, epochs_done: int) -> list[str]:
    """Describe a step before it starts."""
    model, step = plan.model, plan.step
    settings = model.settings
    rehearsed = len(plan.images) - len(step.images)
    beside = f" and {counted(rehearsed, 'exemplar')} of {counted(step.old, 'old class')}" if step.old else ""
    if step.old and model.method.rehearsal == "kept":
        kept = counted(len(model.memory), "image") if model.keeps_all else "statistics"
        beside = f", with {kept} of {counted(step.old, 'old class')}"
    held = f", {plan.held:,} held out" if plan.held else ""
    takes = f": about {duration(seconds)}" if plan.model.trains or seconds >= 1 else ""
    training = f", {counted(plan.epochs, 'epoch')}{takes}" if plan.model.trains else f", solved in closed form{takes}"
    lines = [
        f"[bold]step {len(model.steps) + 1}[/]: {escape(describe_classes(plan.added, plan.extended, most=8))}",
        f"  learning from {counted(len(step.images), 'image')}{beside}{held}",
        f"  {settings.method}, {settings.net.backbone}, {model.shape[1]} × {model.shape[2]} pixels{training}",
    ]
    if epochs_done:
        lines.append(f"  continuing after {counted(epochs_done, 'epoch')} of an interrupted step")
    return lines


def result_lines(result: StepResult) -> list[str]:
    """Describe the result of a step."""
    if result.accuracy is None:
        return [
            "[bold]done[/]; accuracy unknown, because every class has too few images to evaluate on: add more, or run "
            "`equipoise evaluate` on other images"
        ]
    if result.seen == 1:
        return ["[bold]done[/]; there is only one class so far, so every image is predicted as that class"]
    macro = percent(result.accuracy_macro)
    even = result.accuracy_macro is None or macro == percent(result.accuracy)
    alike = "" if even else f" ({macro} on average per class)"
    lines = [f"[bold]accuracy {result.accuracy:.1f} %[/]{alike} on {evaluated_on(result)}"]
    totals = {entry.name: entry.total or 0 for entry in result.per_class}
    if left_out := [name for name, total in totals.items() if not total]:
        names = escape(describe_classes(left_out, [], most=8))
        lines.append(f"  not evaluated, because of too few images: {names}")
    if result.evaluated == "leave-one-out" and median(total for total in totals.values() if total) < FEW:
        lines.append(
            "  with so few images per class, the true accuracy is probably higher: each is predicted without itself"
        )
    if result.total_old and result.total_new:
        if result.gamma is not None:
            lines[0] += f" ({percent(result.accuracy_uncorrected)} before the correction)"
        gamma = "" if result.gamma is None else f", γ {result.gamma:.3f}"
        errors, as_old = result.errors, result.errors.e_no or 0  # models always have the count
        lines += [
            f"  old classes {percent(result.accuracy_old)}, new classes {percent(result.accuracy_new)}{gamma}",
            f"  misclassified: {counted(errors.e_on, 'old image')} predicted as new classes, {errors.e_oo} as other "
            f"old classes; {counted(as_old, 'new image')} predicted as old classes, {errors.e_n - as_old} as "
            "other new classes",
        ]
    if result.advice:
        lines.append(f"  advice: {escape(result.advice)}")
    if result.warning:
        lines.append(f"[yellow]warning[/]: {escape(result.warning)}")
        remedy = "more images of the others" if result.evaluated == "leave-one-out" else "more exemplars (--memory)"
        lines.append(f"  try {remedy} or another --method; `equipoise undo` reverts the step")
    return lines


def print_predictions(predictions: Iterable[Prediction], top: int, form: Literal["text", "json", "csv"]) -> None:
    """Print predictions as they come; at the end, an error says how many images could not be read."""
    failed = total = 0
    if form == "csv":
        numbers = ["" if rank == 1 else f"_{rank}" for rank in range(1, top + 1)]
        print_csv(["path", *(f"{name}{n}" for n in numbers for name in ("class", "probability")), "unknown"])
    show_count = sys.stderr.isatty() and not sys.stdout.isatty()
    last_count = time.monotonic()
    for one in predictions:
        total += 1
        if show_count and time.monotonic() - last_count > 1:
            last_count = time.monotonic()
            overwrite_line(f"{total:,} images")
        failed += one.error is not None
        if form == "json":
            print_json(one.to_dict())
        elif one.error is not None:
            warn(f"equipoise: {one.path}: {one.error}")
        elif form == "csv":
            cells = (cell for name, value in one.classes for cell in (name, f"{value:.6f}"))
            print_csv([one.path, *cells, str(one.unknown).lower()])
        else:
            answers = (f"{name} {value:.1%}" for name, value in one.classes)
            text = "  ".join(answers)
            say(f"{one.path}  " + (f"unknown (nearest: {text})" if one.unknown else text))
    if show_count:
        overwrite_line("")
    if failed:
        raise DataError(f"cannot read {failed} of {total} images")


def history_rows(steps: Sequence[StepResult]) -> list[dict[str, Any]]:
    """Return one row per step: accuracy of its classes then and now."""
    now = {result.name: result for result in steps[-1].per_class}
    rows = []
    for step in steps:
        mine = [now[name] for name in (*step.classes, *step.extended) if name in now]
        total = sum(result.total or 0 for result in mine)
        rows.append({
            "step": step.step,
            "finished": step.finished,
            "kind": step.kind,
            "classes": step.classes,
            "extended": step.extended,
            "images": step.images if step.kind == "learn" else None,
            "accuracy_then": step.accuracy_new,
            "accuracy_now": 100 * sum(result.correct or 0 for result in mine) / total if total else None,
            "accuracy": step.accuracy,
            "gamma": step.gamma,
            "warning": step.warning,
        })  # fmt: skip
    return rows


def history_table(steps: Sequence[StepResult]) -> Table:
    """Return the history for people."""
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("step", "date", "what", "images", "then", "now", "all", "γ"):
        text = heading in ("date", "what")
        least = 16 if heading == "what" else None
        table.add_column(heading, justify="left" if text else "right", no_wrap=heading != "what", min_width=least)
    for step, row in zip(steps, history_rows(steps), strict=True):
        table.add_row(
            str(step.step),
            step.finished[:10],
            escape(describe_step(step)),
            "–" if row["images"] is None else f"{row['images']:,}",
            percent(row["accuracy_then"]),
            percent(row["accuracy_now"]),
            percent(row["accuracy"]),
            "–" if step.gamma is None else f"{step.gamma:.3f}",
        )
    return table


def class_table(*figures: str) -> Table:
    """Return an empty table of classes with the given columns."""
    return Table("class", *(Column(name, justify="right") for name in figures), box=box.SIMPLE, pad_edge=False)


def evaluation_table(facts: Mapping[str, Any]) -> Table:
    """Return the accuracy per class."""
    table = class_table("correct", "total", "accuracy")
    for entry in facts["per_class"]:
        cells = (str(entry["correct"]), str(entry["total"]), percent(entry["accuracy"]))
        table.add_row(escape(printable(str(entry["name"]))), *cells)
    return table
