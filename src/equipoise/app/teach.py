"""One step of a model: classes arrive, are learned beside the old ones, and the model is judged on held-out images."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from equipoise.app.model import Label, Model, collect, make_method
from equipoise.data.images import Images, join
from equipoise.data.stream import Step
from equipoise.errors import UsageError
from equipoise.learn.journal import Journal, Silent, Watcher
from equipoise.learn.schedule import Schedule
from equipoise.learn.trainer import Fit
from equipoise.seeding import generator
from equipoise.settings import build
from equipoise.study.evaluate import Predictions, accuracy, confusion, error_split
from equipoise.study.lesson import learn_and_judge, try_out
from equipoise.version import __version__

Arrival = Mapping[Label, Images]
"""Images of each class that arrives."""


def set_aside(arrival: Arrival, share: float, seed: int) -> tuple[dict[Label, Images], dict[Label, Images]]:
    """Cut each class in two: images to learn from, and ``share`` of them to be judged by.

    A class of three images or fewer gives none away.
    """
    if not isinstance(share, int | float) or not 0 <= share < 1:
        raise UsageError(f"holdout is {share!r}, but it is a share, from 0 to below 1")
    train, held = {}, {}
    for name, images in arrival.items():
        count = min(max(1, round(share * len(images))), len(images) - 1) if share and len(images) > 3 else 0
        order = torch.randperm(len(images), generator=generator(seed, "holdout", str(name)))
        held[name], train[name] = images.select(order[:count].sort().values), images.select(order[count:].sort().values)
    return train, held


def auto_budget(images: int, features: bool) -> dict[str, int]:
    """Epochs and batch size for a number of training images: each epoch counted, some 50,000 of them.

    But at least 20 epochs and at most 120. Rows of features need less: 16,000, in 5 to 100 epochs.
    """
    seen, least, most = (16_000, 5, 100) if features else (50_000, 20, 120)
    return {"epochs": min(max(round(seen / max(images, 1)), least), most), "batch_size": 64 if images >= 2000 else 32}


@dataclass
class Teaching:
    """A step that is about to be learned. ``model`` is ready for it: extended classes are dropped, to come anew."""

    model: Model
    step: Step
    images: Images
    """All that will be trained on."""
    held: int
    """Images set aside in this step."""
    extended: list[Label]

    def fit(self) -> Fit:
        model = self.model
        settings = model.settings
        key = (settings.seed, "step", self.step.index)
        return Fit(
            model.method, self.step, self.images, model.memory, settings.train, model.augment, settings.runtime, key
        )

    @property
    def load(self) -> int:
        """Images trained on, every epoch and every showing of an exemplar counted."""
        schedule = self.model.settings.train.for_step(self.step.index)
        return schedule.epochs * len(self.fit().shown(self.images, schedule))

    @property
    def epochs(self) -> int:
        return self.model.settings.train.for_step(self.step.index).epochs

    def estimate(self) -> float:
        """Seconds that training will take, from a short try."""
        trial = replace(self, model=self.model.copy())
        rate = try_out(trial.fit(), self.images)
        return 0.0 if rate is None else self.load / rate

    def learn(self, watcher: Watcher | None = None, journal: Journal | None = None) -> dict[str, Any]:
        """Learn the step; returns, and adds to the model's, its record."""
        model, fit = self.model, self.fit()
        fit.watcher, fit.journal = watcher or Silent(), journal or Silent()
        lesson = learn_and_judge(fit, model.holdout)
        new = model.classes[self.step.old :]
        record = {
            "step": len(model.steps) + 1,
            "kind": "learn",
            "when": now(),
            "classes": [name for name in new if name not in self.extended],
            "extended": self.extended,
            "images": len(self.step.images),
            "held_out": self.held,
            "exemplars": len(model.memory),
            "epochs": self.epochs,
            "seconds": round(fit.seconds, 1),
            "gamma": lesson.facts.get("gamma"),
            **verdict(lesson.after, self.step.old, model.classes),
            "accuracy_uncorrected": share_right(lesson.before),
            "equipoise": __version__,
        }
        record["warning"] = unfairness(record)
        model.steps.append(record)
        return record


def prepare(model: Model, arrival: Arrival, share: float, extend: bool, train: Mapping[str, Any]) -> Teaching:
    """Make ready to learn ``arrival``. Changes ``model``: hand in a copy.

    Epochs and batch size follow from the number of images, the rest is as in the step before (or the recipe), and
    ``train`` has the last word. A known class that gets more images is learned anew, from its exemplars and the new
    ones together: so it is one of the step's new classes for the method too, and is aligned with the old ones.
    """
    new, held = set_aside(arrival, share, model.settings.seed)
    extended = [name for name in model.classes if name in arrival]
    if extended and not extend:
        raise already_known(model, extended[0])
    known = model.known()
    for name in extended:
        exemplars, tests = known[name]
        if len(tests):  # what comes now may have been trained on before, so nothing of it can judge
            new[name], held[name] = arrival[name], tests
        new[name] = join([new[name], exemplars])
    held_now = sum(len(held[name]) for name in new if name not in extended)
    if extended:
        drop_for_relearning(model, extended)
    empty = next((name for name, images in new.items() if not len(images)), None)
    if empty is not None:
        raise UsageError(f"class '{empty}' has no images to learn from: add some, or leave the class out")
    old = len(model.classes)
    names = [*(name for name in new if name not in extended), *extended]
    model.classes += names
    step = Step(len(model.method.steps) + 1, old, len(names), _numbered({n: new[n] for n in names}, old, model))
    model.holdout = join([model.holdout, _numbered({n: held[n] for n in names}, old, model)])
    if model.method.rehearses == "memory":
        _check_memory(model, old)
    rehearsed = model.memory.images() if model.method.rehearses == "memory" else None
    images = step.images if rehearsed is None else join([step.images, rehearsed])
    budget = auto_budget(len(images), model.shape[1:] == (1, 1)) | dict(train)
    model.settings = replace(model.settings, train=build(Schedule, asdict(model.settings.train) | budget, "train"))
    return Teaching(model, step, images, held_now, extended)


def already_known(model: Model, name: Label) -> UsageError:
    first = next((r["step"] for r in model.steps if name in [*r["classes"], *r.get("extended", [])]), None)
    when = f" (learned in step {first})" if first else ""
    return UsageError(f"class '{name}' is known already{when}: pass --extend to add images to it, or leave it out")


def drop_for_relearning(model: Model, extended: list[Label]) -> None:
    """Make room for classes to be learned anew; where that is all of them, what the backbone has learned stays."""
    if len(extended) < len(model.classes):
        model.drop(extended)
        return
    fresh = make_method(model.settings, model.shape)
    if hasattr(model.method, "backbone"):
        fresh.backbone.load_state_dict(model.method.backbone.state_dict())
    model.method, model.classes = fresh, []
    model.memory.kept, model.holdout = {}, model.holdout.select(torch.arange(0))


def _numbered(images: Arrival, start: int, model: Model) -> Images:
    together = collect(images, model.shape)
    return replace(together, labels=together.labels + start)


def _check_memory(model: Model, old: int) -> None:
    model.memory.check(len(model.classes))
    missing = [name for place, name in enumerate(model.classes[:old]) if place not in model.memory.kept]
    if missing and model.memory.size:
        raise UsageError(
            f"there are no exemplars of '{missing[0]}' here, without which it would be forgotten: "
            "learn where the memory is (a copy made with --no-memory has none)"
        )


# ---- what the held-out images tell


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def share_right(said: Predictions) -> float | None:
    return accuracy(said.top1 == said.labels) if len(said.labels) else None


def verdict(said: Predictions, old: int, classes: list[Label]) -> dict[str, Any]:
    """How good a model is on its held-out images, old classes and new ones apart. Accuracies are in percent."""
    right, is_old = said.top1 == said.labels, said.labels < old
    counts = confusion(said.labels, said.top1, len(classes))
    return {
        "accuracy": share_right(said),
        "accuracy_old": accuracy(right[is_old]) if is_old.any() else None,
        "accuracy_new": accuracy(right[~is_old]) if (~is_old).any() else None,
        "tests_old": int(is_old.sum()),
        "tests_new": int((~is_old).sum()),
        **error_split(said.labels, said.top1, old),
        "e_no": int((~is_old & (said.top1 < old)).sum()),
        "per_class": [
            {"class": name, "right": int(counts[c, c]), "of": int(counts[c].sum())} for c, name in enumerate(classes)
        ],
    }


def unfairness(record: Mapping[str, Any]) -> str | None:
    """A sentence where old and new classes are not treated alike.

    A fair model takes as many old images for new classes as new ones for old. McNemar's test says whether the
    difference could be chance (two deviations), and less than one held-out image in twenty is not worth a word.
    """
    to_new, to_old = record["e_on"], record["e_no"]
    tests = record["tests_old"] + record["tests_new"]
    gap = to_new - to_old
    if not record["tests_old"] or abs(gap) <= 2 * math.sqrt(to_new + to_old) or abs(gap) < 0.05 * tests:
        return None
    favoured, others = ("new", "old") if gap > 0 else ("old", "new")
    said, true = record["tests_new"] + gap, record["tests_new"]
    if favoured == "old":
        said, true = tests - said, tests - true
    return (
        f"the model favours {favoured} classes: it names them for {said / tests:.0%} of the held-out images, "
        f"and {true / tests:.0%} are theirs ({max(to_new, to_old)} {others} images taken for {favoured} ones, "
        f"{min(to_new, to_old)} the other way)"
    )
