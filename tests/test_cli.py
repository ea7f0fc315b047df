"""The commands for experiments: what they print, and that an error is one sentence and exit code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import Ran

QUICK = ("--epochs", "1", "--threads", "1")
Cli = Callable[..., Ran]


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom equipoise.cli import main\nfrom equipoise.cli.app import app\n"
        "names = [name for name in app if not name.startswith('-')]\n"
        "for words in [], ['data', 'check'], *([name] for name in names):\n"
        "    try: main([*words, '--help'])\n"
        "    except SystemExit as end: assert not end.code, words\n"
        "print(*names)\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--data-root" in done.stdout
    assert {"learn", "predict", "run", "compare", "data"} <= set(done.stdout.splitlines()[-1].split())


def test_help_is_fast() -> None:
    command = [sys.executable, "-m", "equipoise", "run", "--help"]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert time.monotonic() - started < 3  # 0.2 s on an idle machine


def test_run_prints_a_table_and_the_directory(cli: Cli) -> None:
    ran = cli("run", "digits", *QUICK, "--out", "here")
    assert ran.code == 0
    for word in ("top-1", "γ", "e(o,n)", "1/5", "5/5", "average without step 1", "forgetting", "files: here"):
        assert word in ran.out, word
    again = cli("run", "digits", *QUICK, "--out", "here")
    assert "here after step 5" in again.out
    assert "held-out" not in ran.out
    held_out = cli("run", "digits", *QUICK, "--set", "stream.validation=7", "--out", "there")
    assert "evaluated on 7 held-out training images per class, not on test images" in held_out.out


def test_json_is_one_object_per_line(cli: Cli) -> None:
    ran = cli("run", "digits", *QUICK, "--json", "--set", "method.norm=2", "--set", "memory.selection=random")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    wanted = "step seen new accuracy accuracy_top5 accuracy_uncorrected gamma errors norms_old norms_new seconds"
    assert set(wanted.split()) <= set(lines[0])
    assert set(lines[0]["errors"]) == {"e_n", "e_o", "e_on", "e_oo", "e_no"}
    assert set(lines[-1]["summary"]) == {"average_without_first", "average_with_first", "last", "forgetting"}
    config = json.loads((Path(lines[-1]["directory"]) / "config.json").read_text())
    assert config["settings"]["fields"]["norm"] == 2
    assert config["settings"]["memory"]["selection"] == "random"
    assert config["versions"]["torch"].startswith("2.")


def test_json_of_a_finished_run_has_all_steps(cli: Cli) -> None:
    first = cli("run", "digits", *QUICK, "--json", "--out", "a[/]b")
    again = cli("run", "digits", *QUICK, "--json", "--out", "a[/]b")
    assert first.out == again.out
    assert cli("run", "digits", *QUICK, "--out", "a[/]b").out.rstrip().endswith("report: a[/]b/report.html")


def test_order_may_be_a_list(cli: Cli) -> None:
    plan = json.loads(cli("run", "digits", "--order", "9,8,7,6,5,4,3,2,1,0", "--dry-run", "--json").out)
    assert plan["sizes"] == [2] * 5


def test_a_terminal_without_greek_letters_does_not_end_a_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "equipoise", "run", "digits", *QUICK, "--out", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_exits_early_is_no_error() -> None:
    command = f"{sys.executable} -m equipoise methods | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


def test_methods_lists_settings_and_descriptions(cli: Cli) -> None:
    assert "method.temperature = 2.0" in cli("methods", "wa").out
    lines = [line for line in cli("methods").out.splitlines() if not line.startswith(" ")]
    assert len({line[12:] for line in lines}) == len(lines)  # no two have the same description


def test_a_narrow_terminal_hides_steps_but_cuts_no_figure(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = cli("compare", "digits", "--methods", "ce", "--steps", "10", "--seeds", "0,1", *QUICK, "--quiet").out
    assert "…" not in out
    assert max(len(line.rstrip()) for line in out.splitlines()[:3]) <= 60


def test_dry_run_shows_the_plan_and_writes_nothing(cli: Cli, tmp_path: Path) -> None:
    ran = cli("run", "digits", "--steps", "4,3x2", "--dry-run")
    assert ran.code == 0
    assert "step 1: 4 new classes" in ran.out
    assert "of training on this machine" in ran.out
    assert list(tmp_path.iterdir()) == []
    schedule = ("--set", "train.lr_schedule=milestones", "--set", "train.milestones=5", "--epochs", "9")
    plan = json.loads(cli("run", "digits", "--dry-run", "--json", *schedule).out)
    assert plan["sizes"] == [2] * 5
    assert plan["epochs"] == [9] * 5
    assert plan["seconds"] > 0


def test_a_run_finishes_without_altair(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    ran = cli("run", "digits", *QUICK, "--quiet")
    assert ran.code == 0
    assert ran.err == "no report: a report needs the package altair: pip install 'equipoise[report]'\n"
    rejected = cli("report", "runs/digits-wa-seed0")
    assert rejected.code == 2
    assert "needs the package altair" in rejected.err


def test_quiet_prints_only_the_summary(cli: Cli) -> None:
    ran = cli("run", "digits", *QUICK, "--quiet")
    words = [line.strip().split()[0] for line in ran.out.splitlines() if line]
    assert words == ["last", "files:", "report:"]


def test_compare_prints_and_writes_a_table(cli: Cli) -> None:
    command = ("compare", "digits", "--methods", "ce,wa", "--seeds", "0,1", "--steps", "2", "--steps", "6,2x2", *QUICK)
    ran = cli(*command, "--out", "c")
    assert ran.code == 0
    assert "1 of 8 runs done" in ran.out
    assert "mean ± sample standard deviation over n = 2 seeds; no significance test is made" in ran.out
    table = json.loads(Path("c/compare.json").read_text())
    labels = [f"{method}, {steps}" for method in ("ce", "wa") for steps in ("2 steps", "steps of 6,2x2")]
    assert [entry["label"] for entry in table["entries"]] == labels
    assert all(label in ran.out for label in labels)
    assert Path("c/wa/steps-6_2x2/seed-1/summary.json").exists()
    assert {"compare.csv", "compare.tex"} <= {file.name for file in Path("c").iterdir()}
    assert json.loads(cli(*command, "--out", "c", "--json").out) == table


def test_ablate_prints_four_panels(cli: Cli) -> None:
    ran = cli("ablate", "digits", "--steps", "2", *QUICK, "--quiet")
    assert ran.code == 0
    for word in ("Clipping the head's weights", "Norm of the weights", "Bias in the head", "Selection of exemplars"):
        assert word in ran.out, word
    assert "one seed: differences of a few points are not meaningful" in ran.out
    assert "wa, selection = random" in ran.out
    assert Path("runs/ablate/compare.json").exists()


def test_compare_names_the_runs_that_failed(cli: Cli) -> None:
    Path("wild.toml").write_text('[net]\nbackbone = "tiny"\n[memory]\nsize = 50\n[methods.ce.train]\nlr = 1e30\n')
    ran = cli("compare", "digits", "--methods", "ce,wa", "--recipe", "wild.toml", "--steps", "2", *QUICK, "--quiet")
    assert ran.code == 2
    first, last = ran.err.splitlines()
    assert first.startswith("equipoise: ce, seed 0 failed: ")
    assert last == "equipoise: 1 of 2 runs failed and are not in the table: ce with seed 0"
    assert [line.split()[0] for line in ran.out.splitlines()[2:3]] == ["wa"]


def test_align_corrects_a_file(cli: Cli, tmp_path: Path) -> None:
    weight = torch.tensor([[1.0, 1.0], [4.0, 4.0]])
    save_file({"fc.weight": weight}, tmp_path / "in.safetensors")
    ran = cli("align", "in.safetensors", "--head", "fc.weight", "--old", "1", "--out", "out.safetensors")
    assert ran.code == 0
    assert "γ = 0.2500" in ran.out
    assert load_file(tmp_path / "out.safetensors")["fc.weight"].tolist() == [[1, 1], [1, 1]]


def test_methods_datasets_and_recipes_are_listed(cli: Cli) -> None:
    assert "ce+kd+wnl" in cli("methods").out
    assert "imagenet100-lucir" in cli("datasets").out
    assert "cifar100-paper" in cli("recipes").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "digits", "--method", "wq"), "unknown method 'wq': did you mean 'wa'?"),
        (("run", "digit"), "unknown dataset 'digit': did you mean 'digits'?"),
        (("run", "digits", "--recipe", "digit"), "did you mean 'digits'"),
        (("run", "digits", "--recipe", "cifar100-paper"), "is for the dataset cifar100"),
        (("run", "cifar100", "--data-root", "nowhere"), "the data root nowhere is not a directory"),
        (("run", "imagenet1000"), "--data-root"),
        (("run", "imagenet100", "--data-root", "."), "has no 'train' folder"),
        (("run", "folder", "--data-root", "."), "has no class folders"),
        (("run", "digits", "--steps", "3"), "10 classes cannot be split into 3 equal steps: use one of 1, 2, 5, 10"),
        (("run", "digits", "--steps", "5,4"), "add up to 9, but there are 10"),
        (("run", "digits", "--steps", "-1"), "steps"),
        (("run", "digits", "--memory", "9"), "a memory of 9 exemplars is too small for 10 classes"),
        (("run", "digits", "--order", "sideways"), "unknown class order 'sideways'"),
        (("run", "digits", "--set", "epochs=3"), "write SECTION.NAME=VALUE"),
        (("run", "digits", "--set", "trian.epochs=3"), "did you mean 'train'"),
        (
            ("run", "digits", "--set", "data.size=3"),
            "unknown option of the dataset digits 'size' (known: test_fraction)",
        ),
        (("run", "digits", "--seed", "x"), "seed"),
        (("run", "digits", "--epochz", "3"), "--epoch"),
        (("run", "digits", "--out", "file/inside"), "(Not a directory): choose another place"),
        (("compare", "digits", "--seeds", "a"), "use whole numbers"),
        (("compare", "digits", "--methods", "wa,wb"), "unknown method 'wb'"),
        (("compare", "digits", "--steps", "5", "--steps", "3"), "cannot be split into 3 equal steps"),
        (("compare", "digits", "--out", "file/inside"), "(Not a directory): choose another place"),
        (("ablate", "digits", "--method", "icarl"), "the method 'icarl' has no setting 'clip' to ablate"),
        (("ablate", "digits", "--seeds", "0,x"), "use whole numbers"),
        (("align", "gone.pt", "--old", "3", "--out", "x"), "does not exist"),
        (("align", "file", "--old", "3", "--out", "x"), "is not a checkpoint that torch can read"),
        (("align", "whole.pt", "--old", "3", "--out", "x"), "without running code"),
        (("align", "head.safetensors", "--old", "1", "--out", "nowhere/x.safetensors"), "choose another"),
        (("align", "head.safetensors", "--old", "1", "--out", "."), "choose another"),
        (
            ("align", "head.safetensors", "--old", "2", "--out", "x"),
            "must be between 1 and 1 for a head of 2 classes, got 2",
        ),
        (("align", "head.safetensors", "--head", "fc.w", "--old", "1", "--out", "x"), "did you mean 'fc.weight'"),
        (("run", "digits", "--set", "data.test_fraction=0"), "above 0 and below 1"),
        (("run", "digits", "--set", "augment.mean=1,2,3"), "augment.mean and augment.std need one value"),
        (
            ("run", "digits", "--memory", "0", "--method", "icarl", *QUICK),
            "icarl classifies by its exemplars, but the memory size is 0: set --memory",
        ),
        (("methods", "wq"), "did you mean 'wa'"),
        (("nonsense",), "nonsense"),
    ],
)
def test_an_error_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], message: str, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a directory")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "whole.pt")
    save_file({"fc.weight": torch.ones(2, 2)}, tmp_path / "head.safetensors")
    ran = cli(*arguments)
    assert ran.code == 2
    assert message in ran.err
    assert ran.err.startswith("equipoise: ")
    assert len(ran.err.strip().splitlines()) == 1
    assert ran.out == ""
