"""Claims of the paper, tested on our runs. Every verdict is computed from figures; none is typed by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np
from plan import FAMILY, OTHERS

from equipoise.study.report.groups import RunGroup
from equipoise.study.report.paper import published
from equipoise.study.report.runs import Array

LITTLE = 1.0
"""A difference of the average accuracy, in points, that counts as small."""

OLD_IMAGES = 8000
"""Test images of the 80 classes that are old in the last step."""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, whether our runs reproduce it, and the evidence."""

    statement: str
    reproduced: bool
    evidence: str
    margin: float | None = None
    """By how many points; None if the claim is not about points."""
    means: int = 2
    """Number of means with the same spread that the margin adds and subtracts."""
    within_noise: bool = False
    """Whether other seeds might give another result."""

    @property
    def verdict(self) -> str:
        return ("yes" if self.reproduced else "**no**") + (", within noise" if self.within_noise else "")


class GroupMeans:
    """Runs by label, and means over their seeds."""

    def __init__(self, groups: Mapping[str, RunGroup]) -> None:
        self.groups = groups

    def shared(self, labels: Sequence[str]) -> GroupMeans:
        """Keep these labels and their common seeds: methods of one seed share the model of the first step."""
        seeds = set.intersection(*({run.settings["seed"] for run in self.groups[label].runs} for label in labels))
        return GroupMeans({
            label: RunGroup(label, [run for run in self.groups[label].runs if run.settings["seed"] in seeds])
            for label in labels
        })  # fmt: skip

    def averages(self, label: str) -> Array:
        """Return the mean accuracy over all steps but the first, for each seed."""
        averages: Array = self.groups[label].values("accuracy")[:, 1:].mean(1)
        return averages

    def average(self, label: str) -> float:
        return float(self.averages(label).mean())

    def last(self, label: str, figure: str) -> float:
        """Return a figure of the last step."""
        return float(self.groups[label].values(figure)[:, -1].mean())

    def listed(self, labels: Sequence[str]) -> str:
        return ", ".join(f"{label} {self.average(label):.1f}" for label in labels)

    def seeds(self) -> list[int]:
        return [run.settings["seed"] for run in next(iter(self.groups.values())).runs]

    def spread(self) -> float | None:
        """Return the standard deviation of the average between seeds, pooled over all labels with several seeds."""
        squares = [self.averages(label).var(ddof=1) for label, group in self.groups.items() if len(group.runs) > 1]
        return float(np.mean(squares)) ** 0.5 if squares else None


def kd_within_old(means: GroupMeans) -> Claim:
    (before, after), new = (
        [means.last(label, f"errors.{error}") for label in ("ce", "ce+kd")] for error in ("e_oo", "e_on")
    )
    shares = [f"{old_error_rate(old, new):.1f}" for old, new in zip((before, after), new, strict=True)]
    evidence = (
        f"e(o,o) {before:.0f} without, {after:.0f} with it; as a share of old images not predicted as new classes"
    )
    statement = "With distillation alone, fewer old images are predicted as other old classes, e(o,o)"
    return Claim(statement, after < before, f"{evidence} {shares[0]} and {shares[1]} %")


def kd_not_for_new(means: GroupMeans) -> Claim:
    before, after = (means.last(label, "errors.e_on") for label in ("ce", "ce+kd"))
    statement = "… but not fewer as new classes, e(o,n)"
    return Claim(statement, after >= before, f"e(o,n) {before:.0f} without, {after:.0f} with it")


def old_error_rate(oo: float, on: float) -> float:
    """Return the percentage of errors among old images that are not predicted as new classes, after the last step."""
    return 100 * oo / (OLD_IMAGES - on)


def norms_grow(statement: str, labels: Sequence[str]) -> Callable[[GroupMeans], Claim]:
    """Test whether new classes have larger norms after training, before any correction."""

    def claim(means: GroupMeans) -> Claim:
        steps = [step for label in labels for run in means.groups[label].runs for step in run.steps]
        ratios = [step.norms_new / step.norms_old for step in steps if step.norms_old and step.norms_new is not None]
        larger = sum(ratio > 1 for ratio in ratios)
        evidence = f"in {larger} of {len(ratios)} steps; {mean(ratios):.2f} times as large on average"
        return Claim(statement, larger == len(ratios), evidence)

    return claim


def better(statement: str, label: str, other: str) -> Callable[[GroupMeans], Claim]:
    """Test whether one method has a higher average than another."""

    def claim(means: GroupMeans) -> Claim:
        gaps = means.averages(label) - means.averages(other)
        each = f"; better with {sum(gaps > 0)} of {len(gaps)} seeds" if len(gaps) > 1 else ""
        return Claim(statement, gaps.mean() > 0, means.listed([label, other]) + each, gaps.mean())

    return claim


def more_than_the_sum(means: GroupMeans) -> Claim:
    both, wa, kd = (means.average(label) - means.average("ce") for label in ("wa", "ce+wa", "ce+kd"))
    paper = published()["cifar100"]["averages"]["5"]
    theirs = ", ".join(f"{paper[label] - paper['ce']:+.1f}" for label in ("wa", "ce+wa", "ce+kd"))
    return Claim(
        "Distillation and aligning together gain more than the sum of both gains",
        both > wa + kd,
        f"together {both:+.1f}, aligning {wa:+.1f}, distillation {kd:+.1f} points over ce; the paper {theirs}",
        both - wa - kd,
        means=4,  # wa − (ce+wa) − (ce+kd) + ce
    )


def little_change(statement: str, label: str) -> Callable[[GroupMeans], Claim]:
    """Test whether a variant of wa differs by at most LITTLE."""

    def claim(means: GroupMeans) -> Claim:
        usual = means.average("wa")
        gap = means.average(label) - usual
        evidence = f"{gap:+.1f} points compared with wa ({usual:.1f})"
        return Claim(statement, abs(gap) <= LITTLE, evidence, LITTLE - abs(gap))

    return claim


def joint_is_best(means: GroupMeans) -> Claim:
    others = [label for label in means.groups if label != "joint"]
    best, last = max(others, key=means.average), max(others, key=lambda label: means.last(label, "accuracy"))
    gaps = (
        means.average("joint") - means.average(best),
        means.last("joint", "accuracy") - means.last(last, "accuracy"),
    )
    ends = ", ".join(f"{label} {means.last(label, 'accuracy'):.1f}" for label in ("joint", last))
    evidence = f"{means.listed(['joint', best])}; after step 5 {ends}"
    return Claim("Joint training is better than every method", min(gaps) > 0, evidence, min(gaps))


NOT_CLIPPED = ("clip-off", "bic", "il2m", "eeil")
CLAIMS: list[tuple[tuple[str, ...], Callable[[GroupMeans], Claim]]] = [
    (("ce", "ce+kd"), kd_within_old),
    (("ce", "ce+kd"), kd_not_for_new),
    (
        ("ce", "ce+kd"),
        norms_grow(
            "After training, weights of new classes have larger norms (clipped heads: ce, ce+kd)", ("ce", "ce+kd")
        ),
    ),
    (
        NOT_CLIPPED,
        norms_grow("… also in heads that are not clipped (wa without clipping, bic, il2m, eeil)", NOT_CLIPPED),
    ),
    (("wa", "ce+wa"), better("WA > CE+WA", "wa", "ce+wa")),
    (("ce+wa", "ce+kd"), better("CE+WA > CE+KD", "ce+wa", "ce+kd")),
    (("ce+kd", "ce"), better("CE+KD ≥ CE", "ce+kd", "ce")),
    (("wa", "ce+wa", "ce+kd", "ce"), more_than_the_sum),
    (("wa", "ce+kd+wnl"), better("Unit norms in training (WNL) are worse than WA", "wa", "ce+kd+wnl")),
    (("wa", "ce+kd+unit"), better("Unit norms after training are worse than WA", "wa", "ce+kd+unit")),
    (("wa", "norm-1"), little_change("The choice of the norm matters little", "norm-1")),
    (("wa", "bias"), little_change("A bias in the head matters little", "bias")),
    (("wa", "random"), little_change("The selection of exemplars matters little", "random")),
    (("wa", "clip-off"), better("Clipping the head's weights at 0 helps", "wa", "clip-off")),
    (("wa", "bic"), better("WA ≥ BiC with 5 steps", "wa", "bic")),
    (("wa", "eeil"), better("WA > EEIL with 5 steps", "wa", "eeil")),
    (("wa", "icarl"), better("WA > iCaRL with 5 steps", "wa", "icarl")),
    (("bic", "icarl"), better("BiC > iCaRL with 5 steps", "bic", "icarl")),
    ((*FAMILY, *OTHERS), joint_is_best),
]
"""Each with the labels that it needs."""


def check_claims(groups: Mapping[str, RunGroup], noise: Mapping[str, RunGroup] | None = None) -> list[Claim]:
    """Test every claim whose runs exist, on the seeds that they share; ``noise`` gives the spread over seeds."""
    known, claims = GroupMeans(groups), []
    spread = GroupMeans(noise or groups).spread()
    for labels, test in CLAIMS:
        if set(labels) <= set(groups):
            means = known.shared(labels)
            claim, seeds = test(means), means.seeds()
            bound = 2 * (spread or 0) * (claim.means / len(seeds)) ** 0.5  # two standard deviations
            within_noise = claim.margin is not None and abs(claim.margin) < bound
            which = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
            claims.append(replace(claim, evidence=f"{claim.evidence} ({which})", within_noise=within_noise))
    return claims
