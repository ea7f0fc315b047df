"""What `make docs` adds to the pages in docs/: a hook of MkDocs, named in mkdocs.yml.

* Pages that come from the code or a notebook (``generate_docs.WHOLE_PAGES``), SECURITY.md and CHANGELOG.md.
* Files of the repository that a page links to, each as a page, so that no link leads out of the site.
* Charts of the runs in results/, drawn by the code of the reports: ``<!-- figure: NAME -->`` in a page.
* The diagram of the packages as an SVG picture, because Mermaid would be loaded from another host.

The site ignores itself for git, as virtual environments do.
"""

from __future__ import annotations

import html
import importlib
import json
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import generate_docs  # noqa: E402
import notebooks  # noqa: E402
from site_figures import FIGURES  # noqa: E402

from equipoise.pages import figure, render  # noqa: E402

VENDOR = Path(render.__file__).parent / "vendor"
PAGE_SCRIPT = Path(render.__file__).parent / "templates" / "page.js"
FROM_ROOT = {"SECURITY.md": "security.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages of the site that are files of the repository's root."""
SHOWN = {".py": "python", ".toml": "toml", ".md": "markdown", ".json": "json", ".html": "html", ".js": "javascript"}
"""Languages of files that the site shows."""
LARGEST = 60_000
"""Bytes of a file that is shown."""
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


# ---- hooks of MkDocs


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and scripts that are not in docs/."""
    make = importlib.import_module("mkdocs.structure.files").File.generated
    for name, page in generate_docs.WHOLE_PAGES.items():
        files.append(make(config, name, content=page()))
    for notebook in notebooks.NAMES:
        for name, picture in notebooks.render(notebook)[1].items():
            files.append(make(config, f"notebooks/{name}", content=picture))
    for source, name in FROM_ROOT.items():
        files.append(make(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    for target in sorted(linked_sources()):
        files.append(make(config, source_page(target), content=show_source(target)))
    for script in render.SCRIPTS:
        files.append(make(config, f"assets/charts/{script}.min.js", abs_src_path=str(VENDOR / f"{script}.min.js")))
    files.append(make(config, "assets/charts/page.js", abs_src_path=str(PAGE_SCRIPT)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Draw charts and diagrams, and turn links to files outside docs/ into links to their pages."""
    place: str = page.file.src_uri
    markdown = outside_code(
        markdown, lambda text: re.sub(r"\[([\w/-]+\.md)\]\(([^)#]*?\1)((?:#[^)]*)?)\)", _title, text)
    )
    repository = {name: source for source, name in FROM_ROOT.items()}.get(place, f"docs/{place}")
    if not place.startswith("source/"):
        markdown = outside_code(markdown, lambda text: LINK.sub(lambda found: _link(found, repository, place), text))
    markdown = indent_lists(markdown)
    markdown = re.sub(r"^```mermaid\ngraph TD\n(.*?)^```", lambda found: diagram(found[1]), markdown, flags=re.S | re.M)
    drawn = re.sub(r"^<!-- figure: (\S+) -->$", lambda found: show_figure(found[1]), markdown, flags=re.M)
    if drawn == markdown:
        return markdown
    up = posixpath.relpath("assets/charts", posixpath.dirname(place) or ".")
    scripts = "\n".join(f'<script src="{up}/{name}"></script>' for name in chart_scripts())
    return f"{drawn}\n\n{scripts}\n"


def on_post_build(config: Any) -> None:
    """Let git ignore the site."""
    (Path(config["site_dir"]) / ".gitignore").write_text("*\n", encoding="utf-8")


# ---- links


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change a page except for its code blocks.

    >>> outside_code("a\\n```\\na\\n```\\na", lambda text: text.replace("a", "b"))
    'b\\n```\\na\\n```\\nb'
    """
    parts, at = [], 0
    for block in FENCE.finditer(text):
        parts += [change(text[at : block.start()]), block[0]]
        at = block.end()
    return "".join([*parts, change(text[at:])])


def indent_lists(text: str) -> str:
    r"""Indent paragraphs and tables within list items by four spaces, as Python-Markdown wants it; GitHub takes two.

    >>> indent_lists("* one\n\n  more\n\nend")
    '* one\n\n    more\n\nend'
    """
    lines, inside, blank = [], False, False
    for line in text.split("\n"):
        if re.match(r"(\*|\d+\.) ", line):
            inside = True
        elif blank and line and not line.startswith(" "):
            inside = False
        deeper = inside and line.startswith("  ") and not line.startswith("    ")
        lines.append(f"  {line}" if deeper else line)
        blank = not line
    return "\n".join(lines)


def target_of(link: str, repository: str) -> str | None:
    """Return the file of the repository that a link of a page leads to, if it is outside docs/.

    >>> target_of("../results/lite/wa-0", "docs/results.md"), target_of("scale.md", "docs/methods.md")
    ('results/lite/wa-0', None)
    """
    if "://" in link or link.startswith(("#", "mailto:")):
        return None
    found = posixpath.normpath(posixpath.join(posixpath.dirname(repository), link.partition("#")[0]))
    return None if found.startswith("docs/") else found


def linked_sources() -> set[str]:
    """Return the files and directories outside docs/ that pages link to."""
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in FROM_ROOT)]
    found = set()
    for page in pages:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        place = page.relative_to(ROOT).as_posix()
        targets = (target_of(link[2], place) for link in LINK.finditer(text))
        found |= {target for target in targets if target and target not in FROM_ROOT and (ROOT / target).exists()}
    return found


def source_page(target: str) -> str:
    """Return the page that shows a file of the repository."""
    return f"source/{target.removesuffix('.md')}.md"


def _link(found: re.Match[str], repository: str, place: str) -> str:
    link = found[2]
    target = target_of(link, repository)
    if target is None:
        if "://" not in link:
            link = re.sub(r"\.ipynb$", ".md", link)  # a notebook is shown as a page
            link = link.removeprefix("docs/") if repository in FROM_ROOT else link
        return f"{found[1]}{link}{found[3]}"
    page = FROM_ROOT.get(target) or source_page(target)
    anchor = "#" + link.partition("#")[2] if "#" in link else ""
    return f"{found[1]}{posixpath.relpath(page, posixpath.dirname(place) or '.')}{anchor}{found[3]}"


def _title(found: re.Match[str]) -> str:
    """Name a page by its title: the text of a link in the repository is often the name of the file."""
    name, link, anchor = found.groups()
    pages = sorted((ROOT / "docs").rglob(name))
    if not pages:
        return found[0]
    heading = re.search(r"^# (.*)$", pages[0].read_text(encoding="utf-8"), re.MULTILINE)
    return f"[{heading[1] if heading else name}]({link}{anchor})"


def show_source(target: str) -> str:
    """Return a page that shows a file of the repository, or the files of a directory."""
    path = ROOT / target
    lines = ["---", f"title: {target}", "search:", "  exclude: true", "---", "", f"# {target}", ""]
    if path.is_file():
        return "\n".join([*lines, f"This is the file `{target}` of the repository.", "", *_shown(path)])
    lines += [f"This is what the directory `{target}` of the repository contains.", ""]
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and "__pycache__" not in file.parts]
    files = [file for file in files if not any(part.endswith(".egg-info") for part in file.parts)]
    if len(files) > 40:
        names = dict.fromkeys(file.relative_to(path).parts[0] for file in files)
        return "\n".join([*lines, *(f"* `{name}`" for name in names)])
    for file in files:
        lines += [f"## {file.relative_to(path).as_posix()}", "", *_shown(file), ""]
    return "\n".join(lines)


def _shown(file: Path) -> Iterator[str]:
    language = SHOWN.get(file.suffix)
    size = file.stat().st_size
    if language is None or size > LARGEST:
        yield f"{size:,} bytes."
        return
    text = file.read_text(encoding="utf-8").rstrip()
    if language == "json":
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    yield from (f"````{language}", text, "````")


# ---- charts


@cache
def chart_scripts() -> tuple[str, ...]:
    return (*(f"{script}.min.js" for script in render.SCRIPTS), "page.js")


def show_figure(name: str) -> str:
    """Return the HTML of a figure: the chart, its caption, and its data as a table."""
    shown: figure.Figure = FIGURES[name]()
    spec = json.dumps(shown.spec(), separators=(",", ":")).replace("<", "\\u003c")
    table = data_table(shown.table)
    square = " square" if shown.square else ""
    return (
        f'<figure class="eq-figure{square}" id="{name}"><div class="chart" data-chart="{name}"></div>'
        f"<figcaption>{html.escape(shown.caption)}</figcaption>{table}</figure>\n"
        f'<script type="application/json" id="spec-{name}">{spec}</script>'
    )


def data_table(rows: figure.Rows) -> str:
    """Return the data of a chart, for readers who cannot see it."""
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(str(key))}</th>" for key in rows[0])
    values = [["–" if value is None else str(value) for value in row.values()] for row in rows]
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(value)}</td>' for value in row)}</tr>" for row in values)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<details><summary>Data</summary>{table}</details>"


# ---- the diagram of the packages


def diagram(arrows: str) -> str:
    """Draw arrows such as ``cli --> serve`` as SVG: every name above all that it points to."""
    pairs = [tuple(line.strip().split(" --> ")) for line in arrows.strip().splitlines()]
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    height = dict.fromkeys(names, 0)
    for _ in names:
        for above, below in pairs:
            height[above] = max(height[above], height[below] + 1)
    rows = [[name for name in names if height[name] == level] for level in range(max(height.values()), -1, -1)]
    width, high, wide, gap = 600, 34, 104, 62
    at: dict[str, tuple[float, float]] = {}
    for level, row in enumerate(rows):
        importers = {name: [at[above][0] for above, below in pairs if below == name] for name in row}
        row.sort(key=lambda name: sum(importers[name]) / max(len(importers[name]), 1))  # below those that import it
        at |= {name: (width * (place + 0.5) / len(row), 24 + gap * level) for place, name in enumerate(row)}
    lines = []
    for above, below in pairs:
        (x1, y1), (x2, y2) = at[above], at[below]
        lines.append(
            f'<path d="M{x1:.0f} {y1 + high / 2:.0f}L{x2:.0f} {y2 - high / 2 - 6:.0f}" marker-end="url(#tip)"/>'
        )
    for name, (x, y) in at.items():
        lines.append(f'<rect x="{x - wide / 2:.0f}" y="{y - high / 2:.0f}" width="{wide}" height="{high}" rx="6"/>')
        lines.append(f'<text x="{x:.0f}" y="{y + 5:.0f}">{html.escape(name)}</text>')
    text = "; ".join(f"{above} imports {below}" for above, below in pairs)
    tip = (
        '<marker id="tip" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker>'
    )
    return (
        f'<svg class="eq-diagram" viewBox="0 0 {width} {gap * len(rows)}" role="img" aria-label="{text}">'
        f"<defs>{tip}</defs>{''.join(lines)}</svg>"
    )
