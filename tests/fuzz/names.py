"""Names of classes, photos and files, in everything that shows or uses them."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from equipoise.app.labels import plain_label
from equipoise.app.photo_folder import scan_folder
from equipoise.core.config import parse_value
from equipoise.core.directory import Directory
from equipoise.core.escape import csv_line, escape_controls, json_text, markdown_text, page_text
from equipoise.core.open_dir import check_path, printable
from equipoise.engine.recipes import parse_overrides, read_recipe
from equipoise.errors import EquipoiseError
from equipoise.study.export_tables import _latex
from tests.fuzz.commands import BIDIRECTIONAL, check_printed
from tests.fuzz.loop import Case, Make
from tests.fuzz.mutate import name

FORMULAS = tuple("=+-@")
ISOLATES = "\u2066\u2067\u2068\u2069"
"""What pages may contain: they isolate names that are written from right to left."""


def show(text: str) -> None:
    """Show a name everywhere; it must not become more than text."""
    for shown in (printable(text), escape_controls(text), csv_line([text, 1]), json_text({text: text})):
        check_printed(shown.replace("\r", "\0"))  # a carriage return would overwrite what is before it
    check_printed("".join(one for one in page_text(text) if one not in ISOLATES))
    (cell, _), *more = csv.reader(io.StringIO(csv_line([text, 1])))
    if more or (len(cell) > 1 and cell.startswith(FORMULAS)):
        raise AssertionError(f"the cell {cell[:50]!r} is a formula")
    written = markdown_text(text)
    if "<" in written or "\n" in written or BIDIRECTIONAL & set(written):
        raise AssertionError(f"Markdown shows {written[:80]!r}")
    valid = text.encode(errors="replace").decode() == text  # JSON joins halves of surrogate pairs
    if valid and json.loads(json_text([text])) != [text]:
        raise AssertionError("JSON does not keep it")
    _latex(text)


def use_label(text: str) -> None:
    """Use a name as a label, which JSON, tables and file systems have to store."""
    label = plain_label(text)
    if json.loads(json_text(label)) != label or "\0" in str(label):
        raise AssertionError("JSON does not keep the label")


def use_setting(text: str) -> None:
    """Use a text as a value, as the assignment of a setting, and as the name of a recipe."""
    parse_value(text)
    check_path(Path(text))
    for given in (f"train.{text}={text}", text):
        try:
            parse_overrides([given])
        except EquipoiseError as error:
            check_printed(printable(str(error)))
    read_recipe(text)


def use_file(directory: Directory, text: str) -> None:
    """Use a name for files of ours: it must not lead out of the directory."""
    directory.write_bytes(text, b"x")
    if directory.read_bytes(text) != b"x":
        raise AssertionError("it reads something else")
    directory.remove(text)
    directory.make_dir(text)
    directory.sub(text).write_json("a.json", [])
    directory.remove_tree(text)


def use_folder(root: Path, text: str) -> None:
    """Use a name for the folder of a class and for a photo in it, where the system can express it."""
    given = text.encode("utf-8", "surrogateescape" if text.isprintable() else "replace")
    folder = os.fsencode(root) + b"/" + (given.replace(b"/", b"").replace(b"\0", b"")[:200].strip(b".") or b"x")
    os.mkdir(folder)  # noqa: PTH102 - bytes
    try:
        for file in (b"a.png", os.path.basename(folder)[:150] + b".jpg"):  # noqa: PTH119 - bytes
            with open(folder + b"/" + file, "wb") as photo:  # noqa: PTH123
                photo.write(b"x")
        found = scan_folder(root)
        for one in found.classes:
            one.encode()
            use_label(one)
    finally:
        shutil.rmtree(folder)


def names(place: Path) -> Make:
    """Read names of any characters."""
    directory, root = Directory(place / "directory"), place / "photos"
    directory.make_dir()
    root.mkdir()
    uses: dict[str, Callable[[str], None]] = {
        "show": show,
        "label": use_label,
        "setting": use_setting,
        "file": lambda text: use_file(directory, text),
        "folder": lambda text: use_folder(root, text),
    }
    for use in ("show", "label", "file", "folder"):
        uses[use]("red panda")

    def make(random: Random) -> Case:
        text, use = name(random), random.choice(list(uses))
        if random.random() < 0.2:
            text = random.choice(("../", "/", "./", "a/../", "../sentinel/")) + text
        return Case(text.encode(errors="surrogatepass"), lambda: uses[use](text), use)

    return make
