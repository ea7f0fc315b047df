"""Helpers for tests of pages: the tables and the text of a page."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

Page = Any
"""A page of playwright."""
Open = Callable[..., Page]
"""What the fixture ``open_page`` returns."""


class Reader(HTMLParser):
    """Collects the tables of a page, by their own id or the one above them, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.cards: dict[str, str] = {}
        self.text: list[str] = []
        self._under, self._table, self._open, self._skip = "", "", "", False
        self._card: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self._skip = tag in ("script", "style")
        if tag in ("figure", "section") and named.get("id"):
            self._under = named["id"] or ""
        if tag == "table":
            self._table = named.get("id") or named.get("class") or self._under
            self.tables[self._table] = []
        if tag == "tr":
            self.tables[self._table].append([])
        if tag in ("td", "th"):
            self.tables[self._table][-1].append("")
            self._open = tag
        if tag == "ul" and named.get("class") == "cards":
            self._card = []
        if tag == "li" and self._card is not None:
            self._card = []

    def handle_endtag(self, tag: str) -> None:
        self._skip = False
        if tag in ("td", "th"):
            self._open = ""
        if tag == "li" and self._card:
            self.cards[self._card[1]] = self._card[0]
        if tag == "ul":
            self._card = None

    def handle_data(self, data: str) -> None:
        if self._skip or not data.strip():
            return
        self.text.append(data)
        if self._card is not None:
            self._card.append(data.strip())
        if self._open:
            self.tables[self._table][-1][-1] += data.strip()


def check_width(page: Page, width: int) -> None:
    """Check that a page is not wider than the screen; its charts may need a moment after the screen has changed."""
    for _ in range(100):
        if page.evaluate("document.documentElement.scrollWidth") <= width:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"the page is wider than {width} pixels")


def check_charts(page: Page, width: int, charts: int) -> None:
    """Check in a browser that every chart of a page is drawn, described, and not larger than the screen."""
    check_width(page, width)
    found = page.query_selector_all(".chart")
    assert len(found) == charts
    for chart in found:
        name = chart.get_attribute("data-chart")
        marks = chart.query_selector_all("svg .mark-symbol.role-mark path, svg .mark-rect path, svg .mark-line path")
        assert len(marks) > 0, name
        assert len(chart.get_attribute("aria-label") or "") > 30, name
        box = chart.query_selector("svg").bounding_box()
        assert box["width"] <= width, name
        assert box["height"] < max(600, width), name
