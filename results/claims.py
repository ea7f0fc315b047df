"""What the paper says, asked of our own runs. Every claim is held or not by figures; none is typed by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean

import numpy as np
from plan import FAMILY, OTHERS

from equipoise.study.report.runs import Array, Group

LITTLE = 1.0
"""A difference of the average accuracy, in points, that counts as little."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, whether our runs say so too, and by which figures."""

    says: str
    held: bool
    figures: str


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

    def seeds(self) -> str:
        """How many there are, and which, if it is but one."""
        seeds = [run.settings["seed"] for run in next(iter(self.groups.values())).runs]
        return f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"


def kd_and_errors(of: Figures) -> Claim:
    oo, on = ([of.last(label, error) for label in ("ce", "ce+kd")] for error in ("e_oo", "e_on"))
    return Claim(
        "Distillation alone takes fewer old images for other old classes, e(o,o), yet not fewer for new ones, e(o,n)",
        oo[1] < oo[0] and on[1] >= on[0],
        f"e(o,o) {oo[0]:.0f} without, {oo[1]:.0f} with it; e(o,n) {on[0]:.0f}, {on[1]:.0f}",
    )


def norms_grow(of: Figures) -> Claim:
    pairs = [
        (row["norms_old"], row["norms_new"])
        for label in ("ce", "ce+kd")
        for run in of.groups[label].runs
        for row in run.rows
        if row["norms_old"] is not None
    ]
    shares = [new / old for old, new in pairs]
    larger = sum(share > 1 for share in shares)
    return Claim(
        "After training, weights of new classes have larger norms than those of old ones",
        larger == len(shares),
        f"in {larger} of {len(shares)} steps of ce and ce+kd; {mean(shares):.2f} times as large on average",
    )


def in_order(says: str, labels: list[str]) -> Callable[[Figures], Claim]:
    """From best to worst, by the average."""

    def claim(of: Figures) -> Claim:
        held = all(of.average(better) > of.average(worse) for better, worse in pairwise(labels))
        alone = np.all([of.averages(better) > of.averages(worse) for better, worse in pairwise(labels)], 0)
        each = f"; so in {sum(alone)} of {len(alone)} seeds alone" if len(alone) > 1 else ""
        return Claim(says, held, of.order(labels) + each)

    return claim


def more_than_the_sum(of: Figures) -> Claim:
    both, wa, kd = (of.average(label) - of.average("ce") for label in ("wa", "ce+wa", "ce+kd"))
    return Claim(
        "Distillation and aligning together gain more than the sum of what each gains",
        both > wa + kd,
        f"together {both:+.1f}, aligning {wa:+.1f}, distillation {kd:+.1f} points over ce",
    )


def little(says: str, label: str) -> Callable[[Figures], Claim]:
    def claim(of: Figures) -> Claim:
        usual = of.average("wa")
        gap = of.average(label) - usual
        return Claim(says, abs(gap) <= LITTLE, f"{gap:+.1f} points against wa ({usual:.1f})")

    return claim


def clipping_helps(of: Figures) -> Claim:
    gap = of.average("wa") - of.average("clip-off")
    return Claim("Clipping the head's weights at 0 helps", gap > 0, f"{gap:+.1f} points")


def above_all(of: Figures) -> Claim:
    best = max((label for label in of.groups if label != "joint"), key=of.average)
    return Claim("Joint training is above all", of.average("joint") > of.average(best), of.order(["joint", best]))


CLAIMS: list[tuple[tuple[str, ...], Callable[[Figures], Claim]]] = [
    (("ce", "ce+kd"), kd_and_errors),
    (("ce", "ce+kd"), norms_grow),
    (("wa", "ce+wa", "ce+kd", "ce"), in_order("WA > CE+WA > CE+KD ≥ CE", ["wa", "ce+wa", "ce+kd", "ce"])),
    (("wa", "ce+wa", "ce+kd", "ce"), more_than_the_sum),
    (("wa", "ce+kd+wnl"), in_order("Unit norms in training (WNL) are worse than WA", ["wa", "ce+kd+wnl"])),
    (("wa", "ce+kd+unit"), in_order("Unit norms after training are worse than WA", ["wa", "ce+kd+unit"])),
    (("wa", "norm-1"), little("The choice of the norm matters little", "norm-1")),
    (("wa", "bias"), little("A bias in the head matters little", "bias")),
    (("wa", "random"), little("The choice of exemplars matters little", "random")),
    (("wa", "clip-off"), clipping_helps),
    (("wa", "bic", "icarl"), in_order("WA ≥ BiC > iCaRL at 5 steps", ["wa", "bic", "icarl"])),
    ((*FAMILY, *OTHERS), above_all),
]
"""Each with the labels that it is about."""


def asked(groups: Mapping[str, Group]) -> list[Claim]:
    """Every claim whose runs are all there, by the seeds that they share."""
    known, claims = Figures(groups), []
    for labels, ask in CLAIMS:
        if set(labels) <= set(groups):
            of = known.shared(labels)
            claim = ask(of)
            claims.append(replace(claim, figures=f"{claim.figures} ({of.seeds()})"))
    return claims
