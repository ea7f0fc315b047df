"""What a method is: a dataclass of hyper-parameters that is also the network it trains."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.core.ranges import check_values
from equipoise.core.seeding import preserve_rng
from equipoise.data.memory import Memory
from equipoise.data.stream import Step
from equipoise.errors import UsageError
from equipoise.learn.align import head_norms
from equipoise.learn.backbones import Architecture
from equipoise.learn.backbones.base import backbones_of
from equipoise.learn.head import Head
from equipoise.learn.host_values import HostValues
from equipoise.learn.saved_state import match_state, upgrade_state
from equipoise.learn.timer import Timer

if TYPE_CHECKING:  # fit.py needs this module
    from equipoise.learn.fit import Fit

T = TypeVar("T")


@dataclass(eq=False)
class Method(nn.Module):
    """Plain training with cross-entropy. Subclasses override the hooks in which they differ.

    Dataclass fields are hyper-parameters. Everything that is learned is a parameter, buffer or child module, so that
    ``state_dict()`` is complete.
    """

    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Names of the method, each with the field values it stands for: ``{"shrink": {}}``."""
    paper = ""
    """Authors, title, venue and year."""
    stores = ""
    """What is stored besides one network and the memory, in words."""
    rehearsal = "memory"
    """Old images to train on: "memory" (the exemplars), "all" (joint training), "none", or "kept": nothing is
    trained, and images are kept only where the memory keeps all of them."""
    leaves_one_out = False
    """Where the memory keeps all images, ``end`` sets ``loo_logits``, the logits of images that are left out."""
    uses_teacher = False
    """Keep the previous step's model, frozen, while a step is trained."""
    corrects = False
    """``end`` changes predictions, so the model is also evaluated before it."""
    final_relu = True
    """The backbone's features end in a ReLU."""
    reported_norm = 1
    """The weight norm that results report, 1 or 2."""
    per_class: ClassVar[tuple[str, ...]] = ()
    """Names of buffers with one row per class, for ``keep_classes``; one may be None or empty at times."""
    has_linear_head = True
    """Each class has one row of weights, and may have a bias."""
    bias: bool = False
    """Give the head a bias."""

    def __post_init__(self) -> None:
        super().__init__()
        self.teacher: Any = None  # a snapshot of the same class
        self.timer = Timer()
        self.loo_logits: Tensor | None = None  # leave-one-out logits …
        self.loo_rows: Tensor | None = None  # … of these images of ``fit.everything``
        self.sizes: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.long))
        self._steps = HostValues(Tensor.tolist)
        check_values(self, "method")
        if self.bias and not self.has_linear_head:
            raise UsageError(f"{next(iter(self.variants))} has no linear head for a bias: set method.bias=false")

    # ---- hooks: override what differs

    def build(self, architecture: Architecture) -> None:
        """Make the networks, once, before the first step.

        Parameters
        ----------
        architecture
            Calling it returns a new backbone: ``architecture(final_relu=True)``.
        """
        self.architecture = architecture
        self.backbone = architecture(self.final_relu)
        self.head = self.make_head(self.backbone.width)

    def check(self, memory: Memory) -> None:
        """Raise an error for settings that cannot work, before anything is trained.

        Parameters
        ----------
        memory
            The empty memory, with its settings.

        Raises
        ------
        UsageError
            If the settings cannot work.
        """

    def make_head(self, features: int) -> Head:
        """Return the head, without any class yet.

        Parameters
        ----------
        features
            Number of features of the backbone.
        """
        return Head(features, self.bias)

    def begin(self, step: Step, fit: Fit) -> None:
        """Prepare for a step, before training; ``self.teacher`` is set already. Default: grow the head.

        Parameters
        ----------
        step
            Numbers of old and new classes, and the images of the new ones.
        fit
            What the step is trained with; ``fit.images`` may be replaced.
        """
        self.head.grow(step.new)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch.

        Parameters
        ----------
        x
            Augmented and normalised images, N × C × H × W.
        y
            Their labels.

        Returns
        -------
        Tensor
            A scalar, the mean over the images.
        """
        return F.cross_entropy(self.logits(x), y)

    def features(self, x: Tensor) -> Tensor:
        """Return the features of a batch.

        Parameters
        ----------
        x
            Normalised images, N × C × H × W.

        Returns
        -------
        Tensor
            N × D, one row per image.
        """
        features: Tensor = self.backbone(x)
        return features

    def logits_from(self, features: Tensor) -> Tensor:
        """Return the head's logits, without any correction.

        Parameters
        ----------
        features
            N × D, as ``features`` returns them.

        Returns
        -------
        Tensor
            N × classes.
        """
        logits: Tensor = self.head(features)
        return logits

    def before_epoch(self, epoch: int) -> None:
        """Change weights, before each epoch of the main stage.

        Parameters
        ----------
        epoch
            Number of the epoch, from 0.
        """

    def after_backward(self) -> None:
        """Change gradients, after each backward pass."""

    def after_update(self) -> None:
        """Change weights, after each optimizer step."""

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        """Finish a step, after training: align, fine-tune, estimate importances.

        Parameters
        ----------
        step
            The step, as in ``begin``.
        fit
            Trains further stages, and selects exemplars.

        Returns
        -------
        dict of str to float
            Figures to record in the results, such as γ.
        """
        return {}

    def classify(self, features: Tensor) -> Tensor:
        """Return the logits that predictions are made from, corrections included; must change nothing.

        Parameters
        ----------
        features
            N × D, as ``features`` returns them.

        Returns
        -------
        Tensor
            N × classes, one column for each class seen.
        """
        return self.logits_from(features)

    def keep_classes(self, classes: Tensor) -> None:
        """Keep only the given classes (sorted indices) and renumber them from 0.

        Called between steps, when a class is forgotten or learned again. The default keeps the rows of the head and of
        the buffers in ``per_class``. Override it if you store something else per class.

        Parameters
        ----------
        classes
            The classes that stay.

        Raises
        ------
        UsageError
            If a class cannot be removed.
        """
        self.head.keep_classes(classes)
        step_of = torch.repeat_interleave(self.sizes)
        self.sizes = torch.bincount(step_of[classes], minlength=len(self.sizes))
        for name in self.per_class:
            rows = getattr(self, name, None)
            if rows is not None and len(rows):
                setattr(self, name, rows[classes])

    def match_state(self, state: Mapping[str, Tensor]) -> None:
        """Bring this method into the shape that ``state`` has, just before it is loaded.

        The default resizes all heads and this method's own buffers. Override it if modules are added while learning,
        and call the default at the end.

        Parameters
        ----------
        state
            What ``state_dict`` returned when the method was saved.
        """
        for name, module in self.named_modules():
            weight = state.get(f"{name}.weight")
            if isinstance(module, Head) and weight is not None:
                module.resize(*weight.shape)
        for name in self._buffers:
            value = state.get(name)
            if value is not None:
                self._buffers[name] = torch.empty_like(value, device=self.device)

    def training_fields(self) -> dict[str, Any]:
        """Return the hyper-parameters that ``loss`` and the hooks around it use in this step, after ``begin``.

        A comparison trains once for runs that agree in them, and in their weights, teacher and images. The default
        returns all fields. Override it to leave out those that matter only in ``begin`` and ``end``.

        Returns
        -------
        dict
            Names and values.
        """
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def weight_norms(self, norm: int) -> Tensor | None:
        """Return the norm of each class's weights, for reports.

        Parameters
        ----------
        norm
            1 or 2.

        Returns
        -------
        Tensor or None
            One value per class; None if the head does not have one row per class.
        """
        return head_norms(self.head, norm)

    # ---- for use in hooks

    @property
    def device(self) -> torch.device:
        """Where the method computes; move what you create in ``end`` there."""
        return self.sizes.device

    @property
    def steps(self) -> list[int]:
        """The number of classes of each step so far."""
        return list(self._steps.of(self.sizes))

    def logits(self, x: Tensor) -> Tensor:
        """Return the head's logits for images, without any correction."""
        return self.logits_from(self.features(x))

    def predict(self, x: Tensor) -> Tensor:
        """Return ``classify(features(x))``."""
        return self.classify(self.features(x))

    def snapshot(self) -> Self:
        """Return a frozen copy of the current model, without its teacher."""
        teacher, self.teacher = self.teacher, None
        copied: Self = copy.deepcopy(self)
        copied.requires_grad_(False).eval()
        self.teacher = teacher
        for backbone in backbones_of(copied):
            backbone.flip_tta = False  # it would double the cost of every batch
        return copied

    def teacher_predict(self, x: Tensor) -> Tensor:
        """Return the teacher's predictions, corrections included."""
        return self.from_teacher(lambda teacher: teacher.predict(x))

    def from_teacher(self, function: Callable[[Self], T]) -> T:
        """Return ``function(teacher)``, computed without gradients."""
        assert self.teacher is not None
        with torch.no_grad(), self.timer("teacher"):
            return function(self.teacher)

    # ---- called by the engine

    def start_step(self, step: Step) -> None:
        """Record the step's classes and keep the teacher; runs before ``begin``."""
        self.teacher = None
        if self.uses_teacher and step.old:
            self.teacher = self.snapshot()
        self.old, self.new = step.old, step.new
        self.sizes = torch.cat([self.sizes, self.sizes.new_tensor([step.new])])

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.teacher is not None:
            self.teacher.eval()  # its batch norms must not change
        return self

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        state = upgrade_state(self, state_dict)
        with preserve_rng():  # networks that are added here are initialised only to be overwritten
            match_state(self, state)
        loaded = super().load_state_dict(state, strict, assign)
        self.train(self.training)  # the mode of added networks
        return loaded
