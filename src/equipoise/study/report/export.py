"""Figures as pictures for a paper: SVG with its font inside, or PNG."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from equipoise.errors import RunError, UsageError, unknown
from equipoise.files import write_bytes
from equipoise.study.report.figure import Figure

FORMATS = ("svg", "png", "pdf")
FONT = "DejaVu Sans"
WIDTH = 520


def export(figures: Sequence[Figure], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write every figure in every format; returns the files."""
    for name in formats:
        if name not in FORMATS:
            raise unknown("picture format", name, FORMATS)
    if find_spec("vl_convert") is None:
        raise UsageError("pictures need the package vl-convert-python: pip install 'equipoise[report]'")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot write to {folder} ({error.strerror}): choose another --figures") from error
    import vl_convert

    font = base64.b64encode((_vendor() / "DejaVuSans.ttf").read_bytes()).decode()
    written = []
    for figure in figures:
        svg = picture(figure)
        made = {
            "svg": lambda svg=svg: _with_font(svg, font).encode(),
            "png": lambda svg=svg: vl_convert.svg_to_png(svg, scale=3),
            "pdf": lambda svg=svg: vl_convert.svg_to_pdf(svg),
        }
        for name in formats:
            file = folder / f"{figure.name}.{name}"
            write_bytes(file, made[name]())
            written.append(file)
    return written


def picture(figure: Figure) -> str:
    """The figure as SVG, which names its font and does not hold it."""
    import vl_convert

    with resources.as_file(_vendor()) as fonts:
        vl_convert.register_font_directory(str(fonts))
    svg: str = vl_convert.vegalite_to_svg(json.dumps(for_paper(figure)))
    return svg


def _vendor() -> Traversable:
    return resources.files(__package__) / "vendor"


def for_paper(figure: Figure) -> dict[str, Any]:
    """The chart on white, with a fixed width, and one font throughout."""
    spec = figure.spec()
    spec["width"] = WIDTH
    if figure.square:
        spec["height"] = WIDTH
    for layer in spec.get("layer", []):
        layer.pop("width", None)
        layer.pop("height", None)
    spec["background"] = "white"
    for parameter in spec.get("params", []):
        parameter.pop("bind", None)  # a slider has no place on paper
    legend = {"orient": "bottom", "labelLimit": 400, "columns": 1 if "errors" in figure.name else 4}
    legend |= {"titleFontWeight": "normal"}
    spec["config"] = {"font": FONT, "legend": legend, "axis": {"titleFontWeight": "normal"}, "view": {"stroke": None}}
    return spec


def _with_font(svg: str, font: str) -> str:
    """The SVG with the font it names inside it."""
    face = f"@font-face{{font-family:'{FONT}';src:url(data:font/ttf;base64,{font}) format('truetype')}}"
    start = svg.index(">", svg.index("<svg")) + 1
    return f"{svg[:start]}<defs><style>{face}</style></defs>{svg[start:]}"
