"""A model of many images: time of each step, memory and disk. Usage: python benchmarks/soak.py DIRECTORY

Features are random (a centre per class, and noise), because only their number matters here. Each step loads the model
from disk, learns, and saves it, as `equipoise learn` does after it has read the photos.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from timing import peak_mb, seconds

from equipoise.app.learn import photo_augment
from equipoise.app.model import Model
from equipoise.app.model_dir import ModelDir
from equipoise.app.step_plan import NewImages, prepare
from equipoise.data.images import FeatureStore, Images
from equipoise.engine.recipes import resolve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--images", type=int, default=1000, help="per class")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--method", default="ridge")
    options = parser.parse_args()
    place = ModelDir(options.directory)
    per_step = options.classes // options.steps
    for step in range(options.steps):
        row = learn_step(place, options.method, range(step * per_step, (step + 1) * per_step), options.images)
        print(json.dumps({"images": (step + 1) * per_step * options.images} | row), flush=True)


def learn_step(place: ModelDir, method: str, classes: range, count: int) -> dict[str, float]:
    """Teach the model in a directory some classes; return what that took."""
    loaded: list[Model] = []
    loading = seconds(lambda: loaded.append(place.load(images=True) if place.exists else new_model(method)))
    model = loaded[0]
    new: NewImages = {f"class {c:06d}": draw(c, count, model.stored_shape[0]) for c in classes}
    plan = prepare(model, new, None, extend=False, train={})
    learning = seconds(plan.learn)
    with place.writing():
        saving = seconds(lambda: place.commit(model))
    disk = sum(file.stat().st_size for file in place.path.rglob("*") if file.is_file() and not file.is_symlink())
    result = model.steps[-1]
    return {
        "classes": len(model.classes),
        "loading": round(loading, 1),
        "learning": round(learning, 1),
        "saving": round(saving, 1),
        "peak_gb": round(peak_mb() / 1024, 2),
        "disk_gb": round(disk / 2**30, 3),
        "accuracy": round(result.accuracy or 0.0, 2),
    }


def new_model(method: str) -> Model:
    settings = resolve("folder", method, "photos", 0, {})
    shape = (3, settings.data["size"], settings.data["size"])
    return Model.create(settings, shape, photo_augment(shape, settings))


def draw(label: int, count: int, width: int) -> Images:
    """Return features of one class: not negative, as those of lite0 are."""
    random = torch.Generator().manual_seed(label)
    rows = (torch.rand(width, generator=random) + 0.7 * torch.randn(count, width, generator=random)).clamp(min=0)
    names = [f"{label * 2**40 + number:032x}" for number in range(count)]
    return Images(FeatureStore(rows.half(), ids=names), torch.arange(count), torch.zeros(count, dtype=torch.long))


if __name__ == "__main__":
    main()
