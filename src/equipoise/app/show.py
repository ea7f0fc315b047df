"""What the commands of a model print for people."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from equipoise.app.card import percent, what
from equipoise.app.folder import LeftOut, Survey
from equipoise.app.learn import Onlooker
from equipoise.app.model import Model
from equipoise.app.modeldir import KINDS, ModelDir
from equipoise.app.teach import Teaching
from equipoise.study.progress import Bar, duration

LISTED = 20
"""Files left out that are named one by one."""


class Show(Bar, Onlooker):
    """A step, from the survey to the verdict."""

    def reading(self, found: Survey) -> None:
        self.total_files, self.seen, self.began_reading = len(found), 0, time.monotonic()
        self.said = 0.0
        if self.console.is_terminal and not self.quiet:
            self.status = self.console.status("reading pictures")
            self.status.start()

    def decoded(self, count: int) -> None:
        self.seen += count
        spent = time.monotonic() - self.began_reading
        if self.quiet or spent - self.said < 1 or self.seen % 16:
            return
        left = duration(spent / self.seen * (self.total_files - self.seen))
        line = f"reading pictures: {self.seen:,} of {self.total_files:,}, {left} left"
        if self.console.is_terminal:
            self.said = spent
            self.status.update(line)
        elif spent - self.said > 5:
            self.said = spent
            self.console.print(f"  {line}", style="dim")

    def note(self, text: str) -> None:
        self._end_reading()
        self.console.print(text, soft_wrap=True)

    def plan(self, teaching: Teaching, found: Survey, seconds: float, epochs_done: int) -> None:
        self._end_reading()
        if not self.quiet:
            self.console.print(left_out(found.left_out), soft_wrap=True, end="")
            for line in plan_lines(teaching, seconds, epochs_done):
                self.console.print(line, soft_wrap=True)
        self.start([teaching.load])

    def _end_reading(self) -> None:
        if hasattr(self, "status"):
            self.status.stop()
            del self.status

    def learned(self, record: Mapping[str, Any], model: Model) -> None:
        self.close()
        for line in verdict_lines(record):
            self.console.print(line, soft_wrap=True)

    def close(self) -> None:
        self._end_reading()
        super().close()


class JsonLines(Onlooker):
    """One JSON object: the plan of a dry run, or the step's record, with every file that was left out."""

    def __init__(self, dry_run: bool) -> None:
        self.dry_run = dry_run

    def plan(self, teaching: Teaching, found: Survey, seconds: float, epochs_done: int) -> None:
        self.found = found
        plan = {
            "classes": teaching.model.classes[teaching.step.old :],
            "images": len(teaching.step.images),
            "exemplars": len(teaching.images) - len(teaching.step.images),
            "held_out": teaching.held,
            "epochs": teaching.epochs,
            "seconds": round(seconds, 1),
        }
        if self.dry_run:
            self._print(plan)

    def learned(self, record: Mapping[str, Any], model: Model) -> None:
        self._print(dict(record))

    def _print(self, facts: dict[str, Any]) -> None:
        print(json.dumps(facts | {"left_out": plain_left_out(self.found)}, ensure_ascii=False))


def plain_left_out(found: Survey) -> list[dict[str, str]]:
    return [{"path": entry.path, "why": entry.why} for entry in found.left_out]


def left_out(entries: Sequence[LeftOut]) -> str:
    if not entries:
        return ""
    lines = [f"left out {len(entries)}:"]
    lines += [f"  {escape(entry.path)}: {escape(entry.why)}" for entry in entries[:LISTED]]
    if len(entries) > LISTED:
        lines.append(f"  … and {len(entries) - LISTED} more (--json lists all)")
    return "\n".join(lines) + "\n"


def plan_lines(teaching: Teaching, seconds: float, epochs_done: int) -> list[str]:
    model, step = teaching.model, teaching.step
    settings, new = model.settings, model.classes[step.old :]
    names = what({"kind": "learn", "classes": [n for n in new if n not in teaching.extended],
                  "extended": teaching.extended}, most=8)  # fmt: skip
    rehearsed = len(teaching.images) - len(step.images)
    beside = f" beside {rehearsed:,} exemplars of {step.old} old classes" if step.old else ""
    lines = [
        f"[bold]step {len(model.steps) + 1}[/]: {escape(names)}",
        f"  {len(step.images):,} images to learn from{beside}, {teaching.held:,} held out",
        f"  {settings.method}, {settings.net.backbone}, {model.shape[1]} × {model.shape[2]} pixels, "
        f"{teaching.epochs} epochs: about {duration(seconds)}",
    ]
    if epochs_done:
        lines.append(f"  this step was stopped after {epochs_done} epochs: going on from there")
    return lines


def verdict_lines(record: Mapping[str, Any]) -> list[str]:
    if record["accuracy"] is None:
        return ["[bold]learned[/]; no images were held out, so its accuracy is not known"]
    lines = [
        f"[bold]{record['accuracy']:.1f} %[/] right on {record['tests_old'] + record['tests_new']} held-out images"
    ]
    if record["tests_old"] and record["tests_new"]:
        before = "" if record["gamma"] is None else f" ({record['accuracy_uncorrected']:.1f} % before the correction)"
        lines[0] += before
        lines += [
            f"  old classes {percent(record['accuracy_old'])}, new ones {percent(record['accuracy_new'])}"
            + ("" if record["gamma"] is None else f", γ {record['gamma']:.3f}"),
            f"  mistakes: {record['e_on']} old images taken for new classes, {record['e_oo']} for other old ones; "
            f"{record['e_no']} new images taken for old classes, {record['e_n'] - record['e_no']} for other new ones",
        ]
    if record.get("warning"):
        lines.append(f"[yellow]mind[/]: {escape(record['warning'])}")
        lines.append("  more exemplars (--memory) help, or another --method; `equipoise undo` takes the step back")
    return lines


def history_rows(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row a step: accuracy of its classes when they were learned, and now."""
    now = {entry["class"]: entry for entry in steps[-1]["per_class"]}
    rows = []
    for record in steps:
        mine = [now[name] for name in (*record["classes"], *record["extended"]) if name in now]
        tests = sum(entry["of"] for entry in mine)
        rows.append({
            "step": record["step"],
            "when": record["when"],
            "kind": record["kind"],
            "classes": record["classes"],
            "extended": record["extended"],
            "images": record.get("images"),
            "accuracy_then": record["accuracy_new"],
            "accuracy_now": 100 * sum(entry["right"] for entry in mine) / tests if tests else None,
            "accuracy_of_all": record["accuracy"],
            "gamma": record.get("gamma"),
            "warning": record.get("warning"),
        })  # fmt: skip
    return rows


def history_table(steps: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("step", "when", "what", "images", "then", "now", "all", "γ"):
        text = heading in ("when", "what")
        least = 16 if heading == "what" else None
        table.add_column(heading, justify="left" if text else "right", no_wrap=heading != "what", min_width=least)
    for record, row in zip(steps, history_rows(steps), strict=True):
        table.add_row(
            str(row["step"]),
            row["when"][:10],
            escape(what(record)),
            "–" if row["images"] is None else f"{row['images']:,}",
            percent(row["accuracy_then"]),
            percent(row["accuracy_now"]),
            percent(row["accuracy_of_all"]),
            "–" if row["gamma"] is None else f"{row['gamma']:.3f}",
        )
    return table


def inspection(place: ModelDir) -> dict[str, Any]:
    """All facts about a model in its directory."""
    return place.steadily(lambda config: _inspection(place, config))


def _inspection(place: ModelDir, config: dict[str, Any]) -> dict[str, Any]:
    model, images = place.load_version(config), place.images_of(config)
    norms = model.method.norms(1)
    parts = {kind: size_of(place.path / kind) for kind in (*KINDS, "versions")}
    return {
        "directory": str(place.path),
        "method": model.settings.method,
        "settings": model.settings.fields,
        "backbone": model.settings.net.backbone,
        "parameters": sum(p.numel() for p in model.method.parameters()),
        "image": list(model.shape),
        "steps": len(model.steps),
        "versions": len(place.chain_of(config)),
        "memory": model.settings.memory["size"],
        "exemplars": sum(map(len, images["memory"])),
        "held_out": sum(map(len, images["holdout"])),
        "bytes": parts | {"all": size_of(place.path)},
        "accuracy": model.steps[-1]["accuracy"],
        "classes": [
            {
                "class": name,
                "exemplars": len(images["memory"][place_]),
                "held_out": len(images["holdout"][place_]),
                "right": next((e["right"] for e in model.steps[-1]["per_class"] if e["class"] == name), None),
                "norm": None if norms is None else round(norms[place_].item(), 4),
            }
            for place_, name in enumerate(model.classes)
        ],
    }


def size_of(folder: Path) -> int:
    """Bytes on disk; a file with two names counts once."""
    sizes = {}
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # a writer may be at work
                status = (Path(where) / name).stat()
                sizes[status.st_ino] = status.st_size
    return sum(sizes.values())


def inspection_table(facts: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("class", "exemplars", "held out", "right", "norm of weights"):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    for entry in facts["classes"]:
        right = "–" if not entry["held_out"] or entry["right"] is None else str(entry["right"])
        norm = "–" if entry["norm"] is None else f"{entry['norm']:.2f}"
        table.add_row(escape(str(entry["class"])), str(entry["exemplars"]), str(entry["held_out"]), right, norm)
    return table


def inspection_lines(facts: Mapping[str, Any]) -> list[str]:
    channels, height, width = facts["image"]
    taken = f"{channels} features" if (height, width) == (1, 1) else f"{height} × {width} pixels"
    size = {name: f"{count / 2**20:,.1f} MB" for name, count in facts["bytes"].items()}
    return [
        f"[bold]{escape(facts['directory'])}[/]: {len(facts['classes'])} classes learned in {facts['steps']} steps",
        f"  {facts['method']}, {facts['backbone']} with {facts['parameters']:,} parameters, {taken}",
        f"  {facts['exemplars']:,} exemplars (at most {facts['memory']:,}), {facts['held_out']:,} images held out, "
        f"{facts['versions']} versions",
        f"  {size['all']} on disk: versions {size['versions']}, memory {size['memory']}, holdout {size['holdout']}",
    ]


def evaluation_table(facts: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("class", "images", "right", ""):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    for entry in facts["classes"]:
        share = percent(100 * entry["right"] / entry["images"])
        table.add_row(escape(str(entry["class"])), str(entry["images"]), str(entry["right"]), share)
    return table


def console() -> Console:
    return Console(highlight=False)
