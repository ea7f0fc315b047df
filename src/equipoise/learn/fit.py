"""What a method may use while it learns a step: training stages, passes over images, and the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equipoise.core import distributed
from equipoise.core.seeding import Key, generator
from equipoise.data.augment import Augment
from equipoise.data.images import Images, join
from equipoise.data.memory import Memory
from equipoise.data.stream import Step
from equipoise.errors import RunError
from equipoise.learn.backbones.base import disabled
from equipoise.learn.inference import InferencePass
from equipoise.learn.loop import MAIN, Loss, Stage, TrainingLoop
from equipoise.learn.method import Method
from equipoise.learn.runtime import Runtime
from equipoise.learn.schedule import Schedule
from equipoise.learn.stage import StageStore, TrainListener


@dataclass
class Fit:
    """One step of one method. ``begin`` and ``end`` receive it.

    Attributes
    ----------
    step
        The step: ``index`` (from 1), ``old`` and ``new`` classes, and the new classes' training ``images``.
    images
        What the main stage trains on: new images and rehearsal. ``begin`` may replace it; None skips the stage.
    memory
        The exemplars, as they were before this step until ``update_memory``.
    schedule
        The main stage's schedule, before ``for_step``.
    key
        The address of the step's random numbers: ``generator(*fit.key, "my draw")``.
    """

    method: Method
    step: Step
    images: Images | None
    memory: Memory
    schedule: Schedule
    augment: Augment
    runtime: Runtime
    key: Key
    listener: TrainListener | None = None
    store: StageStore | None = None

    def __post_init__(self) -> None:
        listener, store = self.listener or TrainListener(), self.store or StageStore()
        self.loop = TrainingLoop(self.method, self.step, self.augment, self.runtime, self.key, listener, store)
        self._memory_updated = self._memory_final = False

    def train(
        self,
        images: Images,
        loss: Loss | None = None,
        schedule: Schedule | None = None,
        parameters: Iterable[nn.Parameter] | None = None,
        name: str = MAIN,
        augment: bool = True,
        frozen: bool = False,
    ) -> None:
        """Train a stage, with progress, checkpoints and exact resume.

        Parameters
        ----------
        images
            What to train on.
        loss
            Mean loss of a batch (default: the method's ``loss``).
        schedule
            Epochs, optimizer and learning rate (default: the step's own).
        parameters
            What to train (default: all parameters that require gradients).
        name
            Shown in the progress.
        augment
            Augment the images.
        frozen
            Keep the network in evaluation mode, so that batch norms do not change.
        """
        if not frozen:
            self._memory_updated = self._memory_final  # herding depends on the features
        if parameters is None:
            parameters = (p for p in self.method.parameters() if p.requires_grad)
        schedule = (schedule or self.schedule).for_step(self.step.index)
        self.loop.run(Stage(images, loss or self.method.loss, schedule, list(parameters), name, augment, frozen))

    @property
    def keeps_all(self) -> bool:
        """Whether a method that solves in closed form may use all images seen so far."""
        return self.method.rehearsal == "kept" and self.memory.size == "all"

    @property
    def everything(self) -> Images | None:
        """All images seen so far, this step's included; None if they are not kept."""
        if not self.keeps_all:
            return None
        old = [kept for label, kept in sorted(self.memory.exemplars.items()) if label < self.step.old]
        return join([self.step.images, *old])

    # ---- passes over images

    def over(self, images: Images) -> InferencePass:
        """Return a pass over un-augmented images in evaluation mode."""
        return InferencePass(self.method, images, self.augment, self.runtime)

    def map(self, images: Images, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``function(x)`` for all images, in evaluation mode and without gradients.

        Parameters
        ----------
        images
            The images, read without augmentation.
        function
            Takes a batch of normalised images and returns one row per image.

        Returns
        -------
        Tensor
            One row per image, float32 on the CPU.
        """
        return self.over(images).map(function)

    def features(self, images: Images) -> Tensor:
        """Return the features of all images.

        Parameters
        ----------
        images
            The images, read without augmentation.

        Returns
        -------
        Tensor
            N × D, one row per image, float32 on the CPU.

        Raises
        ------
        RunError
            If all features are zero, because the network has died.
        """
        features = self.map(images, self.method.features)
        if not features.any():
            what = f"all features are zero in step {self.step.index}"
            remedy = f"lower train.lr (now {self.schedule.lr:g}) or train longer"
            raise distributed.report_once(RunError(f"{what}: {'check the images' if self.images is None else remedy}"))
        return features

    def accumulate(self, images: Images, statistic: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Sum a statistic over batches, as for a Gram matrix, without keeping all features.

        Parameters
        ----------
        images
            The images, read without augmentation.
        statistic
            Takes the features and labels of a batch.

        Returns
        -------
        Tensor
            The sum over all batches of all processes.
        """
        total: Tensor | None = None
        self.method.eval()
        with torch.no_grad():
            for _, x, labels in self.over(images).batches():
                value = statistic(self.method.features(x), self.runtime.move(labels))
                total = value if total is None else total + value
            if total is None:  # more processes than batches: add zeros of the right shape
                x, labels = self.augment.plain(self.runtime.hold(images), torch.arange(1))[:0], images.labels[:0]
                none = statistic(self.method.features(self.runtime.move(x)), self.runtime.move(labels))
                total = torch.zeros_like(none)
        return distributed.all_reduce_sum(total.contiguous())

    def sample(self, images: Images, count: int, batch: int = 32) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process's batches of random images, each image with a uniform random number.

        Parameters
        ----------
        images
            What to draw from, without replacement.
        count
            Number of images, over all processes.
        batch
            Images per batch.

        Yields
        ------
        tuple of Tensor
            Normalised images, and one number per image.
        """
        random = generator(*self.key, "sample")
        chosen = torch.randperm(len(images), generator=random)[:count]
        numbers = torch.rand(len(chosen), generator=random)
        pairs = list(zip(chosen.split(batch), numbers.split(batch), strict=True))
        held = self.runtime.hold(images)
        for where, draws in pairs[distributed.rank() :: distributed.world_size()]:
            yield self.runtime.move(self.augment.plain(held, where)), self.runtime.move(draws)

    # ---- exemplars

    def update_memory(self, images: Images | None = None, final: bool = False) -> Images | None:
        """Truncate the memory to the new quota and select this step's exemplars with the current features.

        Parameters
        ----------
        images
            What to select from (default: all images of the new classes).
        final
            Do not select again in this step, even if the network is trained further.

        Returns
        -------
        Images or None
            All exemplars, old classes included; None if there are none.
        """
        self._memory_final |= final
        if not self._memory_updated:
            self._memory_updated = True
            with self.selecting():
                self.memory.update(
                    self.step.images if images is None else images, self.step.seen, self.features, self.key
                )
        return self.memory.images()

    def select_balanced(self) -> Images | None:
        """Return the old classes' exemplars and as many images of each new class, selected in the same way.

        Returns
        -------
        Images or None
            None in the first step or without a memory. The memory itself does not change.
        """
        old = self.memory.images()
        quota = self.memory.quota(self.step.old)
        if not self.step.old or old is None or not quota:
            return None
        with self.selecting():
            new = self.memory.select(self.step.images, quota, self.features, self.key)
        return join([old, *new.values()])

    @contextmanager
    def selecting(self) -> Iterator[None]:
        """Time a selection of exemplars, and make it without test-time augmentation: one pass is enough."""
        with self.method.timer("herding"), disabled(self.method, "flip_tta"):
            yield
