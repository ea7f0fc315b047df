"""What a method is: a dataclass of hyper-parameters that is also the network it learns."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data.stream import Step
from equipoise.learn.align import head_norms
from equipoise.learn.clock import Clock
from equipoise.learn.head import Head
from equipoise.learn.nets import Architecture, backbones_of

if TYPE_CHECKING:
    from equipoise.learn.trainer import Fit

Answer = TypeVar("Answer")


@dataclass(eq=False)
class Method(nn.Module):
    """Plain training on what there is. Methods override the verbs in which they differ.

    Everything learned is a parameter, buffer or child, so ``state_dict()`` is the whole of it.
    """

    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Names under which the method is known, each with the fields it sets."""
    abouts: ClassVar[Mapping[str, str]] = {}
    """What a name means, where the class's own first line does not say it."""
    paper: ClassVar[str] = ""
    """Authors, title, venue and year."""
    extra: ClassVar[str] = "none"
    """What it keeps beside one network and the memory."""
    rehearses: ClassVar[Literal["memory", "everything", "nothing"]] = "memory"
    """Which images of old classes are trained on beside the new ones."""
    uses_teacher: ClassVar[bool] = False
    """Whether the model of the step before is kept, frozen, while a step is learned."""
    corrects: ClassVar[bool] = False
    """Whether ``end`` changes predictions (then they are also evaluated before it)."""
    needs_exemplars: ClassVar[bool] = False
    """Whether it cannot work with an empty memory."""
    shares: ClassVar[bool] = True
    """Whether several processes can learn it together, each from a share of every batch."""
    final_relu: ClassVar[bool] = True
    """Whether the backbone's features end in a ReLU."""

    def __post_init__(self) -> None:
        super().__init__()
        self.teacher: Method | None = None
        self.clock = Clock()
        self.sizes: Tensor
        self.register_buffer("sizes", torch.zeros(0, dtype=torch.long))

    def build(self, architecture: Architecture) -> None:
        """Make the network, before the first step."""
        self.architecture = architecture
        self.backbone = architecture(self.final_relu)
        self.head = self.make_head(self.backbone.width)

    def make_head(self, features: int) -> Head:
        return Head(features)

    @property
    def steps(self) -> list[int]:
        """How many classes each step so far has brought."""
        return [int(size) for size in self.sizes]

    # ---- the verbs

    def begin(self, step: Step, fit: Fit) -> None:
        """Before training: make room for the new classes."""
        self.start(step)
        self.head.grow(step.new)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What training lowers, for a batch of images and labels."""
        return F.cross_entropy(self.scores(x), y)

    def after_backward(self) -> None:
        """After each backward pass, before the update."""

    def after_update(self) -> None:
        """After each update."""

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        """After training: correct, estimate, remember. Returns figures worth keeping."""
        return {}

    def predict(self, x: Tensor) -> Tensor:
        """Scores over exactly the classes seen; changes nothing."""
        return self.scores(x)

    def keep(self, classes: Tensor) -> None:
        """Between steps: only ``classes``, a rising list of places, stay and move up, with all that is kept of each."""
        self.head.keep(classes)
        step_of = torch.repeat_interleave(self.sizes)
        self.sizes = torch.bincount(step_of[classes], minlength=len(self.sizes))

    # ---- what the verbs are made of

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.backbone(x)
        return features

    def scores(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(x))
        return scores

    def start(self, step: Step) -> None:
        """Note what the step brings and, if the method learns from it, freeze a copy of the model so far."""
        self.teacher = None
        if self.uses_teacher and step.old:
            self.teacher = self.snapshot()
        self.old, self.new = step.old, step.new
        self.sizes = torch.cat([self.sizes, self.sizes.new_tensor([step.new])])

    def snapshot(self) -> Self:
        """The model as it is now, frozen, without its teacher."""
        teacher, self.teacher = self.teacher, None
        copied = copy.deepcopy(self).requires_grad_(False).eval()
        self.teacher = teacher
        for backbone in backbones_of(copied):
            backbone.mirror = False  # a teacher is asked about every batch: once is enough
        return copied

    def ask_teacher(self, x: Tensor) -> Tensor:
        """What the teacher says of ``x``."""
        return self.from_teacher(lambda teacher: teacher.lesson(x))

    def from_teacher(self, ask: Callable[[Method], Answer]) -> Answer:
        """Anything the teacher can tell."""
        assert self.teacher is not None
        with torch.no_grad(), self.clock("teacher"):
            return ask(self.teacher)

    def lesson(self, x: Tensor) -> Tensor:
        """What this model says when it is the teacher: its predictions, corrections included."""
        return self.predict(x)

    def norms(self, norm: int) -> Tensor | None:
        """The norm of each class's weights; None for a head that has no row a class."""
        return head_norms(self.head, norm)

    def train(self, mode: bool = True) -> Method:
        super().train(mode)
        if self.teacher is not None:
            self.teacher.eval()  # a teacher whose batch norms moved would teach something else every batch
        return self

    def _load_from_state_dict(self, state: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        """Buffers take the shape they are loaded with: statistics a class grow with the classes."""
        for name in self._buffers:
            value = state.get(prefix + name)
            if value is not None:
                self._buffers[name] = torch.empty_like(value, device=self.sizes.device)
        super()._load_from_state_dict(state, prefix, *rest)
