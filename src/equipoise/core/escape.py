"""Escape untrusted names and values for terminals, spreadsheets, JSON, Markdown and HTML.

``printable``, for one line of text, is in ``open_dir``.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable
from typing import Any

from equipoise.core.open_dir import printable
from equipoise.errors import RunError

_CONTROLS = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\ud800-\udfff"
"""Control characters, line separators, marks and overrides of the direction of text, and halves of surrogate pairs."""
_UNSAFE = re.compile(f"[{_CONTROLS}\u2066-\u2069]")
_UNSAFE_IN_PAGE = re.compile(f"[{_CONTROLS}]")
"""Pages isolate right-to-left names with U+2068 and U+2069."""
_FORMULA = re.compile("[=+\\-@\t\r\n＝＋－＠].", re.DOTALL)  # a sign alone is text; wide signs count, too
_MARKUP = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])|(?<=:)//|(?<=\bwww)\.", re.IGNORECASE)


def escape_controls(text: str) -> str:
    r"""Escape control characters in a text that programs may read; unlike ``printable``, keep all spaces.

    >>> escape_controls("a\x1b[2Jb\u202fc") == "a\\x1b[2Jb\u202fc"
    True
    """
    return _UNSAFE.sub(_escaped, text)


def page_text(text: str) -> str:
    """Escape control characters in the text of a page; HTML is escaped by the template."""
    return _UNSAFE_IN_PAGE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def csv_line(cells: Iterable[object]) -> str:
    """Return a line of CSV in which a spreadsheet sees no text as a formula; numbers stay numbers.

    >>> print(csv_line(["=1+1.png", -0.5, None, "a,b"]))
    '=1+1.png,-0.5,,"a,b"
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([_cell(cell) if isinstance(cell, str) else cell for cell in cells])
    return line.getvalue()


def _cell(text: str) -> str:
    return ("'" if _FORMULA.match(text) else "") + escape_controls(text)


def json_text(value: Any) -> str:
    """Return a value as one line of JSON that a terminal can show.

    >>> json_text({"é": "\u202e"})
    '{"é": "\\\\u202e"}'
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise RunError("a number is not finite, which JSON cannot express: restore the model or run") from error
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)  # they can only be in strings


def markdown_text(text: object) -> str:
    r"""Escape text so that Markdown shows it as it is: no links, pictures, HTML, code or cells of a table.

    >>> markdown_text("[x](http://e) | <b> red_panda")
    '\\[x\\](http:\\/\\/e) \\| &lt;b&gt; red_panda'
    """
    plain = printable(" ".join(str(text).split()))
    plain = _MARKUP.sub(lambda found: "".join(f"\\{c}" for c in found[0]), plain)
    # entities, since not every renderer knows a backslash before them
    entities = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"^([-+#=]|\d+[.)])", _first_escaped, entities)


def _first_escaped(found: re.Match[str]) -> str:
    """Escape what begins a list or heading at the start of a line."""
    return f"{found[0][:-1]}\\{found[0][-1]}"
