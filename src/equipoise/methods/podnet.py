"""PODNet: pooled outputs distillation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.data.stream import Step
from equipoise.learn.balance import tune_head
from equipoise.learn.head import Head
from equipoise.learn.method import Method
from equipoise.seeding import number

if TYPE_CHECKING:
    from equipoise.learn.trainer import Fit


class ProxyHead(Head):
    """The local similarity classifier (Sec. 3.3): several proxies a class, the nearest counting most."""

    def __init__(self, features: int, proxies: int, scale: float, sharpness: float) -> None:
        super().__init__(features, kind="cosine", scale=scale, learn_scale=True)
        self.proxies, self.sharpness = proxies, sharpness

    @property
    def classes(self) -> int:
        return len(self.weight) // self.proxies

    def grow(self, count: int, redraw: bool = False) -> None:
        super().grow(count * self.proxies, redraw)

    def keep(self, classes: Tensor) -> None:
        rows = classes[:, None] * self.proxies + torch.arange(self.proxies, device=classes.device)
        super().keep(rows.flatten())

    def similarities(self, x: Tensor) -> Tensor:
        """Eq. 9: ŷ_c = Σ_k s_ck <θ_ck, h>, with s a softmax over the class's proxies."""
        cosines = self.sharpness * F.linear(F.normalize(x, dim=1), F.normalize(self.weight, dim=1))
        cosines = cosines.unflatten(1, (-1, self.proxies))
        weighted: Tensor = (cosines.softmax(2) * cosines).sum(2)
        return weighted

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scale * self.similarities(x)
        return scores


@dataclass(eq=False)
class PODNet(Method):
    """Feature maps, pooled along width and height, are held to the old model's; several proxies a class.

    The released code does not train with the paper's Eq. 10. It measures similarity by the negative squared distance of
    unit vectors, 2 cos - 2, where the text has cos; its margin is taken from every class and so cancels; and its
    shift for stability leaves the winner in the denominator, which makes the loss a cross-entropy that counts a wrong
    winner twice. Published figures come from that loss, so ``form = "code"`` is the default; ``"paper"`` is Eq. 10.
    The code's clamp of every gradient at ±5 is left out.
    """

    paper: ClassVar[str] = "Douillard et al., PODNet: Pooled Outputs Distillation, ECCV 2020"
    variants: ClassVar = {"podnet": {}}
    uses_teacher: ClassVar[bool] = True
    corrects: ClassVar[bool] = True
    final_relu: ClassVar[bool] = False  # authors' network
    extra: ClassVar[str] = "ten rows a class"

    proxies: int = 10
    """K, proxies a class."""
    spatial: float = 3.0
    """λ_c, the weight of the pooled maps (authors: CIFAR 3, ImageNet 8)."""
    flat: float = 1.0
    """λ_f, the weight of the final features (authors: CIFAR 1, ImageNet 10)."""
    form: Literal["code", "paper"] = "code"
    """The loss of the released code, or Eq. 10 of the text."""
    margin: float = 0.6
    """δ of Eq. 10."""
    scale: float = 1.0
    """Where η starts (authors: 1); it is learned."""
    tune_epochs: int = 20
    """Epochs in which the head alone is trained on balanced exemplars."""
    tune_lr: float = 0.05
    """Its learning rate."""

    def make_head(self, features: int) -> ProxyHead:
        return ProxyHead(features, self.proxies, self.scale, sharpness=2.0 if self.form == "code" else 1.0)

    def norms(self, norm: int) -> None:
        """A class has several rows."""

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        if step.old:
            self.imprint(step, fit)

    @torch.no_grad()
    def imprint(self, step: Step, fit: Fit) -> None:
        """Sec. 3.3: the proxies of a new class start as the centres of its features."""
        from sklearn.cluster import KMeans  # a second to import, which `equipoise predict` need not wait for

        features = F.normalize(fit.features(step.images), dim=1)
        length = self.head.weight[: step.old * self.proxies].norm(dim=1).mean()
        for label in range(step.old, step.seen):
            mine = features[step.images.labels == label]
            clusters = KMeans(min(self.proxies, len(mine)), n_init=1, random_state=number(*fit.key, label) % 2**32)
            centres = torch.from_numpy(clusters.fit(mine.numpy()).cluster_centers_).to(self.head.weight)
            rows = torch.arange(self.proxies) % len(centres)
            self.head.weight[label * self.proxies : (label + 1) * self.proxies] = length * F.normalize(
                centres[rows], dim=1
            )

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        maps = self.backbone.maps(x)
        features = self.backbone.pool(maps[-1])
        loss = self.classify(features, y)
        if self.teacher is None:
            return loss
        before = self.from_teacher(lambda teacher: teacher.backbone.maps(x))
        growth: float = (
            (self.old + self.new) / self.new
        ) ** 0.5  # Sec. 4.1: the more there is to keep, the more it counts
        flat = 1 - F.cosine_similarity(features, self.backbone.pool(before[-1])).mean()  # authors' form of Eq. 6
        kept = self.spatial * pooled_distance(maps, before) + self.flat * flat
        return loss + growth * kept  # Eq. 7

    def classify(self, features: Tensor, y: Tensor) -> Tensor:
        scores = self.head(features)
        own = scores.gather(1, y[:, None])
        others = scores.masked_fill(F.one_hot(y, scores.shape[1]).bool(), -torch.inf)
        if self.form == "paper":  # Eq. 10: [-log(exp η(ŷ_y - δ) / Σ_{i≠y} exp η ŷ_i)]₊
            return F.relu(others.logsumexp(1) - own[:, 0] + self.head.scale * self.margin).mean()
        winner = scores.amax(1, keepdim=True)
        loss: Tensor = torch.cat([others, winner], 1).logsumexp(1) - own[:, 0]
        return loss.mean()

    def after_update(self) -> None:
        # not in the paper: with η at 0 the margin vanishes, and below it the loss rewards the wrong class
        assert isinstance(self.head.scale, Tensor)
        self.head.scale.data.clamp_(min=1.0)
        if self.teacher is not None and self.training:  # authors' code: old proxies stand still, but for the tuning
            rows = self.old * self.proxies
            self.head.weight.data[:rows] = self.teacher.head.weight

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        schedule = fit.schedule.further(epochs=self.tune_epochs, lr=self.tune_lr, shape="constant", milestones=())
        tune_head(fit, self.classify, schedule)
        return {}


def pooled_distance(maps: Sequence[Tensor], before: Sequence[Tensor]) -> Tensor:
    """POD-spatial (Eq. 5), averaged over the stages: squares summed along width and along height, then compared."""
    distances = []
    for now, then in zip(maps, before, strict=True):
        pooled = [F.normalize(torch.cat([m.square().sum(3).flatten(1), m.square().sum(2).flatten(1)], 1), dim=1)
                  for m in (now, then)]  # fmt: skip
        distances.append((pooled[0] - pooled[1]).norm(dim=1).mean())
    return torch.stack(distances).mean()
