"""What the paper says, asked of our own runs. Every claim is held or not by figures; none is typed by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

from equipoise.study.report.runs import Group

LITTLE = 1.0
"""A difference of the average accuracy, in points, that counts as little."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, whether our runs say so too, and by which figures."""

    says: str
    held: bool
    figures: str


class Figures:
    """Means over seeds, by label."""

    def __init__(self, groups: Mapping[str, Group]) -> None:
        self.groups = groups

    def average(self, label: str) -> float:
        """Over all steps but the first."""
        return float(self.groups[label].values("top1")[:, 1:].mean())

    def last(self, label: str, figure: str) -> float:
        """A figure of the last step."""
        return float(self.groups[label].values(figure)[:, -1].mean())

    def order(self, labels: list[str]) -> str:
        return ", ".join(f"{label} {self.average(label):.1f}" for label in labels)


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
        for row in of.groups[label].runs[0].rows
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
        return Claim(says, held, of.order(labels))

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
        usual = of.average("wa, seed 0")
        gap = of.average(label) - usual
        return Claim(says, abs(gap) <= LITTLE, f"{gap:+.1f} points against wa ({usual:.1f}), one seed")

    return claim


def clipping_helps(of: Figures) -> Claim:
    gap = of.average("wa, seed 0") - of.average("clip-off")
    return Claim("Clipping the head's weights at 0 helps", gap > 0, f"{gap:+.1f} points, one seed")


def above_all(of: Figures) -> Claim:
    others = [label for label in of.groups if label != "joint"]
    best = max(others, key=of.average)
    return Claim("Joint training is above all", of.average("joint") > of.average(best), of.order(["joint", best]))


CLAIMS: list[tuple[tuple[str, ...], Callable[[Figures], Claim]]] = [
    (("ce", "ce+kd"), kd_and_errors),
    (("ce", "ce+kd"), norms_grow),
    (("wa", "ce+wa", "ce+kd", "ce"), in_order("WA > CE+WA > CE+KD ≥ CE", ["wa", "ce+wa", "ce+kd", "ce"])),
    (("wa", "ce+wa", "ce+kd", "ce"), more_than_the_sum),
    (("wa", "ce+kd+wnl"), in_order("Unit norms in training (WNL) are worse than WA", ["wa", "ce+kd+wnl"])),
    (("wa", "ce+kd+unit"), in_order("Unit norms after training are worse than WA", ["wa", "ce+kd+unit"])),
    (("wa, seed 0", "norm-1"), little("The choice of the norm matters little", "norm-1")),
    (("wa, seed 0", "bias"), little("A bias in the head matters little", "bias")),
    (("wa, seed 0", "random"), little("The choice of exemplars matters little", "random")),
    (("wa, seed 0", "clip-off"), clipping_helps),
    (("wa", "bic", "icarl"), in_order("WA ≥ BiC > iCaRL at 5 steps", ["wa", "bic", "icarl"])),
    (("joint", "wa"), above_all),
]
"""Each with the labels that it needs: a claim whose runs are not there yet is not asked."""
