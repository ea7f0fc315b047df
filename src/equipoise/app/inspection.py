"""Facts about a model: classes, memory, norms, size on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rich.markup import escape
from rich.table import Table

from equipoise.app.card import counted
from equipoise.app.console import class_table
from equipoise.app.model_dir import LINKED, ModelDir
from equipoise.app.model_files import KINDS, ModelConfig
from equipoise.core.open_dir import printable
from equipoise.errors import RunError


def inspect_model(place: ModelDir) -> dict[str, Any]:
    """Return all facts about the model in a directory."""
    return place.consistently(lambda config: _inspect(place, config))


def _inspect(place: ModelDir, config: ModelConfig) -> dict[str, Any]:
    model, images = place.load_version(config), place.images_of(config)
    norms, last = model.method.weight_norms(1), model.steps[-1]
    results = {result.name: result for result in last.per_class}
    return {
        "directory": str(place.path),
        "method": model.settings.method,
        "fields": model.settings.fields,
        "backbone": model.settings.net.backbone,
        "frozen": model.extractor is not None,
        "parameters": sum(p.numel() for p in model.method.parameters()),
        "shape": list(model.shape),
        "steps": len(model.steps),
        "versions": len(place.history_of(config)),
        "memory": model.settings.memory["size"],
        "exemplars": images.count("memory"),
        "held_out": images.count("holdout"),
        "bytes": bytes_on_disk(place),
        "accuracy": last.accuracy,
        "per_class": [
            {
                "name": name,
                "exemplars": images.counts("memory")[c],
                "held_out": images.counts("holdout")[c],
                "correct": results[name].correct if name in results else None,
                "total": results[name].total if name in results else None,
                "norm": None if norms is None else round(norms[c].item(), 4),
            }
            for c, name in enumerate(model.classes)
        ],
    }


def bytes_on_disk(place: ModelDir) -> dict[str, int]:
    """Return the size of each folder and of everything; the links at the top do not count."""
    linked = LINKED if place.directory.is_dir("versions") else ()
    sizes: Counter[str] = Counter()
    for entry in place.directory.walk():
        if entry.kind == "file" and entry.name not in linked:
            with suppress(RunError):  # a writer deleted it meanwhile
                sizes[entry.name.partition("/")[0]] += place.directory.size(entry.name)
    return {name: sizes[name] for name in (*KINDS, "versions")} | {"total": sizes.total()}


def inspection_table(facts: Mapping[str, Any]) -> Table:
    """Return the table of classes."""
    table = class_table("exemplars", "held out", "correct", "weight norm")
    for entry in facts["per_class"]:
        correct = "–" if not entry["total"] else f"{entry['correct']} of {entry['total']}"
        norm = "–" if entry["norm"] is None else f"{entry['norm']:.2f}"
        name = escape(printable(str(entry["name"])))
        table.add_row(name, str(entry["exemplars"]), str(entry["held_out"]), correct, norm)
    return table


def inspection_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return the summary."""
    channels, height, width = facts["shape"]
    takes = f"{channels} features" if (height, width) == (1, 1) else f"{height} × {width} pixels"
    size = {name: f"{count / 2**20:,.1f} MB" for name, count in facts["bytes"].items()}
    most = facts["memory"]
    what = "parameters in the head" if facts["frozen"] else "parameters"
    kept = "" if most == "all" else f" (at most {most:,})"
    return [
        f"[bold]{escape(facts['directory'])}[/]: {counted(len(facts['per_class']), 'class')} after "
        f"{counted(facts['steps'], 'step')}",
        f"  {facts['method']}, {facts['backbone']}, {facts['parameters']:,} {what}, {takes}",
        f"  {counted(facts['exemplars'], 'kept image' if most == 'all' else 'exemplar')}{kept}, "
        f"{counted(facts['held_out'], 'held-out image')}, {counted(facts['versions'], 'version')}",
        f"  {size['total']} on disk: versions {size['versions']}, memory {size['memory']}, holdout {size['holdout']}",
    ]
