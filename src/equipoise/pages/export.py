"""Figures as image files for a paper: SVG with an embedded font, PNG or PDF."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from equipoise.core.directory import Directory
from equipoise.core.extras import require
from equipoise.errors import RunError, UsageError, unknown_name
from equipoise.pages.figure import Figure

FORMATS = ("svg", "png", "pdf")
FONT = "DejaVu Sans"
WIDTH = 520


def check_formats(formats: str | Sequence[str]) -> list[str]:
    """Return the names of the formats, which may be a comma-separated list; unknown ones raise an error."""
    listed = formats.split(",") if isinstance(formats, str) else formats
    names = [name.strip().lower() for name in listed if name.strip()]
    for name in names:
        if name not in FORMATS:
            raise unknown_name("picture format", name, FORMATS)
    return names


def export_figures(figures: Sequence[Figure], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write every figure in every format; return the files."""
    converter = require("vl_convert", "report", "--figures")
    directory = Directory(folder)
    try:
        directory.make_dir()
    except RunError as error:
        raise UsageError(f"{error}; choose another --figures") from error
    font = base64.b64encode((_vendor() / "DejaVuSans.ttf").read_bytes()).decode()
    written = []
    for figure in figures:
        svg = to_svg(figure)
        for name in formats:
            if name == "svg":
                data = _with_font(svg, font).encode()
            else:
                data = converter.svg_to_png(svg, scale=3) if name == "png" else converter.svg_to_pdf(svg)
            directory.write_bytes(f"{figure.name}.{name}", data)
            written.append(folder / f"{figure.name}.{name}")
    return written


def to_svg(figure: Figure) -> str:
    """Return a figure as SVG, which names its font but does not contain it."""
    converter = require("vl_convert", "report", "--figures")
    with resources.as_file(_vendor()) as fonts:
        converter.register_font_directory(str(fonts))
    svg: str = converter.vegalite_to_svg(json.dumps(_for_paper(figure)))
    return svg


def _vendor() -> Traversable:
    return resources.files(__package__) / "vendor"


def _for_paper(figure: Figure) -> dict[str, Any]:
    """Return the chart on white, with a fixed width and one font."""
    spec = {**figure.spec(), "width": WIDTH, "background": "white"}
    if figure.square:
        spec["height"] = WIDTH
    for layer in spec.get("layer", []):
        layer.pop("width", None)
        layer.pop("height", None)
    for parameter in spec.get("params", []):
        parameter.pop("bind", None)  # paper has no sliders
    legend = {"orient": "bottom", "labelLimit": 400, "columns": 1 if "errors" in figure.name else 4}
    legend |= {"titleFontWeight": "normal"}
    spec["config"] = {"font": FONT, "legend": legend, "axis": {"titleFontWeight": "normal"}, "view": {"stroke": None}}
    return spec


def _with_font(svg: str, font: str) -> str:
    """Embed the font that the SVG names."""
    face = f"@font-face{{font-family:'{FONT}';src:url(data:font/ttf;base64,{font}) format('truetype')}}"
    start = svg.index(">", svg.index("<svg")) + 1
    return f"{svg[:start]}<defs><style>{face}</style></defs>{svg[start:]}"
