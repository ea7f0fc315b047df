"""Write docs/results.md, its figures and the README's table from the runs in this folder alone: `make results`."""

from __future__ import annotations

import argparse
from pathlib import Path

import contents
import figures
import jinja2
import sections
from plan import FAMILY, LONGER, NEWER, OTHERS
from rows import row_of
from stored import Stored, read_all

from equipoise.engine.metrics import TOP5
from equipoise.pages.text import one_decimal
from equipoise.study.report.paper import published

HERE = Path(__file__).parent
BEGIN, END = "<!-- `make results` writes {} -->\n", "<!-- to here -->\n"
"""Around each part of the README that is generated."""
PARTS = ("opening",)
"""Templates of these parts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE.parent, help="where to write README.md and docs/")
    out = parser.parse_args().out
    for name, text in render(HERE, (HERE.parent / "README.md").read_text(encoding="utf-8")).items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, encoding="utf-8")


def render(folder: Path, readme: str) -> dict[str, str]:
    """Return every generated file by its path in the repository."""
    stored = read_all(folder)
    lite = stored.groups("lite", (*FAMILY, *OTHERS, *NEWER))
    longer = [(recipe, group) for recipe, method, _ in LONGER if (group := stored.group(recipe, method))]
    by_steps = sections.groups_by_steps(stored, lite)
    pictures = {
        **figures.five_step_figures(stored.runs, lite, longer),
        **figures.step_figures(by_steps),
        **choices(stored),
    }
    values = {
        **sections.five_steps(stored, lite, longer),
        **sections.five_step_claims(stored, lite, longer),
        **sections.other_steps(stored, by_steps, lite),
        **sections.tiny(stored),
        **sections.paper_recipe(stored),
        **contents.all_runs(stored),
        "paper": published()["cifar100"],
        "pictures": pictures,
    }
    environment = jinja2.Environment(  # noqa: S701 (Markdown, from our own files)
        loader=jinja2.FileSystemLoader(HERE), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"one": one_decimal, "row": row_of}
    page, *parts = (environment.get_template(f"{name}.md.jinja").render(values) for name in ("page", *PARTS))
    for name, text in zip(PARTS, parts, strict=True):
        before, rest = readme.split(BEGIN.format(name))  # fails if the README has lost a mark
        _, after = rest.split(END, 1)
        readme = before + BEGIN.format(name) + text + END + after
    files = {f"docs/results/{name}.svg": svg for name, svg in pictures.items()}
    return files | {"docs/results.md": contents.tidy(page), "README.md": readme}


def choices(stored: Stored) -> dict[str, str]:
    """Draw Figure 6 of the paper from the runs on CIFAR-100 (top-1) and on pictures of ImageNet (top-5)."""
    found: dict[str, str] = {}
    if (ablations := stored.ablations("lite")) and (usual := stored.group("lite", "wa")):
        found |= figures.choice_figure("choices", usual, ablations)
    if (ablations := stored.ablations("tiny")) and (usual := stored.group("tiny", "wa")):
        found |= figures.choice_figure("choices-imagenet", usual, ablations, TOP5)
    return found


if __name__ == "__main__":
    main()
