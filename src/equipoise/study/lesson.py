"""One step learned and judged: what experiments and models people keep have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise import ranks
from equipoise.data.images import Images
from equipoise.errors import RunError
from equipoise.learn.method import Method
from equipoise.learn.nets import Backbone
from equipoise.learn.trainer import Fit, learn_step
from equipoise.study.evaluate import Predictions, predict_all


@dataclass(frozen=True)
class Lesson:
    """What a step left behind, beside the method itself."""

    facts: dict[str, float]
    """What the method's ``end`` told."""
    before: Predictions
    """What it said of the test images before the correction."""
    after: Predictions
    corrected: bool
    """Whether there was a correction, so that before and after may differ."""
    norms_before: dict[str, Tensor]
    """Norms of the head's rows as training left them."""


def learn_and_judge(fit: Fit, tests: Images) -> Lesson:
    """Learn the step of ``fit``, and ask the model about ``tests`` before and after its correction."""
    method, step = fit.method, fit.step
    before: list[Predictions] = []
    norms: dict[str, Tensor] = {}
    known = KnownFeatures()

    def judge() -> None:
        if method.corrects and step.old:
            with known.asked_by(method):
                before.append(ask(fit, tests))
        norms.update(head_norms_of(method))

    facts = learn_step(fit, judge)
    with fit.clock("evaluation"), known.asked_by(method) if before else nullcontext():
        after = ask(fit, tests)
    return Lesson(facts, before[0] if before else after, after, bool(before), norms)


class KnownFeatures(Backbone):
    """A backbone asked the same questions in the same order, which answers from memory for as long as it is unchanged.

    Most corrections leave the network alone and change what follows it: then judging it before and after is one pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[tuple[Tensor, Tensor]] = []
        """A few pixels of each batch, to know it again, and its features."""
        self.state: list[Tensor] = []

    @contextmanager
    def asked_by(self, method: Method) -> Iterator[None]:
        """While this lasts, the method's features come from here, unless it has several backbones."""
        if not hasattr(method, "backbone"):
            yield
            return
        self.backbone, method.backbone = method.backbone, self
        self.width = self.backbone.width
        state = [value.clone() for value in self.backbone.state_dict().values()]
        if not (self.state and all(map(torch.equal, self.state, state))):
            self.answers.clear()
        self.state, self.place = state, 0
        try:
            yield
        finally:
            method.backbone = self.backbone

    def maps(self, x: Tensor) -> list[Tensor]:
        return self.backbone.maps(x)

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.flatten(1)[:, ::61].clone()
        if self.place == len(self.answers) or not torch.equal(self.answers[self.place][0], pixels):
            del self.answers[self.place :]  # asked something else than the last time
            self.answers.append((pixels, self.backbone(x)))
        self.place += 1
        return self.answers[self.place - 1][1]


def ask(fit: Fit, tests: Images) -> Predictions:
    """What the model says of ``tests``; a network that says the same of all has died, and that is an error."""
    said = predict_all(fit.method, tests, fit.augment, fit.runtime)
    if fit.step.seen > 1 and len(said.labels) > 1 and said.all_alike:
        why = f"every test image gets the same scores after step {fit.step.index}: the network has died"
        cure = " or set method.clip=false" if getattr(fit.method, "clip", False) else ""
        raise ranks.everybodys(RunError(f"{why}, so lower train.lr (now {fit.schedule.lr:g}){cure}"))
    return said


def head_norms_of(method: Method) -> dict[str, Tensor]:
    """Norms of the head's rows, one a class."""
    found = {f"norms_{norm}": method.norms(norm) for norm in (1, 2)}
    return {name: norms for name, norms in found.items() if norms is not None}


def try_out(fit: Fit, images: Images) -> float | None:
    """Images a second, from a short try on this machine; None for a step that trains nothing. Spoils the method."""
    schedule = fit.schedule.for_step(fit.step.index)
    batch = schedule.batch_size
    fit.schedule = schedule.further(epochs=1, shape="constant", milestones=())
    few, more = (images.select(torch.arange(min(len(images), count * batch))) for count in (2, 8))
    fit.images = few
    fit.method.begin(fit.step, fit)
    if fit.images is None:
        return None
    fit(few)  # the first batches warm up
    began, seen = fit.seconds, fit.images_seen
    fit(more)
    return (fit.images_seen - seen) / (fit.seconds - began) / schedule.pixels
