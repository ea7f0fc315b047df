"""Claims of the paper, tested on our runs. Every verdict is computed from figures; none is typed by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import mean

from evidence import Claim, GroupMeans, Usable
from plan import FAMILY, NEWER, OTHERS

from equipoise.engine.metrics import TOP1, Metric
from equipoise.engine.results import StepResult
from equipoise.study.report.groups import RunGroup
from equipoise.study.report.paper import published
from equipoise.study.report.runs import RunRecord

LITTLE = 1.0
"""A difference of the average accuracy, in points, that counts as small."""

TESTS_PER_CLASS = 100
"""Test images of a class of CIFAR-100; runs of equipoise 0.1.0 did not store the number."""

END_GAIN = 16.0
"""Points that WA gains over distillation alone after the last of five steps, "more than 16 %" in Sec. 5.2."""

FAIR = 2.0
"""As many old images are predicted as new classes as the other way round, up to this factor."""

COMPARED = ("icarl", "eeil", "bic", "wa")
"""Methods of Table 4 that keep exemplars."""

Outdated = Callable[[Sequence[RunRecord]], bool]
Test = Callable[[GroupMeans], Claim]


def old_images(step: StepResult) -> int:
    """Return the number of test images of old classes."""
    return step.total_old or TESTS_PER_CLASS * (step.seen - step.new)


def old_error_rate(oo: float, on: float, images: int) -> float:
    """Return the percentage of errors among old images that are not predicted as new classes."""
    return 100 * oo / (images - on)


def kd_within_old(means: GroupMeans) -> Claim:
    (before, after), new = (
        [means.last(label, f"errors.{error}") for label in ("ce", "ce+kd")] for error in ("e_oo", "e_on")
    )
    images = old_images(means.runs()[0].steps[-1])
    shares = [f"{old_error_rate(old, new, images):.1f}" for old, new in zip((before, after), new, strict=True)]
    evidence = (
        f"e(o,o) {before:.0f} without, {after:.0f} with it; as a share of old images not predicted as new classes"
    )
    statement = "With distillation alone, fewer old images are predicted as other old classes, e(o,o)"
    return Claim(statement, after < before, f"{evidence} {shares[0]} and {shares[1]} %")


def kd_not_for_new(means: GroupMeans) -> Claim:
    before, after = (means.last(label, "errors.e_on") for label in ("ce", "ce+kd"))
    statement = "… but not fewer as new classes, e(o,n)"
    return Claim(statement, after >= before, f"e(o,n) {before:.0f} without, {after:.0f} with it")


def kd_gain_shrinks(means: GroupMeans) -> Claim:
    """Test whether a biased teacher limits distillation further (Sec. 3.2): its gain in step 2 and in the last step."""
    gains = [
        means.at("ce+kd", means.metric.accuracy, place) - means.at("ce", means.metric.accuracy, place)
        for place in range(1, means.steps)
    ]
    paper = published()["cifar100"]["curves"].get(str(means.steps)) if means.metric is TOP1 else None
    theirs = [kd - ce for kd, ce in zip(paper["ce+kd"], paper["ce"], strict=True)] if paper else []
    evidence = f"gain over ce {gains[0]:+.1f} in step 2, {gains[-1]:+.1f} in step {means.steps}"
    evidence += f"; the paper {theirs[1]:+.1f} and {theirs[-1]:+.1f}" if theirs else ""
    return Claim("The gain of distillation alone shrinks with further steps", gains[-1] < gains[0], evidence)


def norms_grow(statement: str, labels: Sequence[str]) -> Test:
    """Test whether new classes have larger norms after training, before any correction."""

    def claim(means: GroupMeans) -> Claim:
        steps = [step for label in labels for run in means.groups[label].runs for step in run.steps]
        ratios = [step.norms_new / step.norms_old for step in steps if step.norms_old and step.norms_new is not None]
        larger = sum(ratio > 1 for ratio in ratios)
        names = ", ".join({"clip-off": "wa without clipping"}.get(label, label) for label in labels)
        evidence = f"{names}: in {larger} of {len(ratios)} steps; {mean(ratios):.2f} times as large on average"
        return Claim(statement, larger == len(ratios), evidence)

    return claim


def stores_first_norms(run: RunRecord) -> bool:
    """Return whether the norms of all classes after the first step are known."""
    return run.directory.exists("predictions/step-1.safetensors") and bool(run.steps[-1].norms_old)


def first_norms_equal(means: GroupMeans) -> Claim:
    """Test Figure 4(a) of the paper: in the first step, norms differ less than those of new and old classes later."""
    (run,) = means.runs()[:1]
    last, norms = run.steps[-1], run.predictions(1)[1].norms
    assert norms is not None
    assert last.norms_old is not None
    assert last.norms_new is not None
    ratio, spread = last.norms_new / last.norms_old, norms.max() / norms.min()
    evidence = (
        f"{run.method}: the largest is {spread:.2f} times the smallest, with a standard deviation of "
        f"{100 * norms.std() / norms.mean():.0f} % of the mean; after step {last.step}, those of new classes are "
        f"{ratio:.2f} times as large as those of old ones"
    )
    return Claim("After the first step, the norms of all classes are roughly equal", bool(spread < ratio), evidence)


def across(run: RunRecord) -> tuple[int, int] | None:
    """Return e(o,n) and e(n,o) after the last step, old images predicted as new classes and the other way round."""
    last = run.steps[-1]
    if last.errors.e_no is not None:
        return last.errors.e_on, last.errors.e_no
    if not run.directory.exists(f"predictions/step-{last.step}.safetensors"):
        return None
    found, old = run.predictions(last.step)[0], last.seen - last.new
    as_new, is_new = found.top1 >= old, found.labels >= old
    return int((as_new & ~is_new).sum()), int((is_new & ~as_new).sum())


def knows_across(run: RunRecord) -> bool:
    return across(run) is not None


def _across(means: GroupMeans) -> tuple[dict[str, tuple[float, float]], str]:
    """Return the mean errors across the border by label, and as a sentence."""
    found = {}
    for label, group in means.groups.items():
        pairs = [pair for run in group.runs if (pair := across(run))]
        found[label] = mean(on for on, _ in pairs), mean(no for _, no in pairs)
    return found, "e(o,n) and e(n,o): " + ", ".join(
        f"{label} {on:.0f} and {no:.0f}" for label, (on, no) in found.items()
    )


def fairer(means: GroupMeans) -> Claim:
    """Test Figure 5 of the paper: aligning brings e(o,n), which is far larger without it, and e(n,o) closer."""
    found, evidence = _across(means)
    gaps = {label: abs(on - no) for label, (on, no) in found.items()}
    closer = gaps["ce+wa"] < gaps["ce"] and gaps["wa"] < gaps["ce+kd"]
    return Claim("Aligning makes predictions fairer: e(o,n) and e(n,o) come closer", closer, evidence)


def fair(means: GroupMeans) -> Claim:
    found, evidence = _across(means)
    even = all(max(pair) <= FAIR * min(pair) for pair in found.values())
    return Claim("… and fair: neither is more than twice the other", even, evidence)


def better(statement: str, label: str, other: str) -> Test:
    """Test whether one method has a higher average than another."""

    def claim(means: GroupMeans) -> Claim:
        gaps = means.averages(label) - means.averages(other)
        each = f"; better with {sum(gaps > 0)} of {len(gaps)} seeds" if len(gaps) > 1 else ""
        return Claim(statement, gaps.mean() > 0, means.listed([label, other]) + each, gaps.mean())

    return claim


def more_than_the_sum(means: GroupMeans) -> Claim:
    both, wa, kd = (means.average(label) - means.average("ce") for label in ("wa", "ce+wa", "ce+kd"))
    paper = published()["cifar100"]["averages"].get(str(means.steps), {}) if means.metric is TOP1 else {}
    theirs = [f"{paper[label] - paper['ce']:+.1f}" for label in ("wa", "ce+wa", "ce+kd") if "ce" in paper]
    evidence = f"together {both:+.1f}, aligning {wa:+.1f}, distillation {kd:+.1f} points over ce"
    return Claim(
        "Distillation and aligning together gain more than the sum of both gains",
        both > wa + kd,
        evidence + (f"; the paper {', '.join(theirs)}" if theirs else ""),
        both - wa - kd,
        means=4,  # wa − (ce+wa) − (ce+kd) + ce
    )


def unit_rows_gain_little(means: GroupMeans) -> Claim:
    """Test what Sec. 5.2 says of Variation 4; by its Table 2, it is above Variation 1 and below Variation 2."""
    labels = ("ce", "ce+wa")
    over = [means.average("ce+kd+wnl") - means.average(label) for label in labels]
    paper = published()["cifar100"]["averages"].get(str(means.steps), {}) if means.metric is TOP1 else {}
    theirs = [f"{paper['ce+kd+wnl'] - paper[label]:+.1f}" for label in labels if "ce+kd+wnl" in paper]
    evidence = f"{over[0]:+.1f} points over ce, {over[1]:+.1f} over ce+wa"
    evidence += f"; the paper {' and '.join(theirs)}" if theirs else ""
    statement = "Unit norms in training (WNL), with distillation, are no improvement over aligning without it (CE+WA)"
    return Claim(statement, over[1] <= 0, evidence, -over[1])


def gain_at_the_end(means: GroupMeans) -> Claim:
    ours, paper = (means.last(label, means.metric.accuracy) for label in ("wa", "ce+kd")), published()["cifar100"]
    wa, kd = ours
    theirs = [paper["curves"][str(means.steps)][label][-1] for label in ("wa", "ce+kd")]
    evidence = f"wa {wa:.1f}, ce+kd {kd:.1f}: {wa - kd:+.1f} points; the paper {theirs[0] - theirs[1]:+.1f}"
    statement = f"WA gains more than {END_GAIN:.0f} points over CE+KD after the last step"
    return Claim(statement, wa - kd > END_GAIN, evidence)


def little_change(statement: str, label: str) -> Test:
    """Test whether a variant of wa differs by at most LITTLE."""

    def claim(means: GroupMeans) -> Claim:
        usual = means.average("wa")
        gap = means.average(label) - usual
        evidence = f"{gap:+.1f} points compared with wa ({usual:.1f})"
        return Claim(statement, abs(gap) <= LITTLE, evidence, LITTLE - abs(gap))

    return claim


def similar(means: GroupMeans) -> Claim:
    """Test whether methods are as close to each other as in Table 4 of the paper."""
    averages = {label: means.average(label) for label in COMPARED}
    gap = max(averages.values()) - min(averages.values())
    tables = published()["cifar100"]["averages"].values()
    limit = max(max(table[label] for label in COMPARED) - min(table[label] for label in COMPARED) for table in tables)
    evidence = f"{means.listed(COMPARED)}: {gap:.1f} points apart, in the paper up to {limit:.1f}"
    return Claim("iCaRL, EEIL, BiC and WA achieve similar results", gap <= limit, evidence, limit - gap)


def joint_is_best(means: GroupMeans) -> Claim:
    accuracy = means.metric.accuracy
    others = [label for label in means.groups if label != "joint"]
    best, last = max(others, key=means.average), max(others, key=lambda label: means.last(label, accuracy))
    gaps = (
        means.average("joint") - means.average(best),
        means.last("joint", accuracy) - means.last(last, accuracy),
    )
    ends = ", ".join(f"{label} {means.last(label, accuracy):.1f}" for label in ("joint", last))
    evidence = f"{means.listed(['joint', best])}; after step {means.steps} {ends}"
    return Claim("Joint training is better than every method", min(gaps) > 0, evidence, min(gaps))


def claims_about(groups: Mapping[str, RunGroup], metric: Metric, steps: int) -> list[tuple[tuple[str, ...], Test]]:
    """Return the paper's claims, each with the labels that it needs."""
    not_clipped = tuple(
        label
        for label in ("clip-off", "bic", "il2m", "eeil")
        if label in groups and any(step.norms_old for step in groups[label].runs[0].steps)
    )
    everything = tuple(label for label in (*FAMILY, *OTHERS, *NEWER) if label in groups)
    cifar = metric is TOP1  # the paper reports top-1 on CIFAR-100 and top-5 on ImageNet
    ahead = better("EEIL > WA (the paper's table, 20 steps only)", "eeil", "wa")
    found: list[tuple[tuple[str, ...], Test]] = [
        (("ce", "ce+kd"), kd_within_old),
        (("ce", "ce+kd"), kd_not_for_new),
        (
            ("ce", "ce+kd"),
            norms_grow("After training, weights of new classes have larger norms (clipped heads)", ("ce", "ce+kd")),
        ),
        (not_clipped, norms_grow("… also in heads that are not clipped", not_clipped)),
        (("ce+kd",), first_norms_equal),
        (("ce", "ce+wa", "ce+kd", "wa"), fairer),
        (("ce+wa", "wa"), fair),
        (("wa", "ce+wa"), better("WA > CE+WA", "wa", "ce+wa")),
        (("ce+wa", "ce+kd"), better("CE+WA > CE+KD", "ce+wa", "ce+kd")),
        (("ce+kd", "ce"), better("CE+KD ≥ CE", "ce+kd", "ce")),
        (("ce+kd", "ce"), kd_gain_shrinks),
        (("wa", "ce+wa", "ce+kd", "ce"), more_than_the_sum),
        (("wa", "ce+kd"), gain_at_the_end),
        (("ce", "ce+wa", "ce+kd+wnl"), unit_rows_gain_little),
        (("wa", "ce+kd+wnl"), better("Unit norms in training (WNL) are worse than WA", "wa", "ce+kd+wnl")),
        (("wa", "ce+kd+unit"), better("Unit norms after training are worse than WA", "wa", "ce+kd+unit")),
        (("wa", "norm-1"), little_change("The choice of the norm matters little", "norm-1")),
        (("wa", "bias"), little_change("A bias in the head matters little", "bias")),
        (("wa", "random"), little_change("The selection of exemplars matters little", "random")),
        (("wa", "clip-off"), better("Clipping the head's weights at 0 helps", "wa", "clip-off")),
        (("wa", "bic"), better("WA ≥ BiC", "wa", "bic")),
        (("wa", "eeil"), ahead if cifar and steps == 20 else better("WA > EEIL", "wa", "eeil")),
        (("wa", "icarl"), better("WA > iCaRL", "wa", "icarl")),
        (("wa", "lwf-mc"), better("WA > LwF.MC", "wa", "lwf-mc")),
        (("bic", "icarl"), better("BiC > iCaRL", "bic", "icarl")),
        (COMPARED, similar),
        (everything if {"wa", "joint"} <= set(everything) else (), joint_is_best),
    ]
    skipped = [kd_gain_shrinks] if steps < 3 else []
    skipped += [] if cifar else [similar]
    skipped += [] if cifar and steps == 5 else [gain_at_the_end]  # of Table 2
    return [(labels, test) for labels, test in found if labels and test not in skipped]


NEEDS: dict[Test, Usable] = {first_norms_equal: stores_first_norms, fairer: knows_across, fair: knows_across}
"""Claims that only some runs can be tested on."""


def check_claims(
    groups: Mapping[str, RunGroup],
    noise: Mapping[str, RunGroup] | None = None,
    metric: Metric = TOP1,
    is_outdated: Outdated = lambda runs: False,
) -> list[Claim]:
    """Test every claim whose runs exist, on the seeds that they share; ``noise`` gives the spread over seeds."""
    if not groups:
        return []
    known, claims = GroupMeans(groups, metric), []
    spread = GroupMeans(noise or groups, metric).spread()
    for labels, test in claims_about(groups, metric, known.steps):
        if set(labels) <= set(groups):
            means = known.shared(labels, NEEDS.get(test, lambda run: True))
            if not means.runs():
                continue
            claim, seeds = test(means), means.seeds()
            bound = 2 * (spread or 0) * (claim.means / len(seeds)) ** 0.5  # two standard deviations
            within_noise = claim.margin is not None and abs(claim.margin) < bound
            which = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
            evidence, outdated = f"{claim.evidence} ({which})", is_outdated(means.runs())
            claims.append(replace(claim, evidence=evidence, within_noise=within_noise, outdated=outdated))
    return claims


def averages_fall(by_steps: Mapping[int, Mapping[str, RunGroup]], is_outdated: Outdated) -> Claim | None:
    """Test whether more steps are harder, as for every method in Table 4 of the paper."""
    several = (5, 10, 20)
    labels = [label for label in ("lwf-mc", *COMPARED) if all(label in by_steps.get(n, {}) for n in several)]
    if not labels:
        return None
    rows = {label: [GroupMeans(by_steps[n]).average(label) for n in several] for label in labels}
    falls = all(row[0] > row[1] > row[2] for row in rows.values())
    evidence = "; ".join(f"{label} {', '.join(f'{value:.1f}' for value in row)}" for label, row in rows.items())
    used = [run for n in several for label in labels for run in by_steps[n][label].runs]
    statement = "The average falls from 5 to 10 to 20 steps, for every method"
    return Claim(statement, falls, evidence, outdated=is_outdated(used))
