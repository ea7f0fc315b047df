"""The documentation site: it builds without warnings, its links work, it contacts no other host, and search works."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from filelock import FileLock

from tests.pages import check_width

pytest.importorskip("material", reason="no tests of the site: mkdocs-material is not installed (make docs)")
pytest.importorskip("altair", reason="the extra report is not installed")
pytest.importorskip("fastapi", reason="the extra serve is not installed")

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import docs_site  # noqa: E402
import site_figures  # noqa: E402

pytestmark = pytest.mark.slow
SHOWN = ("index", "explanation/forgetting", "reference/cli")
"""Pages that are opened in a browser."""
SCREENS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site, built as `make docs` builds it, once for all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "site"
    with FileLock(f"{place}.lock"):
        if not place.exists():
            build_site(place)
    return place


def build_site(place: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")


class Links(HTMLParser):
    """Collects what a page links to, what it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {key: value or "" for key, value in attrs}
        if named.get("id"):
            self.anchors.add(named["id"])
        if tag == "a" and named.get("name"):
            self.anchors.add(named["name"])
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        elif tag == "link" and named.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(named.get("href", ""))
        self.loaded += [named[key] for key in ("src", "poster", "data") if named.get(key)]
        self.loaded += [part.split()[0] for part in named.get("srcset", "").split(",") if part.strip()]
        self.loaded += urls_in_css(named.get("style", ""))


def urls_in_css(text: str) -> list[str]:
    return re.findall(r"url\(\s*[\"']?([^\"')]+)", text)


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[Path, Links]:
    return {file: Links(file.read_text(encoding="utf-8")) for file in sorted(site.rglob("*.html"))}


def test_every_section_has_pages(pages: dict[Path, Links], site: Path) -> None:
    names = {file.relative_to(site).as_posix() for file in pages}
    for wanted in ("tutorials/photos", "how-to/correct", "explanation/forgetting", "reference/cli-models", "results"):
        assert f"{wanted}.html" in names
    assert {"performance.html", "scale.html", "security.html", "glossary.html", "reference/recipes.html"} <= names
    assert {"notebooks/photos.html", "notebooks/forgetting.html"} <= names


def test_links_and_anchors_resolve(pages: dict[Path, Links], site: Path) -> None:
    broken = []
    for file, page in pages.items():
        if file.name == "404.html":  # shown under any address, so its links are absolute
            continue
        for link in page.links:
            if re.match(r"(https?|mailto):", link):
                continue
            name, _, anchor = unquote(link).partition("#")
            target = (file.parent / name).resolve() if name else file
            known = target in pages and (not anchor or anchor in pages[target].anchors)
            if not (known or (target not in pages and target.is_file())):
                broken.append((file.relative_to(site).as_posix(), link))
    assert broken == []


def test_links_to_notebooks_lead_to_their_pages(pages: dict[Path, Links], site: Path) -> None:
    linked = {(file.relative_to(site).as_posix(), link) for file, page in pages.items() for link in page.links}
    downloads = {(f"notebooks/{name}.html", f"{name}.ipynb") for name in ("forgetting", "photos")}
    assert {found for found in linked if found[1].endswith(".ipynb")} == downloads
    assert ("index.html", "notebooks/photos.html") in linked


def test_nothing_is_loaded_from_another_host(pages: dict[Path, Links], site: Path) -> None:
    loaded = {(file.name, url) for file, page in pages.items() for url in page.loaded}
    for sheet in site.rglob("*.css"):
        loaded |= {(sheet.name, url) for url in urls_in_css(sheet.read_text(encoding="utf-8"))}
    assert [found for found in loaded if re.match(r"(https?:)?//", found[1])] == []


def test_the_site_ignores_itself_for_git(site: Path) -> None:
    assert (site / ".gitignore").read_text() == "*\n"


def test_every_figure_is_shown_somewhere() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert set(re.findall(r"<!-- figure: (\S+) -->", text)) == site_figures.FIGURES.keys()


def test_the_doctests_of_the_hook_pass() -> None:
    assert doctest.testmod(docs_site).failed == 0


# ---- in a browser


@pytest.fixture
def open_site(browser: Any, site: Path) -> Iterator[Any]:
    """Return a function that opens a page of the site; it may not log anything, nor ask for anything but files."""
    messages: list[str] = []
    requests: list[str] = []
    opened = []

    def go(name: str, width: int = 1280, scheme: str = "light") -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(page)
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / f"{name}.html").as_uri())
        if page.query_selector(".chart"):
            page.wait_for_selector("html[data-drawn=yes]", timeout=20_000)
        return page

    yield go
    for page in opened:
        page.close()
    assert messages == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("name", SHOWN)
def test_pages_fit_the_screen_and_are_silent(name: str, width: int, scheme: str, open_site: Any) -> None:
    page = open_site(name, width, scheme)
    check_width(page, width)
    page.wait_for_selector(f"body[data-md-color-scheme={'default' if scheme == 'light' else 'slate'}]", timeout=5_000)
    style = "getComputedStyle"
    background = page.evaluate(f"{style}(document.body).backgroundColor")
    text = page.evaluate(f"{style}(document.querySelector('article h1')).color")
    assert (brightness(background) > 0.5) == (scheme == "light")
    assert (brightness(text) > 0.5) == (scheme == "dark")
    for chart in page.query_selector_all(".chart"):
        assert chart.query_selector_all("svg .mark-symbol path, svg .mark-rect path, svg .mark-line path")
        assert len(chart.get_attribute("aria-label") or "") > 30
        assert chart.query_selector("svg").bounding_box()["width"] <= width


def brightness(colour: str) -> float:
    red, green, blue = (int(value) for value in re.findall(r"\d+", colour)[:3])
    return (0.3 * red + 0.59 * green + 0.11 * blue) / 255


def test_a_slider_moves_a_chart(open_site: Any) -> None:
    page = open_site("explanation/weight-aligning")
    points = "document.querySelectorAll('#norms .mark-symbol.role-mark path').length"
    assert page.evaluate(points) == 100
    page.eval_on_selector(
        "#norms input[type=range]", "input => { input.value = 2; input.dispatchEvent(new Event('input')); }"
    )
    page.wait_for_function(f"{points} === 40")


@pytest.mark.parametrize("width", [1280, 390])
def test_search_works_without_a_server(width: int, open_site: Any) -> None:
    page = open_site("reference/cli", width)
    page.click("label[for=__search]" if width < 1000 else "input[name=query]")
    page.wait_for_function("document.querySelector('.md-search-result__meta').textContent.includes('Type to start')")
    page.type("input[name=query]", "unknown")  # the search listens to keys
    page.wait_for_selector(".md-search-result__item a", timeout=20_000)
    found = page.eval_on_selector_all(
        ".md-search-result__item a", "links => links.map(link => link.getAttribute('href'))"
    )
    assert any("unknown" in link for link in found)
    page.click(".md-search-result__item a")
    page.wait_for_load_state()
    assert "reference/cli.html" not in page.url
