"""SI: continual learning through synaptic intelligence."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.methods import Architecture, Fit, ImportanceMethod, Positive, Step, Weight


@dataclass(eq=False)
class SI(ImportanceMethod):
    """A weight's importance is its contribution to the fall of the loss, divided by its squared distance."""

    paper = "Zenke, Poole and Ganguli, Continual Learning Through Synaptic Intelligence, ICML 2017"
    variants: ClassVar = {"si": {}}

    strength: Weight = 0.1
    """Strength c of Eq. 4."""
    damping: Positive = 0.1
    """Damping ξ of Eq. 5, which bounds the importance of weights that hardly moved (authors: 0.1 on MNIST, 0.001 on
    CIFAR)."""

    def build(self, architecture: Architecture) -> None:
        super().build(architecture)
        for name, weight in list(self.weights()):
            self.register_buffer(f"path_{name}", torch.zeros_like(weight))
            self.register_buffer(f"start_{name}", weight.detach().clone())

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        for name, weight in self.weights():
            setattr(self, f"path_{name}", torch.zeros_like(weight))
            setattr(self, f"start_{name}", weight.detach().clone())

    @torch.no_grad()
    def after_backward(self) -> None:
        """Record the weights and the gradient of the step's own loss, without the penalty's."""
        self.recorded: dict[str, tuple[Tensor, Tensor]] = {}
        for name, weight in self.weights():
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()  # None: frozen
            if self.old:
                anchor = self.get_buffer(f"anchor_{name}")
                pull = 2 * self.strength * self.get_buffer(f"importance_{name}") * (weight[: len(anchor)] - anchor)
                gradient[: len(anchor)] -= pull
            self.recorded[name] = gradient, weight.detach().clone()

    @torch.no_grad()
    def after_update(self) -> None:
        for name, weight in self.weights():
            gradient, before = self.recorded[name]
            self.get_buffer(f"path_{name}").sub_(gradient * (weight - before))  # Eq. 3: ω = -∫ g · dθ

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        importance = {}
        for name, weight in self.weights():
            moved = weight.detach() - self.get_buffer(f"start_{name}")
            importance[name] = self.get_buffer(f"path_{name}") / (moved.square() + self.damping)  # Eq. 5
        self.consolidate(importance)
        return {}
