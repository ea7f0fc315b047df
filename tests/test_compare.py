"""Comparisons and ablations: which runs are executed, which are reused, and what the tables show."""

from __future__ import annotations

import csv
import io
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from equipoise.core.directory import Directory
from equipoise.engine.metrics import TOP1, TOP5, Metric
from equipoise.errors import EquipoiseError, LockedError, UsageError
from equipoise.study.ablate import plan_ablation
from equipoise.study.compare import Cell, CompareListener, ComparisonStatus, compare, plan
from equipoise.study.compare_console import CompareTable
from equipoise.study.console import RunStart
from equipoise.study.export_tables import comparison_latex
from equipoise.study.tables import comparison, notes

TINY: dict[str, dict[str, Any]] = {"train": {"epochs": 1}, "stream": {"steps": "5,5"}, "runtime": {"threads": 1}}
TOP5_FIGURES = ("last_top5", "average_top5_without_first", "average_top5_with_first")
FIGURES = ("last", "average_without_first", "average_with_first", "forgetting", *TOP5_FIGURES)


class Recorder(CompareListener):
    """Records which runs were trained, how far the comparison was after each, and what failed."""

    def __init__(self) -> None:
        self.trained: list[str] = []
        self.statuses: list[ComparisonStatus] = []
        self.failures: list[str] = []

    def run(self, start: RunStart) -> None:
        self.directory = start.directory

    def stage(self, name: str, epochs: int, images: int, done: int) -> None:
        self.trained.append(str(self.directory))

    def compared(self, status: ComparisonStatus) -> None:
        self.statuses.append(status)

    def failed(self, cell: Cell, error: EquipoiseError) -> None:
        self.failures.append(cell.label)


def cells(methods: str = "ce wa", seeds: str = "0 1", steps: tuple[int | str, ...] = (), **more: Any) -> list[Cell]:
    return plan("digits", methods.split(), [int(seed) for seed in seeds.split()], steps, overrides=TINY, **more)


def trained_by(asked: list[Cell], out: Path) -> list[str]:
    """Execute a comparison; return the runs that were not yet in ``out``."""
    recorder = Recorder()
    compare(asked, out, listener=recorder)
    return [str(Path(directory).relative_to(out)) for directory in dict.fromkeys(recorder.trained)]


def lines_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def sheet(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((out / "compare.csv").read_text())))


def entry(label: str, **changes: Any) -> dict[str, Any]:
    """Return an entry with made-up figures of two seeds in two steps: 50 % top-1 at the end, and 80 % top-5."""
    figures = dict.fromkeys(FIGURES, 50.0) | dict.fromkeys(TOP5_FIGURES, 80.0)
    curves = {"accuracy": [60.0, 50.0], "accuracy_top5": [90.0, 80.0]}
    made: dict[str, Any] = {
        "label": label,
        "method": label,
        "steps": "2",
        "seen": [5, 10],
        "runs": [{"seed": seed, "directory": "", **curves, **figures} for seed in (0, 1)],
        "n": 2,
        "mean": figures,
        "std": dict.fromkeys(FIGURES, 1.0),
        **curves,
        "accuracy_std": [1.0, 1.0],
        "accuracy_top5_std": [2.0, 2.0],
    }
    return made | changes


def table_of(*entries: dict[str, Any], panels: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"format": 2, "dataset": "digits", "panels": panels, "entries": list(entries), "failed": []}


def shown(table: dict[str, Any], width: int = 200, pending: tuple[str, ...] = (), metric: Metric = TOP1) -> str:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        console.print(comparison(table, console, pending, metric))
    return capture.get()


def test_compare_json_has_the_figures_of_the_runs(tmp_path: Path) -> None:
    table = compare(cells(seeds="0 1 2"), tmp_path)
    assert json.loads((tmp_path / "compare.json").read_text()) == table
    assert (table["format"], table["dataset"], table["panels"], table["failed"]) == (2, "digits", None, [])
    assert [entry["label"] for entry in table["entries"]] == ["ce", "wa"]
    for entry in table["entries"]:
        assert (entry["method"], entry["steps"], entry["seen"], entry["n"]) == (entry["label"], "5,5", [5, 10], 3)
        assert [run["seed"] for run in entry["runs"]] == [0, 1, 2]
        for run in entry["runs"]:
            assert run["directory"] == f"{entry['method']}/steps-5_5/seed-{run['seed']}"
            for name in ("accuracy", "accuracy_top5"):
                assert run[name] == [line[name] for line in lines_of(tmp_path / run["directory"])]
            summary = json.loads((tmp_path / run["directory"] / "summary.json").read_text())
            assert {name: run[name] for name in FIGURES} == summary
        for name in ("accuracy", "accuracy_top5"):
            accuracy = np.array([run[name] for run in entry["runs"]])
            np.testing.assert_allclose(entry[name], accuracy.mean(0))
            np.testing.assert_allclose(entry[f"{name}_std"], accuracy.std(0, ddof=1))
        for name in FIGURES:
            values = [run[name] for run in entry["runs"]]
            assert entry["mean"][name] == pytest.approx(np.mean(values))
            assert entry["std"][name] == pytest.approx(np.std(values, ddof=1))


def test_one_seed_has_no_spread_and_one_step_no_forgetting(tmp_path: Path) -> None:
    (entry,) = compare(cells("ce", "0", (1,)), tmp_path)["entries"]
    assert entry["std"] == dict.fromkeys(FIGURES)
    assert entry["accuracy_std"] == entry["accuracy_top5_std"] == [None]
    assert entry["mean"]["average_without_first"] is None
    assert shown(table_of(entry)).splitlines()[-1].split()[-1] == "–"
    assert " -- " in comparison_latex(table_of(entry))


def test_only_missing_runs_are_executed(tmp_path: Path) -> None:
    assert trained_by(cells(), tmp_path) == [
        "ce/steps-5_5/seed-0",
        "wa/steps-5_5/seed-0",
        "ce/steps-5_5/seed-1",
        "wa/steps-5_5/seed-1",
    ]
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("metrics.jsonl")}
    assert trained_by(cells(), tmp_path) == []
    assert trained_by(cells(seeds="0 1 2"), tmp_path) == ["ce/steps-5_5/seed-2", "wa/steps-5_5/seed-2"]
    assert trained_by(cells("ce wa joint", "0"), tmp_path) == ["joint/steps-5_5/seed-0"]
    assert trained_by(cells("wa", "0", ("5,5", 2)), tmp_path) == ["wa/steps-2/seed-0"]
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert [entry["label"] for entry in json.loads((tmp_path / "compare.json").read_text())["entries"]] == [
        "wa, steps of 5,5",
        "wa, 2 steps",
    ]


def test_a_method_that_is_named_twice_counts_once() -> None:
    assert len(cells("wa wa", "0 0", (2, 2))) == 1


def test_a_comparison_has_one_writer_and_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    compare(cells("ce", "0"), tmp_path)
    left = tmp_path / ".0123456789abcdef.tmp"
    left.write_text("half a table")
    with Directory(tmp_path).lock(), pytest.raises(LockedError, match="another process is writing to"):
        compare(cells("ce", "0"), tmp_path)
    assert left.exists()  # it may be the other one's
    compare(cells("ce", "0"), tmp_path)
    assert not left.exists()


def test_an_interrupted_comparison_has_a_table_of_the_finished_runs(tmp_path: Path) -> None:
    class Stop(CompareListener):
        def run(self, start: RunStart) -> None:
            if start.settings.method == "wa":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(cells(), tmp_path, listener=Stop())
    table = json.loads((tmp_path / "compare.json").read_text())
    assert [(entry["label"], entry["n"]) for entry in table["entries"]] == [("ce", 1)]
    assert len(sheet(tmp_path)) == 2
    assert r"\bottomrule" in (tmp_path / "compare.tex").read_text()


def test_a_run_that_fails_is_left_out_and_the_others_continue(tmp_path: Path) -> None:
    recipe = tmp_path / "diverging.toml"
    recipe.write_text('[net]\nbackbone = "tiny"\n[memory]\nsize = 50\n[methods.ce.train]\nlr = 1e6\n')
    recorder = Recorder()
    table = compare(cells(recipe=str(recipe)), tmp_path / "out", listener=recorder)
    assert [entry["label"] for entry in table["entries"]] == ["wa"]
    assert table["entries"][0]["n"] == 2
    assert [(run["label"], run["seed"]) for run in table["failed"]] == [("ce", 0), ("ce", 1)]
    assert all("loss" in run["error"] for run in table["failed"])
    assert recorder.failures == ["ce", "ce"]
    assert json.loads((tmp_path / "out" / "compare.json").read_text()) == table


def test_errors_are_found_before_the_first_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown method 'wq'"):
        cells("wa wq")
    with pytest.raises(UsageError, match="cannot be split into 3 equal steps"):
        compare(cells(steps=(2, 3)), tmp_path)
    assert list(tmp_path.iterdir()) == []
    compare(cells("wa", "1"), tmp_path)
    other = plan("digits", ["ce", "wa"], [0, 1], overrides={**TINY, "train": {"epochs": 2}})
    with pytest.raises(UsageError, match=r"train.epochs=1, but this command has 2"):
        compare(other, tmp_path)
    assert not (tmp_path / "ce").exists()


def test_the_status_counts_finished_and_pending_runs(tmp_path: Path) -> None:
    recorder = Recorder()
    compare(cells(), tmp_path, listener=recorder)
    statuses = recorder.statuses
    assert [status.done for status in statuses] == [0, 1, 2, 3, 4]
    assert statuses[0].pending == ["ce", "wa"]
    assert str(statuses[0]) == "0 of 4 runs done"
    assert str(statuses[1]).startswith("1 of 4 runs done, about ")
    assert str(statuses[-1]) == "4 of 4 runs done"
    again = Recorder()
    compare(cells(), tmp_path, listener=again)
    assert str(again.statuses[1]) == "1 of 4 runs done"  # the others are finished already: no time is left


def test_a_board_and_latex_show_the_chosen_metric(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=40, highlight=False)
    boards: list[str] = []

    class Capture(CompareTable):
        def compared(self, status: ComparisonStatus) -> None:
            super().compared(status)
            with console.capture() as capture:
                console.print(self.board)
            boards.append(capture.get())

    with closing(Capture(console=console)) as listener:
        compare(cells("ce", "0"), tmp_path, listener=listener, metric=TOP5)
    assert "digits: top-5 %" in boards[-1]
    top5 = [line["accuracy_top5"] for line in lines_of(tmp_path / "ce/steps-5_5/seed-0")]
    assert f"ce & {top5[0]:.1f} & {top5[1]:.1f} & " in (tmp_path / "compare.tex").read_text()


@pytest.mark.parametrize("height", [40, 8])
def test_a_terminal_shows_the_comparison_above_the_bar(height: int, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=height, highlight=False)
    boards: list[str] = []

    class Capture(CompareTable):
        def run(self, start: RunStart) -> None:
            super().run(start)
            assert self.progress is not None
            with console.capture() as capture:
                console.print(self.progress.get_renderable())
            boards.append(capture.get())

    listener = Capture(console=console)
    compare(cells("ce wa", "0"), tmp_path, listener=listener)
    listener.close()
    assert "starting" in boards[1]  # the bar
    assert "1 of 2 runs done, about" in boards[1]
    last = lines_of(tmp_path / "ce/steps-5_5/seed-0")[-1]["accuracy"]
    assert (f"{last:.1f}" in boards[1]) == (height == 40)  # without room for the table, only the bar is shown
    assert ("…" in boards[1]) == (height == 40)


def test_a_pipe_gets_a_line_per_run(tmp_path: Path) -> None:
    text = io.StringIO()
    compare(cells("ce wa", "0"), tmp_path, listener=CompareTable(console=Console(file=text, width=100)))
    assert "1 of 2 runs done, about" in text.getvalue()
    assert "2 of 2 runs done\n" in text.getvalue()
    assert "0 of 2" not in text.getvalue()


def test_csv_has_the_figures_of_every_step(tmp_path: Path) -> None:
    compare(cells("ce wa", "0 1"), tmp_path)
    lines = sheet(tmp_path)
    assert len(lines) == 2 * 2 * 2
    for line in lines:
        directory = tmp_path / line["method"] / "steps-5_5" / f"seed-{line['seed']}"
        step = lines_of(directory)[int(line["step"]) - 1]
        summary = json.loads((directory / "summary.json").read_text())
        uncorrected = {f"{name}_uncorrected": count for name, count in step["errors_uncorrected"].items()}
        for name, value in {**step, **step["errors"], **uncorrected, **step["figures"], **summary}.items():
            if isinstance(value, list | dict):
                assert name not in line
            elif isinstance(value, str):
                assert line[name] == value
            else:
                assert line[name] == "" if value is None else float(line[name]) == value, name
        assert (line["label"], line["steps"]) == (line["method"], "5,5")


def test_latex_is_complete_and_escaped() -> None:
    text = comparison_latex(table_of(entry("50%_my & {me}~^\\#$")) | {"dataset": "a_b"})
    assert r"50\%\_my \& \{me\}\textasciitilde{}\textasciicircum{}\textbackslash{}\#\$ & " in text
    bare = text.replace(r"\{", "").replace(r"\}", "")
    assert bare.count("{") == bare.count("}")
    assert text.count(r"\begin{") == text.count(r"\end{") == 2
    assert r"on all classes of a\_b learned so far, in 2 steps; mean $\pm$ sample standard deviation over n = 2" in text
    assert "avg: mean over all steps but the first" in text
    assert r"$50.0 \pm 1.0$" in text
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    lines = [line.replace(r"\&", "") for line in body.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in lines} == {5}  # method, 2 steps, avg, avg+1, forgets
    assert r"\begin{tabular}{lrrrrr}" in text


def test_tables_of_top5() -> None:
    table = table_of(entry("wa"))
    title, header, line = shown(table, metric=TOP5).splitlines()
    assert title.startswith("digits: top-5 % by")
    assert header.split() == ["method", "5", "10", "last", "avg", "avg+1", "n"]  # forgetting is known in top-1 only
    assert line.split() == ["wa", "90.0", "80.0", "80.0±1.0", "80.0±1.0", "80.0±1.0", "2"]
    assert "forgets" in notes(table)
    assert "forgets" not in notes(table, TOP5)
    text = comparison_latex(table, TOP5)
    assert r"\caption{Top-5 accuracy in \% on all classes of digits" in text
    assert r"wa & $90.0 \pm 2.0$ & $80.0 \pm 2.0$ & $80.0 \pm 1.0$ & $80.0 \pm 1.0$ \\" in text
    assert "forgets" not in text
    several = comparison_latex(table_of(entry("wa, 2 steps", method="wa"), entry("wa, 5 steps", steps="5")), TOP5)
    assert r"wa & $80.0 \pm 1.0$ & $80.0 \pm 1.0$ & -- & -- \\" in several


def test_latex_of_several_step_counts_has_a_group_for_each() -> None:
    two, five = entry("wa, 2 steps", method="wa"), entry("wa, 5 steps", method="wa", steps="5")
    text = comparison_latex(table_of(entry("ce, 2 steps", method="ce"), two, five))
    assert r" & \multicolumn{2}{c}{2 steps} & \multicolumn{2}{c}{5 steps} \\" in text
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in text
    assert r"ce & $50.0 \pm 1.0$ & $50.0 \pm 1.0$ & -- & -- \\" in text  # it has no run in 5 steps
    assert text.count("\nwa & ") == 1


def test_step_counts_share_the_columns_of_the_terminal() -> None:
    steps = ("wa, 2 steps", [5, 10], [60.0, 50.0]), ("wa, 5 steps", [2, 4, 6, 8, 10], [61.0, 62.0, 63.0, 64.0, 65.0])
    table = table_of(*(entry(label, seen=seen, accuracy=accuracy) for label, seen, accuracy in steps))
    _, header, two, five = shown(table).splitlines()
    assert header.split()[1:7] == ["2", "4", "5", "6", "8", "10"]
    assert two.split()[3:5] == ["60.0", "50.0"]
    assert five.split()[3:8] == ["61.0", "62.0", "63.0", "64.0", "65.0"]
    assert two.index("60.0") == header.index("5") - 3
    for width in (100, 80, 60, 40):
        lines = shown(table, width).splitlines()
        assert max(len(line.rstrip()) for line in lines) <= width
        complete = all(str(classes) in lines[1].split() for classes in (2, 4, 5, 6, 8, 10))
        assert complete or lines.pop().strip() == "some columns do not fit the terminal"
        assert "50.0±1.0" in lines[-2]
        assert not any("…" in line for line in lines)


def test_no_method_is_called_the_winner() -> None:
    assert notes(table_of(entry("wa", n=1))).endswith("one seed: differences of a few points are not meaningful")
    three = notes(table_of(entry("wa", n=3)))
    assert three.endswith("mean ± sample standard deviation over n = 3 seeds; no significance test is made")
    assert "n = 2 seeds; no significance test is made; fewer than three" in notes(table_of(entry("wa")))
    assert "n = 2 to 3 seeds" in notes(table_of(entry("wa"), entry("ce", n=3)))
    assert "winner" not in comparison_latex(table_of(entry("wa"))) + three
    assert r"\textbf" not in comparison_latex(table_of(entry("wa"), entry("ce")))


def test_tables_without_a_finished_run() -> None:
    assert "wa" in shown(table_of(), pending=("wa",))
    assert "wa" not in shown(table_of())
    assert r"\toprule" in comparison_latex(table_of())
    assert notes(table_of())


def test_ablation_changes_one_setting_at_a_time(tmp_path: Path) -> None:
    asked, panels = plan_ablation("digits", "wa", [0], overrides=TINY)
    labels = ["wa", "wa, clip = false", "wa, norm = 1", "wa, bias = true", "wa, selection = random"]
    assert [cell.label for cell in asked] == labels
    assert [panel["labels"] for panel in panels] == [["wa", label] for label in labels[1:]]
    base = asked[0].settings.identity()
    for cell, (section, name) in zip(
        asked[1:], [("fields", "clip"), ("fields", "norm"), ("fields", "bias"), ("memory", "selection")], strict=True
    ):
        other = cell.settings.identity()
        assert other[section].pop(name) != base[section][name]
        assert other == {**base, section: {k: v for k, v in base[section].items() if k != name}}
    table = compare(asked, tmp_path, panels=panels)
    assert json.loads((tmp_path / "compare.json").read_text())["panels"] == panels
    assert [entry["runs"][0]["directory"].split("/")[0] for entry in table["entries"]] == [
        "wa",
        "wa-clip-false",
        "wa-norm-1",
        "wa-bias-true",
        "wa-selection-random",
    ]
    assert trained_by(asked, tmp_path) == []
    more, _ = plan_ablation("digits", "wa", [0, 1], overrides=TINY)
    assert len(trained_by(more, tmp_path)) == 5


def test_ablation_starts_from_the_given_settings() -> None:
    asked, _ = plan_ablation("digits", "ce+kd", [0], overrides={"fields": {"clip": False}, "memory": {"size": 20}})
    assert asked[1].label == "ce+kd, clip = true"
    assert all(cell.settings.memory["size"] == 20 for cell in asked)
    with pytest.raises(UsageError, match="'icarl' has no setting 'clip' to ablate"):
        plan_ablation("digits", "icarl", [0])


def test_panels_show_differences_seed_by_seed() -> None:
    panels = [{"title": "Clipping", "labels": ["wa", "other"]}, {"title": "Norm", "labels": ["wa", "gone"]}]
    other = entry("other")
    for run, last in zip(other["runs"], (53.0, 49.0), strict=True):
        run["last"] = last
    table = table_of(entry("wa"), other, panels=panels)
    lines = shown(table).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["Clipping", "wa", "other", "Norm", "wa"]
    assert "+1.0±2.8" in lines[4]  # of +3 and -1
    assert lines[3].split()[-3:] == ["–", "–", "2"]
    for run, last in zip(other["runs"], (84.0, 78.0), strict=True):
        run["last_top5"] = last
    assert "+1.0±4.2" in shown(table, metric=TOP5).splitlines()[4]  # of +4 and -2
    assert "…" in shown(table, pending=("gone",)).splitlines()[-1]
    text = comparison_latex(table)
    assert text.count(r"\midrule") == 2
    assert r"\multicolumn{6}{l}{\emph{Clipping}} \\" in text
