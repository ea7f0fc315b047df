"""The page of published results grows with the runs: every section renders with none, some and all of its runs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise.engine.metrics import summarise
from equipoise.engine.recipes import parse_overrides, read_recipe, resolve
from equipoise.engine.results import ClassResult, ErrorCounts, StepResult, write_lines
from equipoise.errors import UsageError
from equipoise.study.report.paper import published

RESULTS = Path(__file__).parent.parent / "results"
sys.path.insert(0, str(RESULTS))

import queue_runs  # noqa: E402
from claims import averages_fall, check_claims  # noqa: E402
from evidence import Claim  # noqa: E402
from plan import ABLATIONS, NEWER, PAPER, RUNS, Run  # noqa: E402
from queue_runs import publish  # noqa: E402
from render import render  # noqa: E402
from stored import Groups, read_all  # noqa: E402

README = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
LEVELS = {"wa": 60.0, "bic": 59.0, "eeil": 58.0, "icarl": 57.0, "ce+wa": 55.0, "ce+kd": 50.0, "ce": 46.0, "joint": 70.0}


def settings_of(run: Run) -> dict[str, Any]:
    """Return the settings of a planned run; a recipe that does not exist yet is like another one."""
    overrides = parse_overrides(run.settings)
    try:
        return resolve(run.dataset, run.method, run.recipe, run.seed, overrides).identity()
    except UsageError:
        steps = {} if "stream" in overrides else {"stream": {"steps": 10 if "tiny" in run.recipe else 5}}
        found = resolve("cifar100", run.method, "cifar100-lite", run.seed, overrides | steps).identity()
        return found | {"dataset": run.dataset, "recipe": run.recipe}


def write_run(folder: Path, name: str, average: float | None = None, done: int | None = None) -> None:
    """Write the files of a run whose accuracy falls evenly around its average; ``done`` steps of it, or all."""
    settings, method = settings_of(RUNS[name]), RUNS[name].method
    count = int(settings["stream"]["steps"])
    new = 100 // count
    average = LEVELS.get(method, 50.0) if average is None else average
    steps = []
    for step in range(1, count + 1 if done is None else done + 1):
        accuracy = average + (1 + count / 2 - step if step > 1 else 20)  # the mean of steps 2 to count is the average
        errors = ErrorCounts(e_n=100, e_o=4000, e_on=3000 + 10 * len(method), e_oo=1000 - 10 * len(method))
        steps.append(
            StepResult(
                step=step, seen=new * step, new=new, accuracy=accuracy, accuracy_uncorrected=accuracy - 3,
                accuracy_top5=accuracy + 20, accuracy_top5_uncorrected=accuracy + 15, errors=errors,
                errors_uncorrected=errors, total_old=100 * new * (step - 1), total_new=100 * new,
                per_class=[ClassResult(f"class {c}", accuracy) for c in range(new * step)], per_step=[accuracy] * step,
                norms_old=1.0 if step > 1 else None, norms_new=1.2, gamma=0.8 if step > 1 and "wa" in method else None,
                seconds=60.0,
            )
        )  # fmt: skip
    config = {
        "format": 2, "settings": settings, "classes": [f"class {c}" for c in range(100)], "sizes": [new] * count,
        "command": RUNS[name].command, "commit": "0123456789abcdef", "python": "3.11.7",
        "versions": {"torch": "2.13.0"}, "machine": {"cores": 2, "cpu": "some processor"},
    }  # fmt: skip
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "config.json").write_text(json.dumps(config))
    (folder / name / "metrics.jsonl").write_text(write_lines(steps))
    if done is None:
        (folder / name / "summary.json").write_text(json.dumps(summarise(steps)))


def check_page(files: dict[str, str]) -> str:
    """Check what must hold with any runs: links, pictures and tables are whole."""
    page = files["docs/results.md"]
    assert "None" not in page.replace("(was None)", "")
    assert "nan" not in page
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= anchors
    shown = re.findall(r"(?:\(|src=\")results/([\w-]+\.svg)", page)
    assert {f"docs/results/{name}" for name in shown} == {name for name in files if name.endswith(".svg")}
    tables = re.findall(r"(?:^\|.*\|\n)+", page, re.MULTILINE)
    for table in tables:
        assert len({row.count("|") for row in table.splitlines()}) == 1, table
        assert re.fullmatch(r"\|(---\|)+", table.splitlines()[1]), table
    assert "\n\n\n" not in page
    assert all(page[: page.index(table)].endswith("\n\n") for table in tables)  # otherwise Markdown does not see them
    return page


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the published runs."""
    for name in (name for name in RUNS if (RESULTS / name / "metrics.jsonl").exists()):
        shutil.copytree(RESULTS / name, tmp_path / name)
    return tmp_path


def test_the_page_renders_without_any_run(tmp_path: Path) -> None:
    page = check_page(render(tmp_path, README))
    assert page.count("not run yet") == 9
    assert "| Table 1: misclassified images | not run yet |" in page  # no link to a section that is left out
    assert f"0 of {len(RUNS)} planned runs are finished" in page


def test_the_page_renders_with_five_steps_alone(folder: Path) -> None:
    for name in [name for name in RUNS if not name.startswith(("lite/", "redraw/", "long/", "fast/", "hour/"))]:
        shutil.rmtree(folder / name, ignore_errors=True)
    page = check_page(render(folder, README))
    assert "## 2, 10 and 20 steps" not in page
    assert "### What agrees" in page


def test_the_page_renders_with_all_runs(folder: Path) -> None:
    for name in RUNS:
        if not (folder / name / "predictions").exists():
            write_run(folder, name)
    files = render(folder, README)
    page = check_page(files)
    assert "not run" not in page
    for heading in ("2, 10 and 20 steps", "Pictures of ImageNet", "The paper's network with", "The paper's own recipe"):
        assert f"\n## {heading}" in page
    assert {f"docs/results/curves-{steps}.svg" for steps in (2, 5, 10, 20)} < set(files)
    assert "docs/results/choices-imagenet.svg" in files
    (table_4,) = re.findall(r"^\| `bic` \| \*\*.+ / .+$", page, re.MULTILINE)
    assert table_4 == "| `bic` | **59.0** / 64.9 | **59.0** / 65.1 | **59.0** / 63.5 | **59.0** / 62.1 |"
    assert "| `wa`, `cifar100-fast` | – / 65.1 | **60.0** / 66.6 | **60.0** / 64.5 | **60.0** / 62.6 |" in page
    assert "| 100 | 51.0 | " in page  # steps of 5 classes, wa
    assert re.search(r"^\| `wa` \| 76\.0 \| \*\*80\.0\*\* †? ?\| 10\.0 \| 84\.1 \| 90\.2 \|$", page, re.MULTILINE)
    assert "| average of steps 2–5 | **60.0** | 66.6 |" in page
    for method in NEWER:
        assert re.search(rf"^\| `{method}` \| 1 \| .+ \| \*\*50\.0\*\* \| – \|", page, re.MULTILINE), method
    assert "EEIL > WA (the paper's table, 20 steps only) |" in page


def test_a_run_in_progress_shows_its_finished_steps(folder: Path) -> None:
    for name in (PAPER, "cifar100-long/wa-0"):
        shutil.rmtree(folder / name, ignore_errors=True)
        write_run(folder, name, done=2)
    page = check_page(render(folder, README))
    assert "in progress, with 2 of 5 steps finished" in page
    assert "| 20 | **80.0** | 83.5 | – | – | 100.0 | 1 |" in page
    assert "| 40 | **61.5** | 75.5 | 58.5 | 0.80 | 81.5 | 1 |" in page
    assert "| 60 | not run yet | 68.7 |" in page
    assert "| `wa`, 2 of 5 steps | 80.0 | 61.5 | – | – | – | not finished | 66.6 | 2 |" in page
    assert "| 2 of 5 |" in page  # in the list of runs
    assert "* After step 2: **61.5**, the paper 75.5 (-14.0 points)\n\nThat is more than a point away." in page
    write_run(folder, PAPER, done=3)
    page = check_page(render(folder, README))
    assert (
        "* Average of steps 2–3: **61.0**, the paper 72.1 (-11.1 points)\n* After step 3: **60.5**, the paper 68.7"
        in page
    )


def test_a_run_that_ends_near_the_paper_needs_no_reason(folder: Path) -> None:
    shutil.rmtree(folder / PAPER, ignore_errors=True)
    write_run(folder, PAPER)
    page = check_page(render(folder, README))
    assert (
        "* Average of steps 2–5: **60.0**, the paper 66.6 (-6.6 points)\n* After step 5: **58.5**, the paper 59.2"
        in page
    )
    assert "more than a point away" in page
    for last, far in ((59.2, False), (58.1, True)):
        rows = [json.loads(line) for line in (folder / PAPER / "metrics.jsonl").read_text().splitlines()]
        for row, accuracy in zip(rows, [83.5, 75.5, 68.7, 63.1, last], strict=True):
            row["accuracy"] = accuracy
        (folder / PAPER / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        page = check_page(render(folder, README))
        assert f"* After step 5: **{last}**, the paper 59.2 ({last - 59.2:+.1f} points)" in page
        assert ("more than a point away" in page) == far


def test_sentences_about_settings_follow_the_runs(folder: Path) -> None:
    """They stay true when eeil, rps and bic are run again with the present recipe."""
    for name in ("lite/eeil-0", "lite/rps-0", "lite/bic-1"):
        shutil.rmtree(folder / name, ignore_errors=True)
        write_run(folder, name)
    write_run(folder, "lite/podnet-0")
    page = check_page(render(folder, README))
    (augmented,) = re.findall(r"^\* Images are augmented in the same way .+$", page, re.MULTILINE)
    assert "`eeil` (versions = 12, brightness = 0.247, contrast = 0.8)" in augmented
    assert "`rps` (rotation = 10.0)" in augmented
    assert "does without its changes" not in augmented
    (chosen,) = re.findall(r"^\* The learning rates and the norm were chosen .+$", page, re.MULTILINE)
    assert "`rps` (head_lr = 0.5, widths = [32, 32, 32, 64, 64, 128, 128, 256, 256], pools = [1, 3, 5])" in chosen
    assert "`podnet` (finetune_epochs = 3)" in chosen
    assert "`bic` (bias_lr = 0.03)" in chosen  # and the default of 100 epochs
    assert "it is plain replay with a bias, 4" in page  # il2m


def test_the_upper_bound_is_in_table_2(folder: Path) -> None:
    page = check_page(render(folder, README))
    (row,) = re.findall(
        r"^\| `joint` \|(.+)\n\| – paper, upper bound \| – \| – \| – \| – \| 70\.1 \| – \|$", page, re.MULTILINE
    )
    assert re.fullmatch(r"( [\d.]+ (\([-+][\d.]+\) )?\|){6}", row)


def as_version_1(folder: Path) -> None:
    """Rewrite a run as equipoise 0.1.0 wrote it, while it writes its second step."""
    config = json.loads((folder / "config.json").read_text())
    settings = config["settings"]
    settings["fields"] = {
        {"distill": "distil", "reinit_head": "redraw", "kd_weight": "balance"}.get(name, name): value
        for name, value in settings["fields"].items()
    }
    settings["net"] = {"backbone": settings["net"]["backbone"], "mirror": settings["net"]["flip_tta"]}
    config |= {"format": 1, "command": f"equipoise run cifar100 --out {folder}", "equipoise": "0.1.0"}
    (folder / "config.json").write_text(json.dumps(config))
    counts = {f"{name}{suffix}": 0 for name in ("e_n", "e_o", "e_on", "e_oo") for suffix in ("", "_uncorrected")}
    tops = {"top1": 83.05, "top5": 97.25, "top1_uncorrected": 83.05, "top5_uncorrected": 97.25}
    row = {"step": 1, "seen": 20, "new": 20, **tops, **counts, "per_step": [83.05], "per_class": [83.05] * 20}
    row |= {"gamma": None, "norms_old": None, "norms_new": 23.5, "exemplars": 2000, "seconds": 43188.3}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + '\n{"step": 2, "se')


def test_finished_steps_of_an_old_run_can_be_published(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "secret" / "wa"
    write_run(tmp_path / "secret", PAPER, done=1)
    shutil.move(tmp_path / "secret" / PAPER, source)
    as_version_1(source)
    shutil.rmtree(folder / PAPER, ignore_errors=True)
    assert publish(PAPER, source, folder / PAPER) == "paper/wa-0: 1 steps so far"
    assert {file.name for file in (folder / PAPER).iterdir()} == {"config.json", "metrics.jsonl"}
    assert not any("secret" in file.read_text() for file in (folder / PAPER).iterdir())
    page = check_page(render(folder, README))
    assert "| 20 | **83.0** | 83.5 | – | – | 97.2 | 720 |" in page
    assert "250 epochs per step, SGD with batches of 32" in page


def test_only_the_run_of_that_name_is_published(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no finished step"):
        publish(PAPER, tmp_path, tmp_path / "place")
    write_run(tmp_path, "lite/wa-0")
    with pytest.raises(SystemExit, match="is not lite/ce-0: its command would use"):
        publish("lite/ce-0", tmp_path / "lite/wa-0", tmp_path / "place")
    publish("steps-2/wa-0", *_moved(tmp_path, "steps-2/wa-0"))
    write_run(tmp_path, "steps-2/wa-0", done=1)
    (tmp_path / "steps-2/wa-0/summary.json").unlink()
    with pytest.raises(SystemExit, match="published already"):
        publish("steps-2/wa-0", tmp_path / "steps-2/wa-0", tmp_path / "place")


def _moved(folder: Path, name: str) -> tuple[Path, Path]:
    write_run(folder, name)
    return folder / name, folder / "place"


def test_outdated_runs_are_marked_and_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lite/wa-0", "lite/bic-0"):
        write_run(tmp_path, name)
    config = json.loads((tmp_path / "lite/bic-0/config.json").read_text())
    config["settings"]["fields"]["bias"] = not config["settings"]["fields"]["bias"]
    (tmp_path / "lite/bic-0/config.json").write_text(json.dumps(config))
    page = check_page(render(tmp_path, README))
    assert "| `bic` † | 1 |" in page
    assert "| WA ≥ BiC | yes † |" in page
    assert "| `lite/bic-0` | method.bias = true (was false) |" in page

    def make(command: list[str], check: bool) -> None:
        out = Path(command[-1])
        assert command[command.index("run") + 1 :][:3] == ["cifar100", "--recipe", "cifar100-lite"]
        write_run(out.parents[1], out.relative_to(out.parents[1]).as_posix(), average=63.0)

    work = tmp_path / "work"
    shutil.copytree(tmp_path / "lite/bic-0", work / "lite/bic-0")  # the old run is set aside, not continued
    monkeypatch.setattr(queue_runs, "HERE", tmp_path)
    monkeypatch.setattr("subprocess.run", make)
    queue_runs.execute_all(["lite/wa-0", "lite/bic-0"], [], "data", work, 1)
    assert (work / "lite/bic-0.old1").exists()
    assert not (work / "lite/wa-0").exists()  # not made again
    stored = read_all(tmp_path)
    assert stored.outdated == {}
    bic = stored.runs["lite/bic-0"].summary
    assert bic is not None
    assert bic["average_without_first"] == pytest.approx(63)


def groups_of_table_4(folder: Path, steps: int) -> Groups:
    """Return runs with the averages of Table 4 of the paper."""
    table = published()["cifar100"]["averages"][str(steps)]
    for method, average in table.items():
        if f"steps-{steps}/{method}-0" in RUNS:
            write_run(folder, f"steps-{steps}/{method}-0", average)
    return read_all(folder).groups(f"steps-{steps}", table)


def test_the_papers_own_table_confirms_its_claims_for_each_number_of_steps(tmp_path: Path) -> None:
    by_steps = {}
    for steps in (2, 10, 20):
        by_steps[steps] = groups_of_table_4(tmp_path, steps)
        claims = {claim.statement: claim for claim in check_claims(by_steps[steps])}
        assert all(claim.reproduced for claim in claims.values())
        eeil = "EEIL > WA (the paper's table, 20 steps only)" if steps == 20 else "WA > EEIL"
        assert {"WA ≥ BiC", eeil, "WA > iCaRL", "WA > LwF.MC", "BiC > iCaRL"} < set(claims)
        assert ("WA > EEIL" in claims) == (steps != 20)
    similar = claims["iCaRL, EEIL, BiC and WA achieve similar results"]
    assert similar.evidence.endswith("3.7 points apart, in the paper up to 4.3 (seed 0)")
    none = averages_fall(by_steps, lambda runs: False)
    assert none is None  # no run with five steps
    fall = averages_fall(by_steps | {5: by_steps[2]}, lambda runs: False)
    assert isinstance(fall, Claim)
    assert not fall.reproduced  # EEIL: 60.8 with two steps, 63.6 with ten


def test_the_gain_of_distillation_is_compared_in_the_first_and_last_step(tmp_path: Path) -> None:
    for name in ("steps-10/ce-0", "steps-10/ce+kd-0"):
        write_run(tmp_path, name, 50.0)
    groups = read_all(tmp_path).groups("steps-10", ("ce", "ce+kd"))
    claims = {claim.statement: claim for claim in check_claims(groups)}
    shrinks = claims["The gain of distillation alone shrinks with further steps"]
    assert not shrinks.reproduced
    assert shrinks.evidence == "gain over ce +0.0 in step 2, +0.0 in step 10 (seed 0)"


def test_every_ablation_changes_the_recipe() -> None:
    for folder in ("lite", "tiny"):
        usual = RUNS[f"{folder}/wa-0"]
        try:
            read_recipe(usual.recipe)
        except UsageError:
            continue  # not there yet
        settings = settings_of(usual)
        assert all(settings_of(RUNS[f"{folder}/wa-{name}-0"]) != settings for name in ABLATIONS), folder


def test_commands_name_the_data_set() -> None:
    assert RUNS["tiny/wa-norm-1-0"].command == (
        "equipoise run tiny-imagenet-100 --data-root DIR --recipe tiny-imagenet-lite --method wa --seed 0"
        " --set method.norm=1"
    )
    assert RUNS[PAPER].command.endswith("--recipe cifar100-paper --method wa --seed 0 --threads 1")
