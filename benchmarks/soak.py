"""Many steps in one process: time, memory and open files of each step, and their slope.

Usage: python benchmarks/soak.py DIRECTORY [--steps 1000] [--methods ridge,wa] [--json FILE]

Features are random (a centre per class, and noise), because only their number matters here. Each step loads the model
from disk, learns, and saves it, as `equipoise learn` does after it has read the photos. With `--photos`, rows are
stored as those of EfficientNet-Lite0 are; a million of them:

    python benchmarks/soak.py DIRECTORY --photos --methods ridge --steps 10 --classes 1000 --images 1000
"""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from timing import machine, peak_mb, resident_mb, seconds

from equipoise.app.learn import photo_augment
from equipoise.app.model import Model
from equipoise.app.model_dir import ModelDir
from equipoise.app.step_plan import NewImages, prepare
from equipoise.data.images import FeatureStore, Images
from equipoise.engine.learner import ROWS_AS_THEY_ARE
from equipoise.engine.recipes import resolve

SLOPES = {"seconds": "s", "resident_mb": "MB", "handles": "", "threads": ""}
"""Figures whose slope is computed, with their units."""


@dataclass(frozen=True)
class Load:
    """What the model has to learn."""

    images: int
    """Images per class."""
    width: int
    """Features per image, unless they are those of photos."""
    photos: bool
    memory: int
    """Exemplars of methods that are trained."""
    epochs: int
    """Epochs per step of methods that are trained."""

    def new_model(self, method: str) -> Model:
        """Return a model that knows nothing yet."""
        if self.photos:
            settings = resolve("folder", method, "photos", 0, {})
            shape = (3, settings.data["size"], settings.data["size"])
            return Model.create(settings, shape, photo_augment(shape, settings))
        model = Model.create(resolve("folder", method, "features", 0, {}), (self.width, 1, 1), ROWS_AS_THEY_ARE)
        if model.trains:
            model.change_memory({"size": self.memory})
        return model

    def draw(self, model: Model, label: int) -> Images:
        """Return features of one class: not negative, as those of photos are."""
        random = torch.Generator().manual_seed(label)
        width = model.stored_shape[0]
        noise = 0.7 * torch.randn(self.images, width, generator=random)
        rows = (torch.rand(width, generator=random) + noise).clamp(min=0)
        if not self.photos:
            return model.new_images(rows[:, :, None, None])
        names = [f"{label * 2**40 + number:032x}" for number in range(self.images)]
        labels = torch.zeros(self.images, dtype=torch.long)
        return Images(FeatureStore(rows.half(), ids=names), torch.arange(self.images), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--methods", default="ridge,wa")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--classes", type=int, help="in all (default: one per step)")
    parser.add_argument("--images", type=int, default=10, help="per class")
    parser.add_argument("--width", type=int, default=64, help="features per image")
    parser.add_argument("--memory", type=int, default=1000, help="exemplars, for methods that are trained")
    parser.add_argument("--epochs", type=int, default=5, help="per step, for methods that are trained")
    parser.add_argument("--photos", action="store_true", help="rows as those of EfficientNet-Lite0")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    load = Load(options.images, options.width, options.photos, options.memory, options.epochs)
    per_step = (options.classes or options.steps) // options.steps
    found = {}
    for method in options.methods.split(","):
        rows = soak(ModelDir(options.directory / method), method, load, options.steps, per_step)
        found[method] = {"slopes": slopes(rows), "slopes_second_half": slopes(rows[len(rows) // 2 :]), "steps": rows}
        print(table(method, rows))
        if options.json:
            facts = {"machine": machine(), "load": asdict(load), "methods": found}
            options.json.write_text(json.dumps(facts, indent=1) + "\n")


def soak(place: ModelDir, method: str, load: Load, steps: int, per_step: int) -> list[dict[str, float]]:
    """Learn step after step; return the figures of each. Ctrl-C ends it, and what was measured stays."""
    rows: list[dict[str, float]] = []
    with suppress(KeyboardInterrupt):
        for step in range(steps):
            rows.append(learn_step(place, method, load, range(step * per_step, (step + 1) * per_step)))
            if (step + 1) % max(1, steps // 20) == 0:
                print(json.dumps({"method": method, "step": step + 1} | rows[-1]), flush=True)
    return rows


def learn_step(place: ModelDir, method: str, load: Load, classes: range) -> dict[str, float]:
    """Teach the model in a directory some classes; return what that took, and what is in use afterwards."""
    loaded: list[Model] = []
    loading = seconds(lambda: loaded.append(place.load(images=True) if place.exists else load.new_model(method)))
    model = loaded.pop()
    new: NewImages = {f"class {c:06d}": load.draw(model, c) for c in classes}
    plan = prepare(model, new, None, extend=False, train={"epochs": load.epochs} if model.trains else {})
    learning = seconds(plan.learn)
    with place.writing():
        saving = seconds(lambda: place.commit(model))
    result = model.steps[-1]
    return {
        "classes": len(model.classes),
        "seconds": round(loading + learning + saving, 3),
        "loading": round(loading, 3),
        "learning": round(learning, 3),
        "saving": round(saving, 3),
        "resident_mb": round(resident_mb(), 1),
        "peak_mb": round(peak_mb(), 1),
        "handles": count("fd"),
        "threads": count("task"),
        "disk_mb": round(disk_bytes(place.path) / 2**20, 2),
        "accuracy": round(result.accuracy or 0.0, 2),
    }


def count(what: str) -> int:
    """Return how many open files ("fd") or threads ("task") this process has."""
    return sum(1 for _ in Path(f"/proc/self/{what}").iterdir())


def disk_bytes(place: Path) -> int:
    """Return what all files of a directory take."""
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file() and not file.is_symlink())


def slopes(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return the growth of each figure per 100 steps, by least squares."""
    if len(rows) < 2:
        return {}
    steps = np.arange(len(rows))
    return {name: round(100 * float(np.polyfit(steps, [row[name] for row in rows], 1)[0]), 4) for name in SLOPES}


def table(method: str, rows: list[dict[str, float]]) -> str:
    """Return a table of some steps, and the slopes."""
    shown = sorted({0, *(max(0, len(rows) * part // 10 - 1) for part in (1, 2, 3, 5, 7, 10))})
    names = [name for name in rows[0] if name != "classes"]
    lines = [f"{method}, {len(rows)} steps", f"{'classes':>8}" + "".join(f"{name:>12}" for name in names)]
    lines += [f"{rows[i]['classes']:8}" + "".join(f"{rows[i][name]:12,}" for name in names) for i in shown]
    for part, some in (("all steps", rows), ("second half", rows[len(rows) // 2 :])):
        growth = ", ".join(f"{name} {value:+g} {SLOPES[name]}".strip() for name, value in slopes(some).items())
        lines.append(f"per 100 steps ({part}): {growth}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
