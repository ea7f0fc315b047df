"""The published results: the page is what the runs say, and a claim is held only if its figures say so."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise.engine.recipes import Settings, parse_overrides, resolve
from equipoise.study.report.runs import Group, Run
from equipoise.study.run import run

RESULTS = Path(__file__).parent.parent / "results"
sys.path.insert(0, str(RESULTS))

from claims import asked  # noqa: E402
from plan import RUNS  # noqa: E402
from queue_runs import keep  # noqa: E402
from render import BEGIN, END, PARTS, render  # noqa: E402


def test_the_page_and_its_figures_are_what_the_runs_say() -> None:
    home = RESULTS.parent
    files = render(RESULTS, (home / "README.md").read_text(encoding="utf-8"))
    pictures = {f"docs/results/{file.name}" for file in (home / "docs" / "results").glob("*.svg")}
    assert set(files) == {"README.md", "docs/results.md", *pictures}
    for name, text in files.items():
        assert text == (home / name).read_text(encoding="utf-8"), f"{name}: run `make results`"


def test_a_readme_that_lost_a_mark_is_not_written() -> None:
    whole = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    for mark in (*(BEGIN.format(name) for name in PARTS), END):
        with pytest.raises(ValueError, match="unpack"):
            render(RESULTS, whole.replace(mark, ""))


def test_every_published_run_is_the_one_its_command_makes() -> None:
    published = [name for name in RUNS if (RESULTS / name / "summary.json").exists()]
    for name in published:
        pairs = list(zip(RUNS[name][0::2], RUNS[name][1::2], strict=True))
        told, overrides = dict(pairs), parse_overrides([value for flag, value in pairs if flag == "--set"])
        config = json.loads((RESULTS / name / "config.json").read_text(encoding="utf-8"))
        made = Settings.of(config["settings"]).identity()
        overrides["runtime"] = made["runtime"]  # the recipe leaves it to the machine
        settings = resolve("cifar100", told["--method"], told["--recipe"], int(told["--seed"]), overrides)
        assert made == settings.identity(), f"{name} was made with other settings: run it again"
        rows = [json.loads(line) for line in (RESULTS / name / "metrics.jsonl").read_text().splitlines()]
        assert [row["seen"] for row in rows] == [20, 40, 60, 80, 100]
        assert rows[-1]["e_n"] + rows[-1]["e_o"] == round(100 * (100 - rows[-1]["top1"]))


def group(label: str, *seeds: list[float], **last: Any) -> Group:
    runs = [
        Run(
            Path(label),
            {"settings": {"seed": seed}},
            [{"step": step, "top1": top, "norms_old": None, **last} for step, top in enumerate(tops, 1)],
            {},
        )
        for seed, tops in enumerate(seeds)
    ]
    return Group(label, runs)


def ask(*groups: Group) -> dict[str, bool]:
    return {claim.says: claim.held for claim in asked({group.label: group for group in groups})}


def test_claims_are_held_by_their_figures_alone() -> None:
    paper = {"ce": 55.3, "ce+wa": 61.5, "ce+kd": 56.4, "wa": 66.6}
    errors = {"ce": {"e_oo": 1333, "e_on": 4027}, "ce+kd": {"e_oo": 1012, "e_on": 4314}}
    norms = {"norms_old": 1.0, "norms_new": 1.5}
    groups = {name: group(name, [83.5, top], **errors.get(name, {}), **norms) for name, top in paper.items()}
    told = ask(*groups.values())
    assert len(told) == 7
    assert all(told.values())  # the paper's own figures
    groups["ce+kd"] = group("ce+kd", [83.5, 54.0], e_oo=1400, e_on=4000, norms_old=1.6, norms_new=1.5)
    wrong = {says for says, held in ask(*groups.values()).items() if not held}
    assert {says[:8] for says in wrong} == {"With dis", "… yet no", "After tr", "CE+KD ≥ "}
    groups["wa"] = group("wa", [99.0, 60.0])  # the first step does not count
    assert not ask(*groups.values())["WA > CE+WA"]
    assert ask(group("wa", [0, 60.0]), group("bias", [0, 60.9])) == {"A bias in the head matters little": True}
    assert ask(group("wa", [0, 60.0]), group("bias", [0, 58.9])) == {"A bias in the head matters little": False}


def test_claims_compare_like_with_like() -> None:
    """A lucky third seed of one method does not count where the other has none."""
    wa, unit = group("wa", [0, 60.0], [0, 60.0], [0, 90.0]), group("ce+kd+unit", [0, 62.0])
    (claim,) = asked({"wa": wa, "ce+kd+unit": unit})
    assert not claim.held
    assert claim.figures == "wa 60.0, ce+kd+unit 62.0 (seed 0)"


def test_a_difference_that_seeds_make_too_is_called_chance() -> None:
    wa, bic = group("wa", [0, 60.0], [0, 61.0], [0, 62.0]), group("bic", [0, 59.0], [0, 61.5], [0, 60.0])
    (claim,) = asked({"wa": wa, "bic": bic})
    assert claim.verdict == "held, within chance"  # 0.8 points; two deviations are 2 √((1 + 1.58) / 2) √(2 / 3) = 1.9
    assert claim.figures == "wa 61.0, bic 60.2; better with 2 of 3 seeds (3 seeds)"
    far = group("bic", [0, 55.0], [0, 57.5], [0, 56.0])
    (claim,) = asked({"wa": wa, "bic": far})
    assert claim.verdict == "held"
    (claim,) = asked({"wa": Group("wa", far.runs), "bic": Group("bic", wa.runs)})
    assert claim.verdict == "**not held**"


def test_one_seed_has_the_chance_of_the_methods_with_several() -> None:
    several = {"wa": group("wa", [0, 60.0], [0, 61.0], [0, 62.0])}
    one = {"wa": group("wa", [0, 70.0]), "bic": group("bic", [0, 69.5])}
    assert [claim.verdict for claim in asked(one, several)] == ["held, within chance"]
    assert [claim.verdict for claim in asked(several | {"bias": group("bias", [0, 60.8])})] == ["held, within chance"]
    assert [claim.verdict for claim in asked(several | {"bias": group("bias", [0, 70.0])})] == ["**not held**"]


def test_what_is_kept_of_a_run_is_small_and_names_no_place(tmp_path: Path) -> None:
    out, place = tmp_path / "secret-place", tmp_path / "kept"
    run("digits", method="wa", steps=2, seed=0, out=out, overrides={"train": {"epochs": 1}})
    keep("lite/wa-0", out, place)
    files = {file.relative_to(place).as_posix() for file in place.rglob("*") if file.is_file()}
    assert files == {"config.json", "metrics.jsonl", "summary.json", "predictions/step-2.safetensors"}
    assert not any(b"secret-place" in (place / name).read_bytes() for name in files)
    kept, first = (Run(at, json.loads((at / "config.json").read_text()), [], {}).said(2)[0] for at in (place, out))
    assert (kept.top1 == first.top1).all()
    assert kept.confidence == pytest.approx(first.confidence, abs=1e-3)


def test_the_gain_of_two_things_together_is_of_four_means() -> None:
    tops = {"ce": 50.0, "ce+wa": 55.0, "ce+kd": 52.0, "wa": 58.7}
    figures = {"e_oo": 1, "e_on": 1, "norms_old": 1.0, "norms_new": 2.0}
    groups = {name: group(name, [0, top], [0, top + 1], **figures) for name, top in tops.items()}
    claim = next(claim for claim in asked(groups) if "together" in claim.says)
    assert claim.held
    assert claim.chance  # 1.7 points: above 2 √½ √(2 / 2) = 1.4, the bound of two means, below 2 √½ √(4 / 2) = 2
