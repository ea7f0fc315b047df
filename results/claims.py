"""What the paper says, asked of our own runs. Every claim is held or not by figures; none is typed by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np
from plan import FAMILY, OTHERS

from equipoise.study.report.facts import published
from equipoise.study.report.runs import Array, Group

LITTLE = 1.0
"""A difference of the average accuracy, in points, that counts as little."""

OLD_IMAGES = 8000
"""Test images of the 80 classes that are old in the last step."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, whether our runs say so too, and by which figures."""

    says: str
    held: bool
    figures: str
    margin: float | None = None
    """By how many points; none where points are not what it is about."""
    means: int = 2
    """How many means of the same spread it adds and subtracts."""
    chance: bool = False
    """Other seeds might say otherwise."""

    @property
    def verdict(self) -> str:
        return ("held" if self.held else "**not held**") + (", within chance" if self.chance else "")


class Figures:
    """Runs by label, and means over their seeds."""

    def __init__(self, groups: Mapping[str, Group]) -> None:
        self.groups = groups

    def shared(self, labels: Sequence[str]) -> Figures:
        """These labels, with the seeds that all of them have: one seed's methods share the model of the first step."""
        seeds = set.intersection(*({run.settings["seed"] for run in self.groups[label].runs} for label in labels))
        return Figures({
            label: Group(label, [run for run in self.groups[label].runs if run.settings["seed"] in seeds])
            for label in labels
        })  # fmt: skip

    def averages(self, label: str) -> Array:
        """Accuracy over all steps but the first, of each seed."""
        averages: Array = self.groups[label].values("top1")[:, 1:].mean(1)
        return averages

    def average(self, label: str) -> float:
        return float(self.averages(label).mean())

    def last(self, label: str, figure: str) -> float:
        """A figure of the last step."""
        return float(self.groups[label].values(figure)[:, -1].mean())

    def order(self, labels: Sequence[str]) -> str:
        return ", ".join(f"{label} {self.average(label):.1f}" for label in labels)

    def seeds(self) -> list[int]:
        return [run.settings["seed"] for run in next(iter(self.groups.values())).runs]

    def spread(self) -> float | None:
        """Standard deviation of the average between seeds, pooled over all labels that have several."""
        squares = [self.averages(label).var(ddof=1) for label, group in self.groups.items() if len(group.runs) > 1]
        return float(np.mean(squares)) ** 0.5 if squares else None


def kd_within_old(of: Figures) -> Claim:
    (before, after), new = ([of.last(label, error) for label in ("ce", "ce+kd")] for error in ("e_oo", "e_on"))
    shares = [f"{confused(old, new):.1f}" for old, new in zip((before, after), new, strict=True)]
    words = f"e(o,o) {before:.0f} without, {after:.0f} with it; as a share of old images not taken for new ones"
    says = "With distillation alone, fewer old images are mistaken for other old classes, e(o,o)"
    return Claim(says, after < before, f"{words} {shares[0]} and {shares[1]} %")


def kd_not_for_new(of: Figures) -> Claim:
    before, after = (of.last(label, "e_on") for label in ("ce", "ce+kd"))
    says = "… yet not fewer for new classes, e(o,n)"
    return Claim(says, after >= before, f"e(o,n) {before:.0f} without, {after:.0f} with it")


def confused(oo: float, on: float) -> float:
    """Per cent of wrong answers among old images that were not taken for new ones, after the last step."""
    return 100 * oo / (OLD_IMAGES - on)


def norms_grow(says: str, labels: Sequence[str]) -> Callable[[Figures], Claim]:
    """As training left them, before any correction."""

    def claim(of: Figures) -> Claim:
        rows = [row for label in labels for run in of.groups[label].runs for row in run.rows]
        shares = [row["norms_new"] / row["norms_old"] for row in rows if row["norms_old"] is not None]
        larger = sum(share > 1 for share in shares)
        words = f"in {larger} of {len(shares)} steps; {mean(shares):.2f} times as large on average"
        return Claim(says, larger == len(shares), words)

    return claim


def better(says: str, label: str, other: str) -> Callable[[Figures], Claim]:
    """By the average."""

    def claim(of: Figures) -> Claim:
        gaps = of.averages(label) - of.averages(other)
        each = f"; better with {sum(gaps > 0)} of {len(gaps)} seeds" if len(gaps) > 1 else ""
        return Claim(says, gaps.mean() > 0, of.order([label, other]) + each, gaps.mean())

    return claim


def more_than_the_sum(of: Figures) -> Claim:
    both, wa, kd = (of.average(label) - of.average("ce") for label in ("wa", "ce+wa", "ce+kd"))
    paper = published()["cifar100"]["averages"]["5"]
    theirs = ", ".join(f"{paper[label] - paper['ce']:+.1f}" for label in ("wa", "ce+wa", "ce+kd"))
    return Claim(
        "Distillation and aligning together gain more than the sum of what each gains",
        both > wa + kd,
        f"together {both:+.1f}, aligning {wa:+.1f}, distillation {kd:+.1f} points over ce; the paper {theirs}",
        both - wa - kd,
        means=4,  # wa − (ce+wa) − (ce+kd) + ce
    )


def little(says: str, label: str) -> Callable[[Figures], Claim]:
    def claim(of: Figures) -> Claim:
        usual = of.average("wa")
        gap = of.average(label) - usual
        return Claim(says, abs(gap) <= LITTLE, f"{gap:+.1f} points against wa ({usual:.1f})", LITTLE - abs(gap))

    return claim


def above_all(of: Figures) -> Claim:
    others = [label for label in of.groups if label != "joint"]
    best, last = max(others, key=of.average), max(others, key=lambda label: of.last(label, "top1"))
    gaps = of.average("joint") - of.average(best), of.last("joint", "top1") - of.last(last, "top1")
    ends = ", ".join(f"{label} {of.last(label, 'top1'):.1f}" for label in ("joint", last))
    words = f"{of.order(['joint', best])}; after step 5 {ends}"
    return Claim("Joint training is above all", min(gaps) > 0, words, min(gaps))


NOT_CLIPPED = ("clip-off", "bic", "il2m", "eeil")
CLAIMS: list[tuple[tuple[str, ...], Callable[[Figures], Claim]]] = [
    (("ce", "ce+kd"), kd_within_old),
    (("ce", "ce+kd"), kd_not_for_new),
    (
        ("ce", "ce+kd"),
        norms_grow(
            "After training, weights of new classes have larger norms (heads clipped: ce, ce+kd)", ("ce", "ce+kd")
        ),
    ),
    (NOT_CLIPPED, norms_grow("… also in heads that are not clipped (wa without, bic, il2m, eeil)", NOT_CLIPPED)),
    (("wa", "ce+wa"), better("WA > CE+WA", "wa", "ce+wa")),
    (("ce+wa", "ce+kd"), better("CE+WA > CE+KD", "ce+wa", "ce+kd")),
    (("ce+kd", "ce"), better("CE+KD ≥ CE", "ce+kd", "ce")),
    (("wa", "ce+wa", "ce+kd", "ce"), more_than_the_sum),
    (("wa", "ce+kd+wnl"), better("Unit norms in training (WNL) are worse than WA", "wa", "ce+kd+wnl")),
    (("wa", "ce+kd+unit"), better("Unit norms after training are worse than WA", "wa", "ce+kd+unit")),
    (("wa", "norm-1"), little("The choice of the norm matters little", "norm-1")),
    (("wa", "bias"), little("A bias in the head matters little", "bias")),
    (("wa", "random"), little("The choice of exemplars matters little", "random")),
    (("wa", "clip-off"), better("Clipping the head's weights at 0 helps", "wa", "clip-off")),
    (("wa", "bic"), better("WA ≥ BiC at 5 steps", "wa", "bic")),
    (("wa", "eeil"), better("WA > EEIL at 5 steps", "wa", "eeil")),
    (("wa", "icarl"), better("WA > iCaRL at 5 steps", "wa", "icarl")),
    (("bic", "icarl"), better("BiC > iCaRL at 5 steps", "bic", "icarl")),
    ((*FAMILY, *OTHERS), above_all),
]
"""Each with the labels that it is about."""


def asked(groups: Mapping[str, Group], seeds_of: Mapping[str, Group] | None = None) -> list[Claim]:
    """Every claim whose runs are all there, by the seeds that they share; ``seeds_of`` tells what seeds change."""
    known, claims = Figures(groups), []
    spread = Figures(seeds_of or groups).spread()
    for labels, ask in CLAIMS:
        if set(labels) <= set(groups):
            of = known.shared(labels)
            claim, seeds = ask(of), of.seeds()
            likely = 2 * (spread or 0) * (claim.means / len(seeds)) ** 0.5  # two standard deviations
            chance = claim.margin is not None and abs(claim.margin) < likely
            which = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
            claims.append(replace(claim, figures=f"{claim.figures} ({which})", chance=chance))
    return claims
