"""The commands for experiments and the command line as a whole: output, help, completion, exit codes, errors."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

from equipoise.cli.app import app
from equipoise.cli.exit_codes import SUMMARY, ExitCode
from equipoise.cli.experiments import MetricName
from equipoise.engine.metrics import METRICS
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


def commands() -> list[tuple[str, ...]]:
    """Return the words of every command."""
    found: list[tuple[str, ...]] = []
    for name in app:
        if not name.startswith("-"):
            inner = [(name, word) for word in app[name] if not word.startswith("-")]
            found += inner or [(name,)]
    return found


def examples(text: str) -> list[str]:
    """Return the examples at the end of a help text."""
    return [line.strip() for line in text.partition("Examples:\n")[2].splitlines() if line.strip()]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_help_fits_80_columns_and_ends_with_examples_that_parse(
    words: tuple[str, ...], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = cli(*words, "--help").out
    assert max(map(len, text.splitlines())) <= 80
    found = examples(text)
    assert 2 <= len(found) <= 4
    for example in found:
        name, *tokens = shlex.split(example.partition(" > ")[0], comments=True)
        assert name == "equipoise"
        assert tuple(tokens[: len(words)]) == words
        app.parse_args(tokens, exit_on_error=False, print_error=False)


def test_the_examples_of_experiments_run(cli: Cli, tmp_path: Path) -> None:
    save_file({"fc.weight": torch.rand(60, 4)}, tmp_path / "model.safetensors")
    quick = {"run": ("--dry-run", "--threads", "1"), "align": (), "methods": (), "datasets": (), "recipes": ()}
    for name, more in quick.items():
        for example in examples(cli(name, "--help").out):
            if "cifar100" not in example and ".pt" not in example:  # there are no such files here
                ran = cli(*shlex.split(example, comments=True)[1:], *(word for word in more if word not in example))
                assert ran.code == 0, (example, ran.err)


def test_help_joins_the_lines_of_descriptions() -> None:
    lines = [line.strip() for line in (app["learn"].default_command.__doc__ or "").splitlines()]
    (backbone,) = [line for line in lines if line.startswith("Network: lite0, lite1 or lite2")]
    assert backbone.endswith("timm:NAME with random weights; fixed when the model is created (default: lite0).")


def test_help_is_fast() -> None:
    command = [sys.executable, "-m", "equipoise", "run", "--help"]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert time.monotonic() - started < 3  # 0.2 s on an idle machine


# ---- completion


def completion_of(shell: str, cli: Cli) -> str:
    ran = cli("completion", shell)
    assert ran.code == 0
    assert ran.out.rstrip("\n") == app.generate_completion(shell=shell).rstrip("\n"), "nothing is escaped"  # type: ignore[arg-type]
    return ran.out


def complete(script: str, *words: str) -> set[str]:
    """Return what bash offers for the last word."""
    line = " ".join(map(shlex.quote, words))
    code = (
        f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n"
        "$(complete -p equipoise | sed -n 's/.*-F \\([^ ]*\\) .*/\\1/p')\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr == ""
    return {word.strip() for word in done.stdout.splitlines()}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_choices(cli: Cli, tmp_path: Path) -> None:
    script = completion_of("bash", cli)
    (tmp_path / "script").write_text(script)
    subprocess.run(["bash", "-n", tmp_path / "script"], check=True)
    assert complete(script, "equipoise", "pre") == {"predict"}
    assert complete(script, "equipoise", "c") == {"compare", "card", "completion"}
    assert complete(script, "equipoise", "data", "ch") == {"check"}
    assert complete(script, "equipoise", "run", "--see") == {"--seed"}
    assert complete(script, "equipoise", "compare", "--launcher", "pro") == {"processes"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell: str, cli: Cli, tmp_path: Path) -> None:
    script = completion_of(shell, cli)
    assert {"predict", "doctor", "launcher"} <= set(re.findall(r"\w+", script))
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True)


@pytest.mark.skipif(int(version("cyclopts").partition(".")[0]) < 5, reason="older ones list them, but suggest none")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("completion", "bsah"), 'Did you mean "bash"?'),
        (("run", "digits", "--metod", "wa"), "Did you mean --method?"),
        (("compare", "digits", "--launcher", "locl"), 'Did you mean "local"?'),
        (("learn", "model", "photos", "--keep", "feature"), 'Did you mean "features"?'),
    ],
)
def test_mistyped_options_and_choices_suggest_the_nearest(arguments: tuple[str, ...], message: str, cli: Cli) -> None:
    ran = cli(*arguments)
    assert ran.code == ExitCode.ERROR
    assert message in ran.err


def test_a_mistyped_model_or_class_suggests_the_nearest(cli: Cli, model_path: Path) -> None:
    assert model_path.name == "model"
    for command in ("predict", "modle", "x.png"), ("history", "./modell"), ("card", "mdel"), ("suspects", "Model"):
        ran = cli(*command)
        assert ran.code == ExitCode.ERROR
        assert ran.err.rstrip().endswith("does not exist: did you mean model?")
    assert "create a model with `equipoise learn" in cli("undo", "something-else").err
    assert "unknown class 'AA': did you mean 'A'?" in cli("forget", "model", "AA").err


# ---- exit codes


def test_exit_codes_are_in_the_help_and_do_not_change(cli: Cli) -> None:
    assert {code.name: code.value for code in ExitCode} == {"OK": 0, "PROBLEM": 1, "ERROR": 2, "STOPPED": 130}
    assert SUMMARY in cli("--help").out
    assert len(SUMMARY) <= 80
    assert re.findall(r"\b\d+\b", SUMMARY) == [str(code.value) for code in ExitCode]


def test_exit_code_0_1_and_2(cli: Cli, tmp_path: Path) -> None:
    assert cli("datasets").code == ExitCode.OK
    assert cli("data", "check", "cifar100", "--data-root", tmp_path).code == ExitCode.PROBLEM
    assert cli("methods", "wq").code == ExitCode.ERROR  # an error of ours
    assert cli("run", "--epochz").code == ExitCode.ERROR  # an error of the command line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_exit_code_1_if_the_output_cannot_be_written() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "equipoise", "datasets"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == ExitCode.PROBLEM
    assert done.stderr.startswith("equipoise: cannot write the output")


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_exit_code_130_when_stopped(kind: signal.Signals, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.cli.lists.recipe_rows", lambda: signal.raise_signal(kind))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in the background of a shell
    ran = cli("recipes")
    signal.signal(signal.SIGINT, before)
    assert ran.code == ExitCode.STOPPED
    assert ran.err == "\nstopped\n"


# ---- output for programs, and colours


def test_json_of_lists(cli: Cli) -> None:
    methods = json.loads(cli("methods", "--json").out)
    assert {"name", "about", "memory", "teacher", "stores", "paper"} == methods[0].keys()
    assert {row["memory"] for row in methods} == {"memory", "all", "none"}
    wa = json.loads(cli("methods", "wa", "--json").out)
    settings = {row["name"]: row["default"] for row in wa["settings"]}
    assert settings["method.temperature"] == 2.0
    datasets = {row["name"]: row for row in json.loads(cli("datasets", "--json").out)}
    assert datasets["cifar100"]["recipe"] == "cifar100-paper"
    assert datasets["folder"]["data_root"] == "required"
    recipes = {row["name"]: row for row in json.loads(cli("recipes", "--json").out)}
    assert recipes["cifar100-fast"]["dataset"] == "cifar100"


def test_every_command_that_reports_something_has_json() -> None:
    without = {words for words in commands() if "json" not in signature(words)}
    assert without == {("completion",)}


def signature(words: tuple[str, ...]) -> set[str]:
    command = app[words[0]] if len(words) == 1 else app[words[0]][words[1]]
    return set(command.default_command.__annotations__)


def test_json_of_align(cli: Cli, tmp_path: Path) -> None:
    save_file({"fc.weight": torch.tensor([[1.0, 1.0], [4.0, 4.0]])}, tmp_path / "in.safetensors")
    found = json.loads(cli("align", "in.safetensors", "--old", "1", "--out", "out.safetensors", "--json").out)
    assert found == {"gamma": 0.25, "old": 1, "new": 1, "norm_old": 2.0, "norm_new": 8.0, "out": "out.safetensors"}


def test_json_of_card_and_export(cli: Cli, model_path: Path) -> None:
    card = json.loads(cli("card", "model", "--json").out)
    assert card == {"card": cli("card", "model").out.removesuffix("\n")}
    copied = json.loads(cli("export", "model", "copy", "--no-memory", "--json").out)
    assert copied == {"out": "copy", "memory": False}
    assert "Stored images" in cli("card", "copy").out
    if find_spec("onnx") and find_spec("onnxscript"):
        made = json.loads(cli("export", "model", "model.onnx", "--json").out)
        assert made.keys() == {"out", "takes", "pictures", "difference"}
        assert Path(made["out"]).is_file()


COLOUR = re.compile(r"\x1b\[[\d;]*?(?<!\d)(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("run", "digits", *QUICK)], ids=" ".join)
def test_no_color_is_respected(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Both variables are set as in a terminal; without NO_COLOR, there are colours."""
    command = [sys.executable, "-m", "equipoise", *arguments]
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    for extra, coloured in ({}, True), ({"NO_COLOR": "1"}, False):
        options = {"env": environment | extra, "cwd": tmp_path, "timeout": 120}
        done = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
        if not coloured:
            assert not COLOUR.search(done.stdout + done.stderr)
        elif "--help" in arguments:
            assert COLOUR.search(done.stdout)


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
    top1, top5 = "average_without_first average_with_first last", "average_top5_without_first average_top5_with_first"
    assert set(lines[-1]["summary"]) == {*top1.split(), *top5.split(), "last_top5", "forgetting"}
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
    schedule = ("--set", "train.lr_schedule=milestones", "--set", "train.milestones=[5, 7]", "--epochs", "9")
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
    assert words == ["last", "top-5:", "files:", "report:"]
    few = cli("run", "digits", *QUICK, "--quiet", "--set", "stream.classes=5", "--out", "few")
    assert "top-5" not in few.out  # it is always 100


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


def test_compare_shows_the_metric_that_is_asked_for(cli: Cli) -> None:
    assert set(get_args(MetricName)) == METRICS.keys()
    command = ("compare", "digits", "--methods", "ce", "--steps", "2", *QUICK, "--quiet", "--out", "c")
    assert "digits: top-1 % by number of classes learned" in cli(*command).out
    before = Path("c/compare.json").read_text()
    ran = cli(*command, "--metric", "top5")
    assert "digits: top-5 % by number of classes learned" in ran.out
    (entry,) = json.loads(before)["entries"]
    shown = ran.out.splitlines()[2].split()
    assert shown == ["ce", *(f"{value:.1f}" for value in (*entry["accuracy_top5"], *_top5_figures(entry["mean"])))]
    assert "forgets" not in ran.out
    assert r"\caption{Top-5 accuracy in \% on all" in Path("c/compare.tex").read_text()
    assert Path("c/compare.json").read_text() == before  # it has both
    refused = cli(*command, "--metric", "top3")
    assert refused.code == 2
    assert "top3" in refused.err


def _top5_figures(mean: dict[str, float]) -> list[float]:
    return [mean[name] for name in ("last_top5", "average_top5_without_first", "average_top5_with_first")]


def test_ablate_prints_four_panels(cli: Cli) -> None:
    ran = cli("ablate", "digits", "--steps", "2", *QUICK, "--quiet")
    assert ran.code == 0
    for word in ("Clipping the head's weights", "Norm of the weights", "Bias in the head", "Selection of exemplars"):
        assert word in ran.out, word
    assert "one seed: differences of a few points are not meaningful" in ran.out
    assert "wa, selection = random" in ran.out
    assert Path("runs/ablate/compare.json").exists()
    again = cli("ablate", "digits", "--steps", "2", *QUICK, "--quiet", "--metric", "top5")  # reads the finished runs
    assert "digits: top-5 %" in again.out


def test_compare_names_the_runs_that_failed(cli: Cli) -> None:
    Path("wild.toml").write_text('[net]\nbackbone = "tiny"\n[memory]\nsize = 50\n[methods.ce.train]\nlr = 1e6\n')
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
            "icarl classifies with its exemplars, but the memory size is 0: set --memory",
        ),
        (("methods", "wq"), "did you mean 'wa'"),
        (("run", "digits", "--backbone", "resnet3"), "did you mean 'resnet32'"),
        (("run", "digits", "--set", "train.epoch=3"), "did you mean 'epochs'"),
        (("run", "digits", "--set", "method.nrom=2"), "did you mean 'norm'"),
        (("run", "digits", "--set", "data.test_fracton=0.2"), "did you mean 'test_fraction'"),
        (
            ("run", "digits", "--set", "runtime.precision=bf17"),
            "must be one of 32, bf16, auto, got 'bf17': did you mean",
        ),
        (("run", "digits", "--set", "train.milestones=[2,x]"), "must be a list (a whole number each), got [2, 'x']"),
        (("run", "digits", "--track", "wandbb"), "did you mean 'wandb'"),
        (("data", "check", "digts"), "did you mean 'digits'"),
        (("data", "chek", "digits"), 'Did you mean "check"?'),
        (("predcit", "pets"), 'Did you mean "predict"?'),
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
