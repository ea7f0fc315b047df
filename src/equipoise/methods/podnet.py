"""PODNet: pooled outputs distillation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.methods import Epochs, Fit, Head, Method, Positive, Range, Step, Weight, finetune_head, seed_for


class ProxyHead(Head):
    """The local similarity classifier (Sec. 3.3): several proxies per class, weighted by their similarity."""

    def __init__(self, features: int, proxies: int, scale: float, sharpness: float) -> None:
        super().__init__(features, kind="cosine", scale=scale, learn_scale=True)
        self.proxies, self.sharpness = proxies, sharpness

    @property
    def classes(self) -> int:
        return len(self.weight) // self.proxies

    def grow(self, count: int, reinit: bool = False) -> None:
        super().grow(count * self.proxies, reinit)

    def keep_classes(self, classes: Tensor) -> None:
        rows = classes[:, None] * self.proxies + torch.arange(self.proxies, device=classes.device)
        super().keep_classes(rows.flatten())

    def forward(self, x: Tensor) -> Tensor:
        """Eq. 9: ŷ_c = Σ_k s_ck <θ_ck, h>, with s a softmax over the class's proxies."""
        cosines = self.sharpness * F.linear(F.normalize(x, dim=1), F.normalize(self.weight, dim=1))
        cosines = cosines.unflatten(1, (-1, self.proxies))
        logits: Tensor = self.scale * (cosines.softmax(2) * cosines).sum(2)
        return logits


@dataclass(eq=False)
class PODNet(Method):
    """Feature maps, pooled along width and height, are distilled from the old model; several proxies per class.

    The released code does not train with the paper's Eq. 10. It measures similarity by the negative squared distance of
    unit vectors, 2 cos - 2, where the text has cos; it subtracts the margin from every class, so that it cancels; and
    its shift for stability leaves the winner in the denominator, which gives a cross-entropy that counts a wrong winner
    twice. Published results come from that loss, so ``form = "code"`` is the default; ``"paper"`` is Eq. 10. The
    code's clamping of every gradient to ±5 is omitted.
    """

    paper = "Douillard et al., PODNet: Pooled Outputs Distillation, ECCV 2020"
    variants: ClassVar = {"podnet": {}}
    uses_teacher = True
    corrects = True
    final_relu = False  # authors' network
    has_linear_head = False
    stores = "ten rows per class"

    proxies: Annotated[int, Range(1, 1000)] = 10
    """Proxies K per class."""
    spatial: Weight = 3.0
    """Weight λ_c of the pooled maps (authors: CIFAR 3, ImageNet 8)."""
    flat: Weight = 1.0
    """Weight λ_f of the final features (authors: CIFAR 1, ImageNet 10)."""
    form: Literal["code", "paper"] = "code"
    """The loss of the released code, or Eq. 10 of the text."""
    margin: Annotated[float, Range(0, 2)] = 0.6
    """Margin δ of Eq. 10."""
    scale: Positive = 1.0
    """Initial value of the learned scale η (authors: 1)."""
    finetune_epochs: Epochs = 20
    """Epochs in which only the head is trained, on balanced exemplars."""
    finetune_lr: Positive = 0.05
    """Learning rate of the fine-tuning."""

    def make_head(self, features: int) -> ProxyHead:
        return ProxyHead(features, self.proxies, self.scale, sharpness=2.0 if self.form == "code" else 1.0)

    def weight_norms(self, norm: int) -> None:
        """Return None: a class has several rows."""

    @torch.no_grad()
    def begin(self, step: Step, fit: Fit) -> None:
        """Initialise the proxies of a new class as cluster centres of its features (Sec. 3.3)."""
        super().begin(step, fit)
        if not step.old:
            return
        from sklearn.cluster import KMeans  # takes a second to import, and `equipoise predict` does not need it

        features = F.normalize(fit.features(step.images), dim=1)
        length = self.head.weight[: step.old * self.proxies].norm(dim=1).mean()
        proxies = []
        for label in range(step.old, step.seen):
            mine = features[step.images.labels == label]
            clusters = KMeans(min(self.proxies, len(mine)), n_init=1, random_state=seed_for(*fit.key, label) % 2**32)
            centres = torch.from_numpy(clusters.fit(mine.numpy()).cluster_centers_).to(self.head.weight)
            proxies.append(centres[torch.arange(self.proxies) % len(centres)])
        self.head.weight[step.old * self.proxies :] = length * torch.cat(proxies)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        maps = self.backbone.maps(x, before_last=True)
        features = self.backbone.pool(maps[-1])
        loss = self.classification_loss(features, y)
        if self.teacher is None:
            return loss
        before = self.from_teacher(lambda teacher: teacher.backbone.maps(x, before_last=True))
        growth: float = ((self.old + self.new) / self.new) ** 0.5  # Sec. 4.1: grows with the number of old classes
        flat = 1 - F.cosine_similarity(features, self.backbone.pool(before[-1])).mean()  # authors' form of Eq. 6
        distillation = self.spatial * pooled_distance(maps, before) + self.flat * flat
        return loss + growth * distillation  # Eq. 7

    def classification_loss(self, features: Tensor, y: Tensor) -> Tensor:
        logits = self.head(features)
        own = logits.gather(1, y[:, None])
        others = logits.masked_fill(F.one_hot(y, logits.shape[1]).bool(), -torch.inf)
        if self.form == "paper":  # Eq. 10: [-log(exp η(ŷ_y - δ) / Σ_{i≠y} exp η ŷ_i)]₊
            return F.relu(others.logsumexp(1) - own[:, 0] + self.head.scale * self.margin).mean()
        winner = logits.amax(1, keepdim=True)
        loss: Tensor = torch.cat([others, winner], 1).logsumexp(1) - own[:, 0]
        return loss.mean()

    def after_update(self) -> None:
        if self.form == "paper":  # not in it: at η = 0 the margin vanishes, and below it the loss rewards wrong classes
            assert isinstance(self.head.scale, Tensor)
            self.head.scale.data.clamp_(min=1.0)
        if self.teacher is not None and self.training:  # authors' code: old proxies are frozen, except in fine-tuning
            rows = self.old * self.proxies
            self.head.weight.data[:rows] = self.teacher.head.weight

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        schedule = fit.schedule.for_stage(epochs=self.finetune_epochs, lr=self.finetune_lr, lr_schedule="constant")
        finetune_head(fit, self.classification_loss, schedule)
        return {}


def pooled_distance(maps: Sequence[Tensor], before: Sequence[Tensor]) -> Tensor:
    """POD-spatial (Eq. 5), averaged over the stages."""
    distances = [(pooled(now) - pooled(then)).norm(dim=1).mean() for now, then in zip(maps, before, strict=True)]
    return torch.stack(distances).mean()


def pooled(maps: Tensor) -> Tensor:
    """Sum the squares along width and along height, and normalise."""
    return F.normalize(torch.cat([maps.square().sum(3).flatten(1), maps.square().sum(2).flatten(1)], 1), dim=1)
