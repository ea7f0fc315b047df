"""A method with its memory: the part that experiments and models share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from equipoise.core.extras import available
from equipoise.core.seeding import preserve_rng, seed_everything
from equipoise.data.augment import Augment
from equipoise.data.images import Images, join
from equipoise.data.memory import Memory
from equipoise.data.stream import Step
from equipoise.engine.results import Label
from equipoise.engine.settings import Settings
from equipoise.engine.step import StepOutcome, measure_throughput, train_and_evaluate
from equipoise.learn.backbones import Architecture
from equipoise.learn.backbones.base import Backbone
from equipoise.learn.extractor import ENGINES, Extractor
from equipoise.learn.fit import Fit
from equipoise.learn.loop import epoch_rows
from equipoise.learn.method import Method
from equipoise.learn.stage import StageStore, TrainListener
from equipoise.methods import registry

ROWS_AS_THEY_ARE = Augment(mean=(0.0,), std=(1.0,))
"""Augmentation of feature rows, for a learner with a frozen backbone: none."""
Shape = tuple[int, int, int]
"""Channels, height and width of images."""


@dataclass
class Learner:
    """Learns steps, one after another."""

    settings: Settings
    augment: Augment
    method: Method
    memory: Memory
    extractor: Extractor | None
    """The frozen backbone, if there is one: the method learns rows of its features."""

    @staticmethod
    def create(settings: Settings, shape: Shape, augment: Augment) -> Learner:
        """Return a learner that has learned nothing yet; raise an error for settings that cannot work."""
        augment.check(shape)
        memory = settings.make_memory()
        extractor = make_extractor(settings, shape, augment) if settings.net.frozen else None
        if extractor is not None:
            shape, augment = extractor.shape, ROWS_AS_THEY_ARE
        return Learner(settings, augment, make_method(settings, shape, memory), memory, extractor)

    def training_images(self, step: Step, everything: Images | None = None) -> Images:
        """Return the images to train a step on: its own and rehearsal; joint training needs ``everything`` old."""
        old = {"memory": self.memory.images(), "all": everything}.get(self.method.rehearsal)
        return step.images if old is None else join([step.images, old])

    def fit(
        self, step: Step, images: Images, listener: TrainListener | None = None, store: StageStore | None = None
    ) -> Fit:
        """Return the ``Fit`` of a step."""
        train, runtime, key = self.settings.train, self.settings.runtime, (self.settings.seed, "step", step.index)
        return Fit(self.method, step, images, self.memory, train, self.augment, runtime, key, listener, store)

    def learn(
        self,
        step: Step,
        images: Images,
        tests: Images,
        names: Sequence[Label],
        listener: TrainListener | None = None,
        store: StageStore | None = None,
    ) -> StepOutcome:
        """Learn a step and evaluate it on ``tests``; ``names`` are all classes seen."""
        return train_and_evaluate(self.fit(step, images, listener, store), tests, names)

    def workload(self, step: Step, images: Images) -> int:
        """Return the number of images that the main stage will train on, over all epochs."""
        schedule = self.settings.train.for_step(step.index)
        return schedule.epochs * len(epoch_rows(self.method, step, images, schedule))

    def throughput(self, step: Step, images: Images) -> float | None:
        """Estimate training images per second with a short trial (modifies the method)."""
        return measure_throughput(self.fit(step, images), images)


def make_extractor(
    settings: Settings, shape: Shape, augment: Augment, read: Callable[[Backbone], Mapping[str, Tensor]] | None = None
) -> Extractor:
    """Return the frozen backbone of a learner; ``read`` returns the weights of a saved one for its network.

    A saved one is computed by torch if its engine is not installed here; see ``Extractor.engine``.
    """
    with preserve_rng():
        seed_everything(settings.seed, "build")
        net = settings.architecture(shape, pretrained=read is None)()
    if read is not None:
        net.load_state_dict(read(net))
    engine = settings.net.engine
    if read is not None and not all(map(available, ENGINES[engine])):
        engine = "torch"
    return Extractor(net, augment, settings.runtime, engine)


def make_method(settings: Settings, shape: Shape, memory: Memory, pretrained: bool = True) -> Method:
    """Return a new method with its networks; pass ``pretrained=False`` if a saved state will be loaded."""
    method = registry.make(settings.method, settings.fields)
    method.check(memory)
    architecture = settings.architecture(shape, pretrained)
    if settings.net.frozen:
        architecture = Architecture("identity", shape, frozen=True)
    smallest = min(settings.train.sizes)
    with preserve_rng():
        if smallest < 1:  # if the images would be too small, fail now, not in mid-training
            replace(architecture.at(smallest), weights=None)()
        seed_everything(settings.seed, "build")
        method.build(architecture)
    settings.runtime.place(method)
    return method
