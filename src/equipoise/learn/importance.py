"""What EWC, SI and MAS share: weights that mattered are held near where they were, by a quadratic penalty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from equipoise import ranks
from equipoise.learn.method import Method
from equipoise.learn.nets import Architecture, without


@dataclass(eq=False)
class Consolidating(Method):
    """A method that keeps, for each weight, how much it mattered and where it was."""

    rehearses: ClassVar[Literal["memory", "everything", "nothing"]] = "nothing"
    extra: ClassVar[str] = "an importance and an anchor a weight"

    strength: float = 1.0
    """How much the penalty counts."""
    cap: float = 1.0
    """An importance above it counts as it. Not in the papers: SGD overshoots where strength × importance × learning
    rate exceeds 1, and a single such weight ends the training."""

    def build(self, architecture: Architecture) -> None:
        super().build(architecture)
        for name, weight in self.weights():
            self.register_buffer(f"importance_{name}", torch.zeros_like(weight))
            self.register_buffer(f"anchor_{name}", weight.detach().clone())

    def weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Everything that is trained, by a name a buffer can have."""
        for name, weight in self.named_parameters():
            yield name.replace(".", "_"), weight

    def penalty(self) -> Tensor:
        """Σ Ω (θ - θ*)²; rows of the head that came later have no past and take no part."""
        terms = []
        for name, weight in self.weights():
            anchor = self.get_buffer(f"anchor_{name}")
            terms.append((self.get_buffer(f"importance_{name}") * (weight[: len(anchor)] - anchor).square()).sum())
        return torch.stack(terms).sum()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().loss(x, y)
        return loss + self.strength * self.penalty() if self.old else loss

    def keep(self, classes: Tensor) -> None:
        super().keep(classes)
        for kind in ("importance", "anchor"):
            for name in ("head_weight", "head_bias"):
                known = getattr(self, f"{kind}_{name}", None)
                if known is not None:
                    setattr(self, f"{kind}_{name}", known[classes])

    def consolidate(self, importance: dict[str, Tensor]) -> None:
        """Add a step's importances to those so far, and take the weights as the new anchors."""
        for name, weight in self.weights():
            known = self.get_buffer(f"importance_{name}")
            total = importance[name].clone()
            total[: len(known)] += known
            total.clamp_(max=self.cap)
            setattr(self, f"importance_{name}", total)
            setattr(self, f"anchor_{name}", weight.detach().clone())


def mean_over_images(
    method: Method,
    batches: Iterator[tuple[Tensor, Tensor]],
    scalar: Callable[[Tensor, Tensor], Tensor],
    measure: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """For each weight the mean over images of ``measure`` of the gradient of ``scalar(scores, draw)``, one by one.

    ``batches`` are this process's images with a uniform random number each, the ``draw``.
    """
    method.eval()
    weights = {name: weight.detach() for name, weight in method.named_parameters()}
    buffers = dict(method.named_buffers())

    def of_one(weights: dict[str, Tensor], image: Tensor, draw: Tensor) -> Tensor:
        scores = functional_call(_Scores(method), _prefixed(weights | buffers), (image[None],))
        return scalar(scores[0], draw)

    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    count = torch.zeros(())
    for batch, draws in batches:
        count += len(batch)
        with without(method, "bf16"):  # squares of small gradients, and vmap knows no autocast
            each = vmap(grad(of_one), in_dims=(None, 0, 0))(weights, batch, draws)
        for name, gradients in each.items():
            total[name] += measure(gradients).sum(0)
    images = int(ranks.total(count))
    return {name.replace(".", "_"): ranks.total(value) / images for name, value in total.items()}


class _Scores(nn.Module):
    """The method's scores as a forward pass, for ``functional_call``."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, x: Tensor) -> Tensor:
        return self.method.scores(x)


def _prefixed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"method.{name}": value for name, value in tensors.items()}
