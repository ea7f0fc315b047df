"""Base class of EWC, SI and MAS: a quadratic penalty that keeps important weights near their old values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from equipoise.core import distributed
from equipoise.core.ranges import Weight
from equipoise.learn.backbones import Architecture
from equipoise.learn.backbones.base import disabled
from equipoise.learn.loop import ForwardOf
from equipoise.learn.method import Method


@dataclass(eq=False)
class ImportanceMethod(Method):
    """A method that stores an importance and an anchor for each weight."""

    rehearsal = "none"
    stores = "an importance and an anchor per weight"
    per_class = ("importance_head_weight", "anchor_head_weight", "importance_head_bias", "anchor_head_bias")

    strength: Weight = 1.0
    """Weight of the penalty."""
    cap: Weight = 1.0
    """Upper bound of an importance. Not in the papers: SGD diverges if strength × importance × learning rate exceeds 1
    for a single weight."""

    def build(self, architecture: Architecture) -> None:
        super().build(architecture)
        for name, weight in self.weights():
            self.register_buffer(f"importance_{name}", torch.zeros_like(weight))
            self.register_buffer(f"anchor_{name}", weight.detach().clone())

    def weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield all parameters with names that are valid for buffers."""
        for name, weight in self.named_parameters():
            yield name.replace(".", "_"), weight

    def penalty(self) -> Tensor:
        """Return Σ Ω (θ - θ*)², without rows of the head that were added later."""
        terms = []
        for name, weight in self.weights():
            anchor = self.get_buffer(f"anchor_{name}")
            terms.append((self.get_buffer(f"importance_{name}") * (weight[: len(anchor)] - anchor).square()).sum())
        return torch.stack(terms).sum()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().loss(x, y)
        return loss + self.strength * self.penalty() if self.old else loss

    def consolidate(self, importance: dict[str, Tensor]) -> None:
        """Add a step's importances to the stored ones, and make the current weights the anchors.

        A step's importance may be negative in SI; their sum is limited to 0 … ``cap``.
        """
        for name, weight in self.weights():
            known = self.get_buffer(f"importance_{name}")
            total = importance[name].clone()
            total[: len(known)] += known
            total.clamp_(min=0, max=self.cap)
            setattr(self, f"importance_{name}", total)
            setattr(self, f"anchor_{name}", weight.detach().clone())


def mean_over_images(
    method: Method,
    batches: Iterator[tuple[Tensor, Tensor]],
    scalar: Callable[[Tensor, Tensor], Tensor],
    measure: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """Average ``measure`` of the per-image gradient of ``scalar(logits, draw)``, for each weight.

    ``batches`` are this process's images, each with a uniform random number, the ``draw``.
    """
    method.eval()
    net = ForwardOf(method, method.logits)
    weights = {name: weight.detach() for name, weight in net.named_parameters()}
    buffers = dict(net.named_buffers())

    def of_one(weights: dict[str, Tensor], image: Tensor, draw: Tensor) -> Tensor:
        logits = functional_call(net, weights | buffers, (image[None],))
        return scalar(logits[0], draw)

    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    count = torch.zeros(())
    for batch, draws in batches:
        count += len(batch)
        with disabled(method, "bf16"):  # small gradients are squared, and vmap does not support autocast
            each = vmap(grad(of_one), in_dims=(None, 0, 0))(weights, batch, draws)
        for name, gradients in each.items():
            total[name] += measure(gradients).sum(0)
    images = int(distributed.all_reduce_sum(count))
    mean = {name: distributed.all_reduce_sum(value) / images for name, value in total.items()}
    return {name.removeprefix("method.").replace(".", "_"): value for name, value in mean.items()}
