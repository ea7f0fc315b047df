"""Write the parts of the documentation that come from the code: ``python tools/generate_docs.py``.

A part stands between two comments in a page: ``<!-- generated: NAME -->`` and ``<!-- end of NAME -->``.
tests/test_docs.py fails if a part is out of date.

``WHOLE_PAGES`` are the pages of the site that come from the code or a notebook alone. They are no files: ``make docs``
writes them into the site (see tools/docs_site.py).
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import shlex
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cyclopts import App, Group
from docstring_parser import Docstring
from docstring_parser import parse as parse_docstring

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import notebooks  # noqa: E402
from draw_packages import draw_packages, list_modules  # noqa: E402

import equipoise  # noqa: E402
from equipoise.cli.app import app  # noqa: E402
from equipoise.cli.exit_codes import ExitCode  # noqa: E402
from equipoise.core.config import field_docs  # noqa: E402
from equipoise.data.augment import Augment  # noqa: E402
from equipoise.data.memory import Memory  # noqa: E402
from equipoise.engine import results, settings  # noqa: E402
from equipoise.engine.recipes import read_recipe, recipe_names  # noqa: E402
from equipoise.learn.runtime import Runtime  # noqa: E402
from equipoise.learn.schedule import Schedule  # noqa: E402
from equipoise.methods.registry import registry  # noqa: E402
from equipoise.study.report import thumbnails  # noqa: E402

WORDS = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def json_type(hint: Any) -> str:
    """Describe a type hint as a type of JSON.

    >>> json_type(list[float | None]), json_type(dict[str, float])
    ('list of numbers or null', 'object of numbers')
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint == results.Label:
        return "string, number or boolean"
    if origin in (Union, types.UnionType):
        return " or ".join(json_type(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(f'`"{value}"`' for value in arguments)
    if origin in (list, dict):
        kinds = "list" if origin is list else "object"
        if arguments[-1] == results.Label:
            return f"{kinds} of strings, numbers or booleans"
        first, *rest = json_type(arguments[-1]).split(" or ")
        return f"{kinds} of {' or '.join([f'{first}s', *rest])}"
    return WORDS.get(hint) or f"`{hint.__name__}`"


def schema_table(cls: type) -> str:
    """Return the fields of a dataclass as they are stored in JSON."""
    docs, hints = field_docs(cls), get_type_hints(cls)
    rows = [f"| `{f.name}` | {json_type(hints[f.name])} | {docs[f.name]} |" for f in dataclasses.fields(cls)]
    return "\n".join(["| key | type | meaning |", "|---|---|---|", *rows]).replace("None", "null")


def settings_table(cls: type) -> str:
    """Return the fields of a settings class with their defaults."""
    docs = {name: text.split("  ")[0] for name, text in field_docs(cls).items()}  # the first paragraph
    rows = [f"| `{f.name}` | `{f.default!r}` | {docs[f.name]} |" for f in dataclasses.fields(cls) if f.init]
    return "\n".join(["| field | default | meaning |", "|---|---|---|", *rows])


def renamed_settings() -> str:
    """Return the settings of 0.1.0 that have another name now."""
    rows = [
        f"| `{section}.{old}` | `{section}.{new}` |"
        for section, names in settings.RENAMED.items()
        for old, new in names.items()
    ]
    return "\n".join(["| 0.1.0 | now |", "|---|---|", *rows]).replace("fields.", "method.")


def renamed_keys(names: Mapping[str, str]) -> str:
    """Return the JSON keys of format 1 that have another name now."""
    rows = [f"| `{old}` | `{new}` |" for old, new in names.items()]
    return "\n".join(["| format 1 | format 2 |", "|---|---|", *rows])


def routes_table() -> str:
    """Return a table of the API's routes."""
    from equipoise.serve.api import make_app  # an extra
    from equipoise.serve.service import Service

    paths = make_app(Service(Path("model"), Path("pictures"))).openapi()["paths"]
    rows = ["| request | what it does |", "|---|---|"]
    for path, methods in paths.items():
        for method, facts in methods.items():
            first = facts["description"].partition("\n\n")[0].replace("``", "`")
            rows.append(f"| `{method.upper()} {path}` | {' '.join(first.split())} |")
    return "\n".join(rows)


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/reference/api.md": {"python": lambda: python_reference()},
    "docs/design.md": {"packages": draw_packages, "modules": list_modules},
    "docs/formats.md": {
        name: partial(schema_table, getattr(results, name)) for name in ("StepResult", "ErrorCounts", "ClassResult")
    },
    "docs/glossary.md": {
        "renamed settings": renamed_settings,
        "renamed keys": partial(renamed_keys, results.RENAMED),
        "renamed kinds": partial(renamed_keys, thumbnails.RENAMED),
    },
    "docs/reference/http.md": {"routes": routes_table},
    "docs/reference/method.md": {
        "Schedule": partial(settings_table, Schedule),
        "Memory": partial(settings_table, Memory),
    },
}
"""What is generated in which page."""


# ---- the command line

USER_PAGES = ("tutorials", "how-to")
"""Folders of pages whose commands are shown as examples."""
EXAMPLES = 4
"""Examples per command, at most."""


def shell_commands(text: str) -> Iterator[str]:
    r"""Yield the commands in the shell blocks of a page, each on one line, with its comment.

    >>> list(shell_commands("```sh\nequipoise undo \\\n  pets  # the last step\n```"))
    ['equipoise undo pets  # the last step']
    """
    for block in re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        for line in re.sub(r" *\\\n *", " ", block).splitlines():
            if line.strip() and not line.startswith("#"):
                yield line.strip()


def cli_commands() -> dict[str, App]:
    """Return every command by the words that call it, in the order of ``--help``."""
    found: dict[str, App] = {}
    for name in app:
        if not name.startswith("-"):
            below = {f"{name} {other}": app[name][other] for other in app[name] if not other.startswith("-")}
            found |= below or {name: app[name]}
    return dict(sorted(found.items(), key=lambda item: app[item[0].split()[0]].sort_key or 0))


def cli_examples() -> dict[str, list[str]]:
    """Return examples of each command: those that its help ends with, then those in tutorials and guides."""
    found: dict[str, list[str]] = {name: [] for name in cli_commands()}
    for name, command in cli_commands().items():
        epilogue = (command.help_epilogue or "").partition("Examples:")[2]
        found[name] += [re.sub(r" {2,}#", "  #", line.strip()) for line in epilogue.splitlines() if line.strip()]
    for page in sorted(page for folder in USER_PAGES for page in (ROOT / "docs" / folder).glob("*.md")):
        for line in shell_commands(page.read_text(encoding="utf-8")):
            words = shlex.split(line, comments=True)
            names = [name for name in (" ".join(words[1:3]), "".join(words[1:2])) if name in found]
            if words[:1] == ["equipoise"] and names and "…" not in words:
                found[names[0]].append(re.sub(r" {2,}#", "  #", line))
    return {name: _unlike(lines)[:EXAMPLES] for name, lines in found.items()}


def _unlike(lines: list[str]) -> list[str]:
    """Return the lines that differ in more than their comment and their arguments' values."""
    seen: dict[tuple[str, ...], str] = {}
    for line in lines:
        words = shlex.split(line, comments=True)
        options = tuple(sorted(word for word in words if word.startswith("-")))
        seen.setdefault((*options, str(len(words))), line)
    return list(seen.values())


def _docstring(thing: Any) -> Docstring:
    return parse_docstring(inspect.getdoc(thing) or "")


def _options(command: App) -> Iterator[str]:
    """Yield a definition list of the arguments and options of a command."""
    for argument in command.assemble_argument_collection(parse_docstring=True):
        if not argument.show:
            continue
        parameter, field = argument.parameter, argument.field_info
        choices = argument.get_choices()
        flag = argument.hint is bool or argument.hint == bool | None
        positional = argument.index is not None
        name = argument.names[0].lstrip("-").upper() if positional else ", ".join(argument.names)
        name = f"[{name}]" if positional and not argument.required else name
        value = "" if positional or flag else f" {_value_name(argument.hint)}"
        many = "…" if field.kind is field.VAR_POSITIONAL else ""
        text = " ".join((parameter.help or "").split())
        if choices:
            text += f" One of {', '.join(f'`{choice}`' for choice in choices)}."
        default = field.default
        if (
            not argument.required
            and parameter.show_default is not False
            and default not in (None, inspect.Parameter.empty)
        ):
            text += f" Default: `{str(default).lower() if isinstance(default, bool) else default}`."
        text = as_markdown(text).replace("docs/scale.md", "[More cores, more machines](../scale.md)")
        yield f"`{name}{value}{many}`\n:   {text.strip() or 'Required.'}\n"


def as_markdown(text: str) -> str:
    """Escape what Markdown would read as its own in a plain text; code stays code.

    >>> as_markdown("`a*b` is FOLDER/<class>/*.jpg")
    '`a*b` is FOLDER/&lt;class&gt;/\\\\*.jpg'
    """
    parts = text.split("`")
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(r"([*_\[\]])", r"\\\1", parts[at].replace("<", "&lt;").replace(">", "&gt;"))
    return "`".join(parts)


def _value_name(hint: Any) -> str:
    """Return what stands for the value of an option, such as FILE or NUMBER."""
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not types.NoneType]
    names = {Path: "PATH", int: "N", float: "NUMBER", list: "VALUE"}
    return names.get(kinds[0], "VALUE")


CLI_PAGES = {"Your own classifier": "cli-models.md", "Experiments": "cli-experiments.md"}
"""Groups of commands that have a page of their own; those of other groups are on the overview."""


def _group(name: str) -> str:
    groups = app[name.split()[0]].group
    first = groups[0] if isinstance(groups, tuple) else groups
    assert isinstance(first, Group)
    return first.name


def _describe_commands(group: str) -> list[str]:
    """Return the description, the examples and the options of each command of a group."""
    examples, lines = cli_examples(), []
    for name, command in cli_commands().items():
        if _group(name) != group:
            continue
        doc = _docstring(command.default_command)
        lines += [f"## equipoise {name}", "", _prose(doc.short_description), ""]
        lines += [_prose(doc.long_description), ""] if doc.long_description else []
        lines += ["```sh", *examples[name], "```", ""] if examples[name] else []
        lines += _options(command)
    return lines


def cli_group_page(group: str, title: str, intro: str) -> str:
    """Return a page with all commands of a group."""
    return "\n".join([f"# {title}", "", intro, "", *_describe_commands(group)])


def cli_page() -> str:
    """Return the overview of the command line."""
    groups = dict.fromkeys(map(_group, cli_commands()))
    lines = ["# Command line", "", CLI_INTRO, ""]
    for group in sorted(groups, key=[*CLI_PAGES, *groups].index):
        lines += [f"## {group}", "", "| command | what it does |", "|---|---|"]
        for name, command in cli_commands().items():
            if _group(name) == group:
                link = f"{CLI_PAGES.get(group, '')}#equipoise-{name.replace(' ', '-')}"
                lines.append(
                    f"| [`{name}`]({link}) | {_prose(_docstring(command.default_command).short_description)} |"
                )
        lines.append("")
    rest = [line for group in groups if group not in CLI_PAGES for line in _describe_commands(group)]
    return "\n".join([*lines, *rest, "## Exit codes", "", exit_codes_table(), "", CLI_REST])


def exit_codes_table() -> str:
    """Return the exit codes with the strings that document them."""
    body = ast.parse(textwrap.dedent(inspect.getsource(ExitCode))).body[0]
    assert isinstance(body, ast.ClassDef)
    rows = []
    for pair in pairwise(body.body):
        match pair:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                rows.append(f"| {ExitCode[name].value} | {' '.join(text.split())} |")
    return "\n".join(["| code | meaning |", "|---|---|", *rows])


CLI_INTRO = (
    """Every command of `equipoise`, taken from the code. `equipoise COMMAND --help` shows the same in a terminal."""
)
CLI_REST = """## Settings of every kind

`--set SECTION.NAME=VALUE` changes any [setting](settings.md), and may be repeated. Options such as `--epochs` are short
forms of the most common ones. A [recipe](recipes.md) is a file with many.

## Environment variables

| variable | meaning |
|---|---|
| `EQUIPOISE_DATA` | Directory of data sets, if `--data-root` is not given. |
| `EQUIPOISE_CACHE` | Where lists of files and downloads are stored (default: the user's cache directory). |
| `EQUIPOISE_TOKEN` | Token of `equipoise serve`, so that it is not in the list of processes. |
"""


# ---- Python

METHOD_NAMES = ("fit", "partial_fit", "predict", "predict_proba", "score", "is_unknown", "save")


def python_reference() -> str:
    """Return the reference of ``import equipoise as eq``."""
    lines: list[str] = []
    for name in equipoise.__all__:
        thing = getattr(equipoise, name)
        if not callable(thing):
            continue
        lines += [f"## eq.{name}", "", *_describe(thing, f"eq.{name}")]
        if isinstance(thing, type):
            for public in _public_methods(thing):
                lines += [f"### {public}", "", *_describe(getattr(thing, public), public)]
    for module, name in (("equipoise.testing", "check_method"), ("equipoise.engine.results", "StepResult")):
        thing = getattr(importlib.import_module(module), name)
        lines += [f"## {module}.{name}", ""]
        if isinstance(thing, type):
            lines += [f"{(_docstring(thing).short_description or '')} Its fields: [File formats](../formats.md).", ""]
        else:
            lines += _describe(thing, name)
    return "\n".join(lines)


def _public_methods(cls: type) -> list[str]:
    """Return the names of the methods of a class, and of what it inherits from scikit-learn the few that matter."""
    own = [name for name, value in vars(cls).items() if inspect.isfunction(value) and not name.startswith("_")]
    return [*own, *(name for name in METHOD_NAMES if hasattr(cls, name) and name not in own)]


def _describe(thing: Any, called: str) -> Iterator[str]:
    """Yield the signature and the docstring of a function or class as Markdown."""
    doc = _docstring(thing)
    yield from ("```text", _signature(thing, called), "```", "", _prose(doc.short_description), "")
    if doc.long_description:
        yield from (_prose(doc.long_description), "")
    sections: dict[str, list[str]] = {}
    for part in doc.meta:
        kind = part.args[0] if part.args else ""
        heading = {"param": "Parameters", "attribute": "Attributes", "returns": "Returns", "raises": "Raises"}.get(kind)
        if heading:
            name = getattr(part, "arg_name", None) or getattr(part, "type_name", None) or ""
            text = " ".join((part.description or "").split())
            sections.setdefault(heading, []).append(f"`{name}`\n:   {_prose(text)}\n")
    for heading, entries in sections.items():
        yield from (f"**{heading}**", "", *entries)
    for example in doc.examples:
        yield from ("```pycon", (example.description or "").strip(), "```", "")


def _prose(text: str | None) -> str:
    return as_markdown((text or "").replace("``", "`"))


def _signature(thing: Any, called: str) -> str:
    signature = inspect.signature(thing)
    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    kept = [parameter for parameter in parameters if parameter.name != "self"]
    shown = f"{called}({', '.join(str(parameter) for parameter in kept)})"
    if len(shown) <= 90:
        return shown
    return f"{called}(\n" + "".join(f"    {parameter},\n" for parameter in kept) + ")"


# ---- settings, recipes and methods


def settings_page() -> str:
    """Return all settings that ``--set`` and recipes can change."""
    sections = {
        "stream": ("Which classes arrive in which step.", settings.StreamSettings),
        "memory": ("Which images of old classes are kept.", Memory),
        "net": ("The network.", settings.NetSettings),
        "train": ("How long and how fast each step is trained.", Schedule),
        "augment": ("How training images are changed at random.", Augment),
        "runtime": ("Where and how to compute. Only the precision may change a result.", Runtime),
    }
    lines = [
        "# Settings",
        "",
        "Every setting that `--set SECTION.NAME=VALUE` and [recipes](recipes.md) can change, with its default. Recipes",
        "replace many of the defaults. `config.json` in the directory of a run or model has all that were used.",
        "",
        "Settings of a method have the section `method`: see [Methods](method-list.md).",
        "",
    ]
    for name, (about, cls) in sections.items():
        lines += [f"## {name}", "", about, "", settings_table(cls), ""]
    return "\n".join(lines)


def recipes_page() -> str:
    """Return all recipes with their files."""
    lines = [
        "# Recipes",
        "",
        "The settings that come with equipoise, one file per data set and budget. Choose one with `--recipe NAME`.",
        "",
        'A recipe of your own is a TOML file, `--recipe mine.toml`. It may start with `like = "cifar100-fast"` and',
        "contain only what differs. A table such as `[methods.wa.fields]` holds what differs for one method.",
        "",
        "| recipe | data set | what it is |",
        "|---|---|---|",
    ]
    for name in recipe_names():
        recipe = read_recipe(name)
        lines.append(f"| [`{name}`](#{name}) | `{recipe.get('dataset', '')}` | {recipe.get('about', '')} |")
    for name in recipe_names():
        text = (resources.files("equipoise") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
        lines += ["", f"## {name}", "", "```toml", text.strip(), "```"]
    return "\n".join(lines)


def methods_page() -> str:
    """Return all methods with their settings."""
    lines = [
        "# Methods",
        "",
        "Every learning method, with its settings. Choose one with `--method NAME`, and change a setting with",
        "`--set method.NAME=VALUE`. [Which method when](../methods.md) compares them.",
        "",
    ]
    by_class: dict[type, list[str]] = {}
    for name, (cls, _) in registry().items():
        by_class.setdefault(cls, []).append(name)
    for cls, names in by_class.items():
        about = _docstring(cls)
        lines += [f"## {', '.join(f'`{name}`' for name in names)}", "", _prose(about.short_description), ""]
        paper = getattr(cls, "paper", "")
        lines += [f"Paper: {paper}", ""] if paper else []
        table = settings_table(cls)
        lines += [table, ""] if table.count("\n") > 1 else ["No settings.", ""]
    return "\n".join(lines)


WHOLE_PAGES: dict[str, Callable[[], str]] = {
    "reference/cli.md": cli_page,
    "reference/cli-models.md": partial(
        cli_group_page,
        "Your own classifier",
        "Commands for your own classifier",
        "Teach, use, correct and share a model. Each command takes the model's directory first.",
    ),
    "reference/cli-experiments.md": partial(
        cli_group_page,
        "Experiments",
        "Commands for experiments",
        "Run and compare methods on data sets, list what is available, and write reports.",
    ),
    "reference/settings.md": settings_page,
    "reference/recipes.md": recipes_page,
    "reference/method-list.md": methods_page,
    **{f"notebooks/{name}.md": partial(notebooks.page, name) for name in notebooks.NAMES},
}
"""Pages of the site that come from the code or from a notebook alone, below docs/."""


def generate(page: str, text: str) -> str:
    """Return the text of a page with all its parts made again."""
    for name, make in PARTS[page].items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
        before, found_begin, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found_begin and found_end):
            raise SystemExit(f"{page} has no part '{name}': add the lines {begin} and {end}")
        text = f"{before}{begin}\n{make()}\n{end}{after}"
    return text


if __name__ == "__main__":
    for page in PARTS:
        path = ROOT / page
        path.write_text(generate(page, path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote the generated parts of {page}")
