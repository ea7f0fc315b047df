"""What commands print and write: names that others chose control no terminal, spreadsheet, page or Markdown."""

from __future__ import annotations

import ast
import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from equipoise.app.card import card_text
from equipoise.app.corrections import rename
from equipoise.app.model_dir import ModelDir
from equipoise.app.report import report_model
from equipoise.cli.app import app
from equipoise.core.console import make_console
from equipoise.core.escape import csv_line, json_text, markdown_text, page_text
from equipoise.core.files import write_bytes
from equipoise.core.output import overwrite_line, say, warn
from equipoise.core.progress_line import track
from equipoise.errors import RunError, UsageError
from equipoise.study.export_tables import comparison_csv, comparison_latex
from equipoise.study.report import report
from equipoise.study.run_dir import _commit_of
from tests.conftest import Ran, run_command
from tests.folders import glyph_folder
from tests.models import learn

SOURCE = Path(__file__).parent.parent / "src" / "equipoise"
Cli = Callable[..., Ran]

ODD = "m\x1b[31m\n\u202e\x9b1m"
"""Part of a path that would colour a terminal, end a line and reverse what follows."""
CLASSES = ["\x1b[2Jred", "two\nlines", "\u202eevil", "=1+1", "[x](http:e)", "script"]
"""Names of class folders; two of them are renamed to what no folder can be called."""
RENAMED = {"[x](http:e)": "[x](http://e)", "script": "</script><img src=x>"}
FILES = ["=1+1.png", "\x1b]0;a\x07.png", "a\nb.png", "\u202egpj.png", "@SUM(1).png"]
NAMES = [RENAMED.get(name, name) for name in CLASSES]
QUICK = ("--epochs", 1, "--threads", 1)


def is_clean(text: str) -> bool:
    """Return whether a text has no control characters but line feeds, and nothing that changes its direction."""
    return text.replace("\n", "").isprintable()


def odd_folder(root: Path, start: int = 0, count: int = 6, damaged: bool = True) -> Path:
    """Save glyphs in class folders with names that are meant to do harm, a damaged file and an empty folder."""
    glyph_folder(root, range(6), count=count, start=start)
    for number, name in enumerate(CLASSES):
        (root / chr(ord("A") + number)).rename(root / name)
    folder = root / CLASSES[0]
    for old, new in zip(sorted(folder.iterdir()), FILES, strict=False):
        old.rename(folder / new)
    if damaged:
        (folder / "broken\x1b[31m.png").write_bytes(b"no picture")
        (root / "empty\x1b[31m").mkdir()
    return root


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with models, photos and a checkpoint with such names; it must not be changed."""
    root = tmp_path_factory.mktemp("odd") / ODD
    learn(root / "model", odd_folder(root / "photos"), epochs=1)
    learn(root / "ridge", root / "photos", epochs=None, memory=None, holdout=None, method="ridge", keep="features")
    for place in ("model", "ridge"):
        for old, new in RENAMED.items():
            rename(ModelDir(root / place), old, new)
    odd_folder(root / "train", damaged=False)
    glyph_folder(root / "more", [8, 9], count=6)
    (root / "more" / "I").rename(root / "more" / "blue\x1b[31m\n\u202e")
    odd_folder(root / "test", start=6, count=2)
    save_file({"fc.weight": torch.ones(2, 2)}, root / "head.safetensors")
    return root


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / ODD)


RUN = ("folder", "--data-root", "{}/train", "--steps", 2, "--backbone", "tiny", "--memory", 20, *QUICK)
COMMANDS: dict[str, list[tuple[object, ...]]] = {
    "learn": [
        ("{}/model", "{}/more", *QUICK),
        ("{}/model", "{}/more", "--json", *QUICK),
        ("{}/model", "{}/photos", *QUICK),
        ("{}/gone", "{}/nothing"),
    ],
    "predict": [
        ("{}/model", "{}/photos"),
        ("{}/model", "{}/photos", "--csv", "--top", 3),
        ("{}/model", "{}/photos", "--json", "--top", 3),
        ("{}/model", "{}/gone.png"),
        ("{}/gone", "x.png"),
    ],
    "doctor": [(), ("--json",)],
    "completion": [("bash",), (ODD,)],
    "evaluate": [("{}/model", "{}/test"), ("{}/model", "{}/test", "--json"), ("{}/model", "{}")],
    "history": [("{}/model",), ("{}/model", "--json"), ("{}",)],
    "undo": [("{}/model",), ("{}/model", "--json"), ("{}/gone",)],
    "forget": [
        ("{}/model", NAMES[0], NAMES[1]),
        ("{}/model", NAMES[2], "--json"),
        ("{}/model", f"{NAMES[2]}!"),
    ],
    "inspect": [("{}/model",), ("{}/model", "--json"), ("{}/gone",)],
    "sort": [
        ("{}/model", "{}/photos", "{}/sorted"),
        ("{}/model", "{}/photos", "{}/json", "--json"),
        ("{}/model", "{}/photos", "{}/photos/in"),
    ],
    "rename": [("{}/model", NAMES[0], "red"), ("{}/model", NAMES[3], ODD), ("{}/model", ODD, "x")],
    "merge": [("{}/model", NAMES[1], NAMES[2]), ("{}/model", ODD, "x")],
    "move": [("{}/ridge", "{}/photos/" + CLASSES[0] + "/" + FILES[0], NAMES[2]), ("{}/model", ODD, ODD)],
    "suspects": [("{}/ridge", "{}/photos"), ("{}/ridge", "--json"), ("{}/model",)],
    "serve": [("{}/model", "--host", ODD)],
    "export": [("{}/model", "{}/copy"), ("{}/model", "{}/model"), ("{}/model", "{}/gone/x.onnx")],
    "card": [("{}/model",), ("{}/ridge",), ("{}/gone",)],
    "run": [
        (*RUN, "--out", "{}/run"),
        (*RUN, "--out", "{}/run", "--json"),
        (*RUN, "--dry-run"),
        (*RUN, "--recipe", "{}/gone.toml"),
        (*RUN, "--set", f"{ODD}={ODD}"),
        (*RUN, "--method", ODD),
    ],
    "compare": [(*RUN, "--methods", "ce", "--out", "{}/compared"), (*RUN, "--methods", ODD)],
    "ablate": [(*RUN, "--method", ODD), (*RUN, "--seeds", ODD)],
    "align": [("{}/head.safetensors", "--old", 1, "--out", "{}/out"), ("{}/gone", "--old", 1, "--out", "{}/out")],
    "methods": [(), (ODD,)],
    "datasets": [()],
    "recipes": [()],
    "backbones": [()],
    "report": [("{}/model",), ("{}/ridge", "--json"), ("{}/gone",)],
    "data": [("check", "folder", "--data-root", "{}/photos", "--deep"), ("check", ODD)],
}
"""Commands with names and paths that are meant to do harm; {} is the directory."""
CODES = {"predict": 2, "sort": 2, "serve": 2, "ablate": 2, "data": 1}
"""Exit codes of the first command of each name, where it is not 0: a file is damaged, or the command is refused."""


def test_every_command_is_in_the_list() -> None:
    assert {name for name in app if not name.startswith("-")} <= COMMANDS.keys()


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_prints_a_control_character(command: str, place: Path, cli: Cli) -> None:
    for arguments in COMMANDS[command]:
        ran = cli(command, *(str(argument).replace("{}", str(place)) for argument in arguments))
        assert is_clean(ran.out), arguments
        assert is_clean(ran.err), arguments
        assert "Traceback" not in ran.err
        if "--json" in arguments and ran.code == 0:
            assert [json.loads(line) for line in ran.out.splitlines()]
        if arguments == COMMANDS[command][0]:
            assert ran.code == CODES.get(command, 0), ran.err


# ---- the one place that prints


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def calls_of(file: Path) -> set[str]:
    return {node.func.id for node in nodes_of(file) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


@pytest.mark.parametrize(
    ("name", "place"), [("print", "core/output.py"), ("Console", ""), ("SafeConsole", "core/console.py")]
)
def test_only_one_module_prints(name: str, place: str) -> None:
    """Commands that print by themselves would have to remember to escape."""
    users = {file.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("*.py") if name in calls_of(file)}
    assert users == ({place} if place else set())


def test_lines_and_progress_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\x1b[31m\nb", Path("\u202e"))
    warn("a\rb")
    overwrite_line("a\nb")
    assert list(track([1], 1, ODD, ODD)) == [1]
    assert capsys.readouterr() == ("a\\x1b[31m\\nb\n\\u202e\n", "a\\rb\n\ra\\nb")


def test_tables_are_escaped_before_their_columns_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("name", "number")
    table.add_row("\x1b[31ma\n", "1")
    console = make_console()
    console.print(table, Text("\x1b[2J\u202e"), ":warning: \x9b")
    out = capsys.readouterr().out
    assert is_clean(out)
    assert "\\x1b[31ma\\n" in out
    assert ":warning:" in out
    assert len({len(line) for line in out.splitlines()[:5]}) == 1


# ---- files


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=1+1.png", "'=1+1.png"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\t=1", "'\\t=1"),
        ("\r=1", "'\\r=1"),
        ("＝1", "'＝1"),
        ("a=1", "a=1"),
        ("-", "-"),
        ("a,b", '"a,b"'),
        ("a\x1b\nb", "a\\x1b\\nb"),
        ("a\u202fb\u202e", "a\u202fb\\u202e"),
        (-0.5, "-0.5"),
        (7, "7"),
        (None, '""'),
    ],
)
def test_no_cell_of_a_table_is_a_formula(cell: object, written: str) -> None:
    assert csv_line([cell]) == written


def test_the_table_of_a_comparison_has_no_formulas() -> None:
    text = comparison_csv([{"label": "=1+1", "gain": -0.5}, {"label": "wa", "gain": None}])
    assert list(csv.reader(io.StringIO(text))) == [["label", "gain"], ["'=1+1", "-0.5"], ["wa", ""]]


def test_the_predictions_have_no_formulas(place: Path, cli: Cli) -> None:
    out = cli("predict", place / "model", place / "photos", "--csv", "--top", 6).out
    table = list(csv.reader(io.StringIO(out)))
    assert {len(cells) for cells in table} == {14}
    assert not [cell for cells in table for cell in cells if cell[0] in "=+-@\t\r"]
    assert {float(cells[2]) <= 1 for cells in table[1:]} == {True}


def test_json_keeps_names_exactly_and_shows_no_control_character() -> None:
    value = {"\x9b\u202e\x7f\ud800": ["é", 1.5]}
    text = json_text(value)
    assert text.isascii() == ("é" not in text)
    assert is_clean(text)
    assert json.loads(text) == value


def test_json_has_no_nan() -> None:
    with pytest.raises(RunError, match="not finite"):
        json_text({"accuracy": float("nan")})


@pytest.mark.parametrize(
    "text",
    [*NAMES, "![p](http://e/p.png)", "a | b", "`code`", "<img src=x onerror=alert(1)>", "http://e", "www.e",
     "**b** _i_", "# h", "- item", "1. item", "<!-- c -->", "\\", "&lt;b>", "$x$", "~~s~~", "[a]: http://e"],
)  # fmt: skip
def test_markdown_shows_names_as_they_are(text: str) -> None:
    escaped = markdown_text(text)
    assert is_clean(escaped)
    assert not re.search(r"(?<!\\)[\[\]`|*~$<>]|://|www\.|(?<![\\\w])_", escaped)
    assert not re.match(r"#|- |\d+\. ", escaped)


def test_plain_names_stay_plain_in_markdown() -> None:
    assert markdown_text("red_panda 2 (old), C++") == "red_panda 2 (old), C++"


def test_names_make_no_markup_in_the_card(made: Path) -> None:
    model = ModelDir(made / "model")
    text = model.consistently(lambda config: card_text(config, model.steps_of(config), model.images_of(config)))
    assert is_clean(text)
    assert "](" not in text.replace("\\](", "")
    assert "<img" not in text
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if "held-out images |" in line} == {4}
    written = (made / "model" / "README.md").read_text(encoding="utf-8")
    assert text in written


def test_latex_shows_no_control_character() -> None:
    entry = {"label": "\x1b\\input{x}", "method": "x", "steps": "2", "seen": [2], "n": 1, "mean": {}, "std": {}}
    accuracy: dict[str, Any] = {"accuracy": [50.0], "accuracy_std": [None]}
    means = dict.fromkeys(("last", "average_without_first", "average_with_first", "forgetting"))
    table = {"dataset": "d%\u202e", "panels": None, "entries": [entry | accuracy | {"mean": means, "std": means}]}
    text = comparison_latex(table)
    assert is_clean(text)
    assert "\\textbackslash{}x1b\\textbackslash{}input\\{x\\}" in text


class Scripts(HTMLParser):
    """Collects the JSON of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[Any] = []
        self.images: list[str | None] = []
        self.reading = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.reading = tag == "script" and ("type", "application/json") in attrs
        if tag == "img":
            self.images.append(dict(attrs)["src"])

    def handle_data(self, data: str) -> None:
        if self.reading:
            self.found.append(json.loads(data))
            self.reading = False


@pytest.fixture(scope="module")
def pages(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the page of a model, of a run with odd settings, and the contact sheet of sorted photos."""
    from equipoise.app.sorting import sort_photos
    from equipoise.study.run import run

    folder = tmp_path_factory.mktemp("pages")
    model = report_model(ModelDir(made / "model"), folder / "model.html").page
    overrides: dict[str, dict[str, Any]] = {
        "net": {"backbone": "tiny"},
        "train": {"epochs": 1},
        "runtime": {"threads": 1},
        "memory": {"size": 20},
    }
    run("folder", steps=2, overrides=overrides, data_root=made / "train", out=folder / "run")
    config = json.loads((folder / "run" / "config.json").read_text(encoding="utf-8"))
    config["command"] = config["settings"]["recipe"] = config["settings"]["net"]["x\x1b"] = f"{ODD}</script>"
    text = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").replace('"script"', '"</script><img src=x>"')
    (folder / "run" / "metrics.jsonl").write_text(text, encoding="utf-8")
    config["classes"] = [RENAMED["script"] if name == "script" else name for name in config["classes"]]
    (folder / "run" / "config.json").write_text(json.dumps(config))
    report(folder / "run")
    sort_photos(ModelDir(made / "model").load(images=True), made / "photos", folder / "sorted")
    files = {"model": model, "run": folder / "run" / "report.html", "sheet": folder / "sorted" / "contact-sheet.html"}
    return {name: file.read_text(encoding="utf-8") for name, file in files.items()}


@pytest.mark.parametrize("name", ["model", "run", "sheet"])
def test_no_page_has_control_characters(name: str, pages: dict[str, str]) -> None:
    text = re.sub(r"<script>.*?</script>", "", pages[name], flags=re.DOTALL)  # those are ours
    assert page_text(text.replace("\n", "")) == text.replace("\n", "")
    assert "\\x1b" in text


@pytest.mark.parametrize("name", ["model", "run", "sheet"])
def test_a_name_cannot_end_a_script_or_add_a_picture(name: str, pages: dict[str, str]) -> None:
    page = Scripts(pages[name])
    assert name == "sheet" or len(page.found) >= 3
    assert all(str(source).startswith("data:") for source in page.images)


# ---- paths that the system cannot express


@pytest.mark.parametrize("bad", ["a\0b", "a\ud800b"])
@pytest.mark.parametrize(
    "command",
    [
        ("export", "{}/model", "BAD"),
        ("export", "{}/model", "BAD.onnx"),
        ("export", "BAD", "x"),
        ("sort", "{}/model", "{}/photos", "BAD"),
        ("sort", "{}/model", "BAD", "out"),
        ("report", "{}/model", "--out", "BAD"),
        ("report", "{}/model", "--figures", "BAD"),
        ("report", "BAD"),
        ("card", "BAD"),
        ("learn", "BAD", "{}/photos"),
        ("learn", "new", "BAD"),
        ("predict", "{}/model", "BAD"),
        ("evaluate", "{}/model", "BAD"),
        ("suspects", "{}/ridge", "BAD"),
        ("move", "{}/ridge", "BAD", "=1+1"),
        ("align", "{}/head.safetensors", "--old", "1", "--out", "BAD"),
        ("align", "BAD", "--old", "1", "--out", "x"),
        ("run", "folder", "--data-root", "BAD"),
        ("run", "digits", "--out", "BAD"),
        ("run", "digits", "--recipe", "BAD.toml"),
        ("compare", "digits", "--out", "BAD"),
        ("data", "check", "folder", "--data-root", "BAD"),
    ],
)
def test_a_path_that_cannot_exist_is_one_sentence(command: tuple[str, ...], bad: str, made: Path, cli: Cli) -> None:
    ran = cli(*(word.replace("{}", str(made)).replace("BAD", bad) for word in command))
    assert ran.code in (1, 2)
    assert is_clean(ran.err + ran.out)
    assert len((ran.err + ran.out).splitlines()) in (1, 2)


@pytest.mark.parametrize("bad", ["a\0b", "a\ud800b"])
def test_a_file_with_such_a_name_is_not_written(bad: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a valid path"):
        write_bytes(tmp_path / bad, b"")


# ---- streams that are closed, full, or no longer read


def python(redirect: str, code: str, cwd: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a shell that redirects its streams."""
    line = ["bash", "-c", f'set -o pipefail; "$0" "$@" {redirect}', sys.executable, *flags, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    return subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("redirect", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_become_the_next_file(redirect: str, tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom equipoise.core.output import open_standard_streams, say, warn\n"
        "open_standard_streams()\nfile = open('file', 'w')\nassert file.fileno() > 2\n"
        "say('out')\nwarn('err')\nos.system('echo from a child; echo from a child >&2')\nassert sys.stdin.read() == ''"
    )
    done = python(f"< /dev/null {redirect}" if "<" not in redirect else redirect, code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_text() == ""


FULL = "equipoise: cannot write the output (No space left on device): redirect it to another place"


@pytest.mark.parametrize(
    ("redirect", "code", "err"),
    [
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("> /dev/full", 1, f"{FULL}\n"),
        ("| head -0", 1, ""),
        ("2> /dev/full", 0, ""),
    ],
)
def test_a_command_ends_properly_without_its_streams(redirect: str, code: int, err: str, tmp_path: Path) -> None:
    start = "import sys; from equipoise.__main__ import start; sys.argv[1:] = ['--version']; start()"
    done = python(redirect, start, tmp_path)
    assert (done.returncode, done.stderr) == (code, err)


@pytest.mark.parametrize("arguments", [("datasets",), ("inspect", "{}/model"), ("history", "{}/model", "--json")])
def test_a_full_disk_is_told_from_other_errors(
    arguments: tuple[str, ...], made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w", encoding="utf-8", buffering=1) as full, suppress(OSError):
        monkeypatch.setattr(sys, "stdout", full)
        assert run_command(*(word.replace("{}", str(made)) for word in arguments)) == 1
    assert capsys.readouterr().err == f"{FULL}\n"


def test_an_error_keeps_its_exit_code_where_it_cannot_be_printed(tmp_path: Path) -> None:
    start = "import sys; from equipoise.__main__ import start; sys.argv[1:] = ['nonsense']; start()"
    assert [python(redirect, start, tmp_path).returncode for redirect in ("2>&-", "2> /dev/full")] == [2, 2]


# ---- Python without assertions and docstrings


def test_rules_for_methods_are_checked_without_assert() -> None:
    """``python -O`` leaves out assert statements, and with them the whole contract."""
    for file in (SOURCE / "testing").glob("*.py"):
        assert not [node for node in nodes_of(file) if isinstance(node, ast.Assert)], file


def test_other_assertions_only_tell_types() -> None:
    """Whatever depends on data raises an error of ours; an assertion tells mypy what a type is, and nothing else."""
    for file in SOURCE.rglob("*.py"):
        for node in nodes_of(file):
            if isinstance(node, ast.Assert):
                assert re.fullmatch(r".+ is not None|isinstance\(.+\)", ast.unparse(node.test)), (file, node.lineno)


def test_a_report_without_docstrings_says_what_to_do(tmp_path: Path) -> None:
    code = "from equipoise.core.extras import require\ntry: require('altair', 'report', 'a report')\n"
    code += "except Exception as error: print(type(error).__name__, error)"
    out = python("", code, tmp_path, "-OO").stdout
    assert out.startswith("UsageError a report cannot import altair without docstrings (")
    assert out.endswith("): start Python without -OO and unset PYTHONOPTIMIZE\n")


# ---- git


def test_reading_the_commit_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_text("a")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "a"], check=True)
    os.utime(tmp_path / "inner" / "file", (1, 1))  # git status would refresh the index
    before = (tmp_path / ".git" / "index").read_bytes()
    commit = _commit_of(tmp_path / "inner")
    assert commit is not None
    assert re.fullmatch(r"[0-9a-f]{40}", commit)
    assert (tmp_path / ".git" / "index").read_bytes() == before
