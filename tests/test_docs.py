"""The documentation: its examples run, its links work, its generated parts are up to date, and its words are plain."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import equipoise.methods
from equipoise import testing
from equipoise.app import card
from equipoise.app.model_files import ModelConfig, ModelImages
from equipoise.engine import results, settings
from equipoise.engine.checkpoint import StageEntry, StageList
from equipoise.learn.fit import Fit
from equipoise.learn.method import Method
from equipoise.methods.registry import registry
from equipoise.study.report import thumbnails
from equipoise.study.run_dir import Manifest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import generate_docs  # noqa: E402

PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"])
AUTHORS_PAGE = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
EXAMPLES = {
    "plugin": ROOT / "examples" / "plugin" / "equipoise_shrink.py",
    "two networks": ROOT / "examples" / "two_networks" / "equipoise_two_networks.py",
}


# ---- generated parts


@pytest.mark.parametrize("page", generate_docs.PARTS)
def test_generated_parts_are_up_to_date(page: str) -> None:
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


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def headings(text: str) -> set[str]:
    return {anchor(line) for line in without_code(text).splitlines() if line.startswith("#")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        name, _, part = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{page.name} links to {target}"
        if part:
            assert part in headings(file.read_text(encoding="utf-8")), f"{page.name} links to {target}"


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


@pytest.mark.parametrize("file", sources(), ids=lambda file: file.relative_to(ROOT).as_posix())
def test_messages_and_docstrings_use_plain_words(file: Path) -> None:
    assert [found for text in string_literals(file) for found in private_words(text)] == []


@pytest.mark.parametrize("file", texts(), ids=lambda file: file.relative_to(ROOT).as_posix())
def test_pages_use_plain_words(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    text = re.sub(r"<!-- old names -->.*?<!-- end of old names -->", "", text, flags=re.DOTALL)
    assert private_words(text) == []
