"""The published results: the page shows what the runs contain, and verdicts follow from figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise.core.directory import Directory
from equipoise.engine.recipes import parse_overrides, resolve
from equipoise.engine.results import ErrorCounts, StepResult
from equipoise.engine.settings import Settings
from equipoise.study.report.groups import RunGroup
from equipoise.study.report.runs import RunRecord, read_run
from equipoise.study.run import run

RESULTS = Path(__file__).parent.parent / "results"
sys.path.insert(0, str(RESULTS))

from claims import check_claims  # noqa: E402
from plan import RUNS  # noqa: E402
from queue_runs import keep  # noqa: E402
from render import BEGIN, END, PARTS, render  # noqa: E402


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


def test_every_published_run_has_the_settings_of_its_command() -> None:
    for name in (name for name in RUNS if (RESULTS / name / "summary.json").exists()):
        pairs = list(zip(RUNS[name][0::2], RUNS[name][1::2], strict=True))
        options, overrides = dict(pairs), parse_overrides([value for flag, value in pairs if flag == "--set"])
        config = json.loads((RESULTS / name / "config.json").read_text(encoding="utf-8"))
        stored = Settings.from_identity(config["settings"]).identity()
        overrides["runtime"] = stored["runtime"]  # the recipe leaves it to the machine
        settings = resolve("cifar100", options["--method"], options["--recipe"], int(options["--seed"]), overrides)
        assert stored == settings.identity(), f"{name} was made with other settings: run it again"
        steps = read_run(RESULTS / name).steps
        assert [step.seen for step in steps] == [20, 40, 60, 80, 100]
        last = steps[-1]
        assert last.accuracy is not None
        assert last.errors.e_n + last.errors.e_o == round(100 * (100 - last.accuracy))


def group(label: str, *seeds: list[float], errors: dict[str, int] | None = None, **last: Any) -> RunGroup:
    """Return a group with the given accuracies, one list per seed."""
    counts = ErrorCounts(**errors or {})
    runs = [
        RunRecord(
            Directory(Path(label)),
            {"settings": {"seed": seed}},
            [
                StepResult(step=step, seen=step, new=1, accuracy=accuracy, errors=counts, **last)
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
    errors = {"ce": {"e_oo": 1333, "e_on": 4027}, "ce+kd": {"e_oo": 1012, "e_on": 4314}}
    norms = {"norms_old": 1.0, "norms_new": 1.5}
    groups = {name: group(name, [83.5, top], errors=errors.get(name), **norms) for name, top in paper.items()}
    claims = reproduced(*groups.values())
    assert len(claims) == 7
    assert all(claims.values())  # the paper's own figures
    groups["ce+kd"] = group("ce+kd", [83.5, 54.0], errors={"e_oo": 1400, "e_on": 4000}, norms_old=1.6, norms_new=1.5)
    failed = {statement for statement, held in reproduced(*groups.values()).items() if not held}
    assert {statement[:8] for statement in failed} == {"With dis", "… but no", "After tr", "CE+KD ≥ "}
    groups["wa"] = group("wa", [99.0, 60.0])  # the first step does not count
    assert not reproduced(*groups.values())["WA > CE+WA"]
    assert reproduced(group("wa", [0, 60.0]), group("bias", [0, 60.9])) == {"A bias in the head matters little": True}
    assert reproduced(group("wa", [0, 60.0]), group("bias", [0, 58.9])) == {"A bias in the head matters little": False}


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
        name: group(name, [0, top], [0, top + 1], errors={"e_oo": 1, "e_on": 1}, norms_old=1.0, norms_new=2.0)
        for name, top in accuracies.items()
    }
    claim = next(claim for claim in check_claims(groups) if "together" in claim.statement)
    assert claim.reproduced
    # 1.7 points: above 2 √½ √(2 / 2) = 1.4, the bound of two means, below 2 √½ √(4 / 2) = 2
    assert claim.within_noise
