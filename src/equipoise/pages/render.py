"""Render a page: one HTML file with everything in it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

from equipoise.core.escape import page_text
from equipoise.engine.progress import duration
from equipoise.pages.figure import Figure
from equipoise.pages.text import one_decimal

SCRIPTS = ("vega", "vega-lite", "vega-embed")


def render(package: str, template: str, figures: Sequence[Figure], **values: Any) -> str:
    """Fill a template of ``package`` (in its folder ``templates``), which may extend base.html."""
    named = {figure.name: figure for figure in figures}
    scripts = [_script(name) for name in SCRIPTS] if figures else []
    return _environment(package).get_template(f"{template}.html").render(figures=named, scripts=scripts, **values)


@cache
def _environment(package: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader(__package__)]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_without_controls,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": True, "separators": (",", ":")}
    environment.filters |= {"one": one_decimal, "signed": partial(one_decimal, sign="+"), "code": with_code}
    environment.globals["duration"] = duration
    return environment


def _without_controls(value: Any) -> Any:
    """Escape control characters in everything a template shows; text marked as HTML was escaped before."""
    return page_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def with_code(text: str) -> Markup:
    """Escape a text, and mark text between backticks as code.

    >>> with_code("a < b: see `equipoise undo`")
    Markup('a &lt; b: see <code>equipoise undo</code>')
    """
    parts = [escape(page_text(part)) for part in text.split("`")]
    return Markup().join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


@cache
def _script(name: str) -> Markup:
    text = (resources.files(__package__) / "vendor" / f"{name}.min.js").read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704 (our own file)
