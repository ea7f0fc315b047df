"""Write the parts of the documentation that come from the code: ``python tools/generate_docs.py``.

A part stands between two comments in a page: ``<!-- generated: NAME -->`` and ``<!-- end of NAME -->``.
tests/test_docs.py fails if a part is out of date.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from draw_packages import draw_packages, list_modules  # noqa: E402

from equipoise.core.config import field_docs  # noqa: E402
from equipoise.data.memory import Memory  # noqa: E402
from equipoise.engine import results, settings  # noqa: E402
from equipoise.learn.schedule import Schedule  # noqa: E402
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


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/design.md": {"packages": draw_packages, "modules": list_modules},
    "docs/formats.md": {
        name: partial(schema_table, getattr(results, name)) for name in ("StepResult", "ErrorCounts", "ClassResult")
    },
    "docs/glossary.md": {
        "renamed settings": renamed_settings,
        "renamed keys": partial(renamed_keys, results.RENAMED),
        "renamed kinds": partial(renamed_keys, thumbnails.RENAMED),
    },
    "docs/add-a-method.md": {
        "Schedule": partial(settings_table, Schedule),
        "Memory": partial(settings_table, Memory),
    },
}
"""What is generated in which page."""


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
