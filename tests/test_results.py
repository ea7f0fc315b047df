"""The published results: the page shows what the runs contain, and verdicts follow from figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from equipoise.core.directory import Directory
from equipoise.engine.metrics import TOP5
from equipoise.engine.results import ErrorCounts, StepResult
from equipoise.study.report.groups import RunGroup
from equipoise.study.report.paper import published
from equipoise.study.report.runs import RunRecord, read_run
from equipoise.study.run import run

RESULTS = Path(__file__).parent.parent / "results"
sys.path.insert(0, str(RESULTS))

from claims import check_claims  # noqa: E402
from plan import RUNS  # noqa: E402
from queue_runs import keep  # noqa: E402
from render import BEGIN, END, PARTS, render  # noqa: E402
from stored import changes, read_all  # noqa: E402


def test_the_page_and_its_figures_are_up_to_date() -> None:
    home = RESULTS.parent
    files = render(RESULTS, (home / "README.md").read_text(encoding="utf-8"))
    pictures = {f"docs/results/{file.name}" for file in (home / "docs" / "results").glob("*.svg")}
    assert set(files) == {"README.md", "docs/results.md", *pictures}
    for name, text in files.items():
        assert text == (home / name).read_text(encoding="utf-8"), f"{name}: run `make results`"


def test_a_readme_without_a_mark_is_not_written() -> None:
    whole = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    for mark in (*(BEGIN.format(name) for name in PARTS), END):
        with pytest.raises(ValueError, match="unpack"):
            render(RESULTS, whole.replace(mark, ""))


def test_every_published_run_has_the_settings_of_its_command_or_is_marked() -> None:
    stored, page = read_all(RESULTS), (RESULTS.parent / "docs" / "results.md").read_text(encoding="utf-8")
    for name, run_record in stored.runs.items():
        plan, steps = RUNS[name], run_record.steps
        assert (name in stored.outdated) == bool(changes(plan, run_record.config["settings"]))
        assert (f"[`{name}`](../results/{name}) †" in page) == (name in stored.outdated)
        command = run_record.config["command"].replace("method.redraw=", "method.reinit_head=")  # its name in 0.1.0
        assert command == plan.command
        assert run_record.settings["dataset"] == plan.dataset
        sizes = run_record.config["sizes"]
        assert [step.seen for step in steps] == [sum(sizes[: step.step]) for step in steps]
        assert len(steps) == len(sizes)
        last = steps[-1]
        if plan.dataset == "cifar100":
            assert last.accuracy is not None
            assert last.seen == 100
            assert last.errors.e_n + last.errors.e_o == round(100 * (100 - last.accuracy))


def group(label: str, *seeds: list[float], **more: Any) -> RunGroup:
    """Return a group with the given accuracies, one list per seed, and further figures of all steps."""
    counts = ErrorCounts(**{name: more.pop(name) for name in ("e_on", "e_no", "e_oo") if name in more})
    runs = [
        RunRecord(
            Directory(Path(label)),
            {"settings": {"seed": seed}},
            [
                StepResult(step=step, seen=step, new=1, accuracy=accuracy, errors=counts, **more)
                for step, accuracy in enumerate(accuracies, 1)
            ],
            {},
        )
        for seed, accuracies in enumerate(seeds)
    ]
    return RunGroup(label, runs)


def reproduced(*groups: RunGroup) -> dict[str, bool]:
    return {claim.statement: claim.reproduced for claim in check_claims({group.label: group for group in groups})}


def test_claims_depend_on_figures_alone() -> None:
    paper = {"ce": 55.3, "ce+wa": 61.5, "ce+kd": 56.4, "wa": 66.6}
    errors = {
        "ce": {"e_oo": 1333, "e_on": 4027}, "ce+kd": {"e_oo": 1012, "e_on": 4314},
        "ce+wa": {"e_on": 700, "e_no": 700}, "wa": {"e_on": 600, "e_no": 600},
    }  # fmt: skip
    norms = {"norms_old": 1.0, "norms_new": 1.5}
    groups = {name: group(name, [83.5, top], **errors.get(name, {}), **norms) for name, top in paper.items()}
    claims = reproduced(*groups.values())
    assert len(claims) == 9
    assert all(claims.values())  # the paper's own figures, with as many errors in both directions
    groups["ce+kd"] = group("ce+kd", [83.5, 54.0], e_oo=1400, e_on=4000, norms_old=1.6, norms_new=1.5)
    failed = {statement for statement, held in reproduced(*groups.values()).items() if not held}
    assert {statement[:8] for statement in failed} == {"With dis", "… but no", "After tr", "CE+KD ≥ "}
    groups["wa"] = group("wa", [99.0, 60.0])  # the first step does not count
    assert not reproduced(*groups.values())["WA > CE+WA"]
    assert reproduced(group("wa", [0, 60.0]), group("bias", [0, 60.9])) == {"A bias in the head matters little": True}
    assert reproduced(group("wa", [0, 60.0]), group("bias", [0, 58.9])) == {"A bias in the head matters little": False}


def whole_paper() -> dict[str, RunGroup]:
    """Return Table 2 of the paper."""
    curves = published()["cifar100"]["curves"]["5"]
    return {label: group(label, curve, e_no=None, norms_old=1.0, norms_new=1.5) for label, curve in curves.items()}


def test_the_gain_at_the_end_is_a_claim_about_five_steps_of_cifar() -> None:
    groups = whole_paper()
    wa, kd = groups["wa"], groups["ce+kd"]
    statement = "WA gains more than 16 points over CE+KD after the last step"
    found = {claim.statement: claim for claim in check_claims({"wa": wa, "ce+kd": kd})}
    assert found[statement].reproduced
    assert found[statement].evidence == "wa 59.2, ce+kd 42.9: +16.3 points; the paper +16.3 (seed 0)"
    less = group("wa", [83.5, 75.5, 68.7, 63.1, 58.8], e_no=None, norms_old=1.0, norms_new=1.5)
    found = {claim.statement: claim for claim in check_claims({"wa": less, "ce+kd": kd})}
    assert not found[statement].reproduced
    shorter = {name: group(name, [0.0] * 4, e_no=None, norms_old=1.0, norms_new=1.5) for name in ("wa", "ce+kd")}
    assert statement not in {claim.statement for claim in check_claims(shorter)}
    assert statement not in {claim.statement for claim in check_claims({"wa": wa, "ce+kd": kd}, metric=TOP5)}


def test_unit_norms_in_training_are_compared_with_both_variations() -> None:
    groups = whole_paper()
    (claim,) = (claim for claim in check_claims(groups) if "no improvement" in claim.statement)
    assert claim.reproduced
    assert claim.evidence == "+2.9 points over ce, -3.2 over ce+wa; the paper +2.9 and -3.3 (seed 0)"
    assert claim.margin == pytest.approx(3.25)
    groups["ce+kd+wnl"] = group("ce+kd+wnl", [83.1, 75.0, 65.0, 57.0, 51.0], e_no=None)
    (claim,) = (claim for claim in check_claims(groups) if "no improvement" in claim.statement)
    assert not claim.reproduced


FAIRER, FAIR = "Aligning makes predictions fairer: e(o,n) and e(n,o) come closer", "… and fair: neither is more"


def across(**pairs: tuple[int, int | None]) -> dict[str, RunGroup]:
    """Return runs with the given e(o,n) and e(n,o)."""
    names = {"ce": "ce", "ce_wa": "ce+wa", "ce_kd": "ce+kd", "wa": "wa"}
    return {
        names[key]: group(names[key], [83.5, 60.0], e_on=on, e_no=no, norms_old=1.0, norms_new=2.0)
        for key, (on, no) in pairs.items()
    }


def test_fairness_compares_errors_across_the_border() -> None:
    usual: dict[str, tuple[int, int | None]] = {
        "ce": (4000, 20),
        "ce_wa": (1000, 600),
        "ce_kd": (4300, 30),
        "wa": (500, 900),
    }
    found = {claim.statement: claim for claim in check_claims(across(**usual))}
    fair = next(claim for statement, claim in found.items() if statement.startswith(FAIR))
    assert found[FAIRER].reproduced
    assert fair.reproduced
    assert fair.evidence == "e(o,n) and e(n,o): ce+wa 1000 and 600, wa 500 and 900 (seed 0)"
    for key, pair in {"wa": (500, 1100), "ce_wa": (1000, 400)}.items():  # too few, and too many, as new classes
        found = {claim.statement: claim for claim in check_claims(across(**usual | {key: pair}))}
        assert found[FAIRER].reproduced
        assert not next(claim for statement, claim in found.items() if statement.startswith(FAIR)).reproduced
    found = {claim.statement: claim for claim in check_claims(across(**usual | {"wa": (30, 4400)}))}
    assert not found[FAIRER].reproduced  # as unfair, the other way round
    statements = {claim.statement for claim in check_claims(across(**usual | {"wa": (500, None)}))}
    assert FAIRER not in statements  # runs of format 1 without predictions do not know
    assert not any(statement.startswith(FAIR) for statement in statements)


def with_predictions(folder: Path, norms: list[float], top1: list[int]) -> RunRecord:
    """Return a run of two steps of two classes that stored norms after the first and answers after the second."""
    files = {
        1: {"labels": torch.tensor([0, 1]), "top1": torch.tensor([0, 1]), "norms_1": torch.tensor(norms)},
        2: {"labels": torch.tensor([0, 1, 2, 3]), "top1": torch.tensor(top1), "norms_1": torch.ones(4)},
    }
    (folder / "predictions").mkdir(parents=True)
    for step, tensors in files.items():
        tensors["confidence"] = torch.ones(len(tensors["labels"]))
        save_file(tensors, folder / f"predictions/step-{step}.safetensors")
    steps = [
        StepResult(step=1, seen=2, new=2, accuracy=100.0),
        StepResult(
            step=2, seen=4, new=2, accuracy=50.0, errors=ErrorCounts(e_no=None), norms_old=1.0, norms_new=1.5,
            total_old=2,
        ),
    ]  # fmt: skip
    config = {"settings": {"seed": 0, "method": folder.name, "fields": {}}}
    return RunRecord(Directory(folder), config, steps, {})


def test_norms_of_the_first_step_are_compared_with_the_later_gap(tmp_path: Path) -> None:
    statement = "After the first step, the norms of all classes are roughly equal"
    for number, (largest, equal) in enumerate([(1.4, True), (1.6, False)]):  # new classes: 1.5 times the old ones
        run = with_predictions(tmp_path / str(number) / "ce+kd", [1.0, largest], [0, 1, 2, 3])
        (claim,) = (c for c in check_claims({"ce+kd": RunGroup("ce+kd", [run])}) if c.statement == statement)
        assert claim.reproduced == equal
        assert f"the largest is {largest:.2f} times the smallest" in claim.evidence
    assert statement not in reproduced(group("ce+kd", [83.5, 60.0], norms_old=1.0, norms_new=1.5))  # nothing is stored


def test_old_runs_take_the_errors_from_their_predictions(tmp_path: Path) -> None:
    """Of the methods with several seeds, only those that stored predictions count."""
    answers = {"ce": [2, 3, 2, 3], "ce+wa": [2, 1, 0, 3], "ce+kd": [2, 2, 3, 3], "wa": [0, 3, 2, 1]}
    groups = {}
    for name, top1 in answers.items():
        first = with_predictions(tmp_path / name, [1.0, 1.0], top1)
        config = {"settings": {**first.settings, "seed": 1}}
        groups[name] = RunGroup(name, [first, RunRecord(Directory(tmp_path / "none"), config, first.steps, {})])
    found = {claim.statement: claim for claim in check_claims(groups)}
    expected = "ce 2 and 0, ce+wa 1 and 1, ce+kd 2 and 0, wa 1 and 1"
    assert found[FAIRER].evidence == f"e(o,n) and e(n,o): {expected} (seed 0)"


def test_claims_compare_common_seeds() -> None:
    """A lucky third seed of one method does not count if the other does not have it."""
    wa, unit = group("wa", [0, 60.0], [0, 60.0], [0, 90.0]), group("ce+kd+unit", [0, 62.0])
    (claim,) = check_claims({"wa": wa, "ce+kd+unit": unit})
    assert not claim.reproduced
    assert claim.evidence == "wa 60.0, ce+kd+unit 62.0 (seed 0)"


def test_a_difference_as_small_as_between_seeds_is_noise() -> None:
    wa, bic = group("wa", [0, 60.0], [0, 61.0], [0, 62.0]), group("bic", [0, 59.0], [0, 61.5], [0, 60.0])
    (claim,) = check_claims({"wa": wa, "bic": bic})
    assert claim.verdict == "yes, within noise"  # 0.8 points; two deviations are 2 √((1 + 1.58) / 2) √(2 / 3) = 1.9
    assert claim.evidence == "wa 61.0, bic 60.2; better with 2 of 3 seeds (3 seeds)"
    far = group("bic", [0, 55.0], [0, 57.5], [0, 56.0])
    (claim,) = check_claims({"wa": wa, "bic": far})
    assert claim.verdict == "yes"
    (claim,) = check_claims({"wa": RunGroup("wa", far.runs), "bic": RunGroup("bic", wa.runs)})
    assert claim.verdict == "**no**"


def test_the_noise_of_one_seed_comes_from_methods_with_several() -> None:
    several = {"wa": group("wa", [0, 60.0], [0, 61.0], [0, 62.0])}
    one = {"wa": group("wa", [0, 70.0]), "bic": group("bic", [0, 69.5])}
    assert [claim.verdict for claim in check_claims(one, several)] == ["yes, within noise"]
    close, far = group("bias", [0, 60.8]), group("bias", [0, 70.0])
    assert [claim.verdict for claim in check_claims(several | {"bias": close})] == ["yes, within noise"]
    assert [claim.verdict for claim in check_claims(several | {"bias": far})] == ["**no**"]


def test_kept_files_are_small_and_contain_no_local_path(tmp_path: Path) -> None:
    out, place = tmp_path / "secret-place", tmp_path / "kept"
    run("digits", method="wa", steps=2, seed=0, out=out, overrides={"train": {"epochs": 1}})
    keep("lite/wa-0", out, place)
    files = {file.relative_to(place).as_posix() for file in place.rglob("*") if file.is_file()}
    assert files == {"config.json", "metrics.jsonl", "summary.json", "predictions/step-2.safetensors"}
    assert not any(b"secret-place" in (place / name).read_bytes() for name in files)
    kept, first = (read_run(directory).predictions(2)[0] for directory in (place, out))
    assert (kept.top1 == first.top1).all()
    assert kept.confidence == pytest.approx(first.confidence, abs=1e-3)


def test_the_joint_gain_is_a_difference_of_four_means() -> None:
    accuracies = {"ce": 50.0, "ce+wa": 55.0, "ce+kd": 52.0, "wa": 58.7}
    groups = {
        name: group(name, [0, top], [0, top + 1], e_oo=1, e_on=1, norms_old=1.0, norms_new=2.0)
        for name, top in accuracies.items()
    }
    claim = next(claim for claim in check_claims(groups) if "together" in claim.statement)
    assert claim.reproduced
    # 1.7 points: above 2 √½ √(2 / 2) = 1.4, the bound of two means, below 2 √½ √(4 / 2) = 2
    assert claim.within_noise
