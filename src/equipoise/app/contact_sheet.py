"""The contact sheet of sorted photos: one HTML file that shows every folder."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from equipoise.core.escape import page_text
from equipoise.core.files import write_bytes

if TYPE_CHECKING:
    from equipoise.app.sorting import SortedPhoto

SHEET = "contact-sheet.html"
SHOWN = 300
"""Photos of a folder that are shown."""
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>Sorted photos</title>
<style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
body {{ max-width: 72rem; margin: 0 auto; padding: 1rem; }}
h2 {{ margin: 2rem 0 .5rem; border-top: 1px solid #8884; padding-top: 1rem; }}
h2 small {{ font-weight: normal; opacity: .75; }}
.unknown h2 {{ border-top-color: #c60; }}
ul {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(7rem, 1fr)); gap: .5rem; padding: 0; }}
li {{ list-style: none; font-size: .75rem; overflow-wrap: anywhere; }}
span {{ opacity: .75; }}
img {{ width: 100%; aspect-ratio: 1; object-fit: cover; border-radius: .25rem; display: block; }}
</style>
<h1>Sorted photos</h1>
<p>{intro}</p>
{sections}
</html>
"""


def write_sheet(out: Path, photos: Sequence[SortedPhoto]) -> None:
    """Write the contact sheet into a directory of sorted photos."""
    folders: dict[str, list[SortedPhoto]] = {}
    placed = [photo for photo in photos if photo.folder is not None]
    for photo in sorted(placed, key=_order):
        folders.setdefault(str(photo.folder), []).append(photo)
    unknown = sum(1 for mine in folders.values() if mine[0].unknown)
    intro = f"{len(placed):,} photos in {len(folders):,} folders. In each folder, the least certain photos come first."
    if unknown:
        intro += (
            f" {unknown:,} of the folders contain photos that look like none of the classes: rename these folders, "
            "move photos that are in the wrong folder, and teach them."
        )
    sections = "\n".join(_section(name, mine) for name, mine in folders.items())
    page = PAGE.format(intro=html.escape(intro), sections=sections)
    write_bytes(out / SHEET, page.encode(errors="replace"))


def _order(photo: SortedPhoto) -> tuple[bool, int, str, float]:
    """Sort unknown photos first, unknown-2 before unknown-10, and within a folder the least certain first."""
    folder = str(photo.folder)
    return not photo.unknown, len(folder) if photo.unknown else 0, folder, photo.probability


def _section(name: str, photos: Sequence[SortedPhoto]) -> str:
    count = f"{len(photos):,} photo{'s' if len(photos) > 1 else ''}"
    more = f"<p>… and {len(photos) - SHOWN:,} more</p>" if len(photos) > SHOWN else ""
    items = "\n".join(_item(name, photo) for photo in photos[:SHOWN])
    kind = "unknown" if photos[0].unknown else "known"
    title = f"<h2>{_text(name)} <small>{count}</small></h2>"
    return f'<section class="{kind}">{title}<ul>\n{items}\n</ul>{more}</section>'


def _item(folder: str, photo: SortedPhoto) -> str:
    file = Path(photo.to or photo.path).name
    link = quote(f"{folder}/{file}", errors="replace")
    picture = f"data:image/jpeg;base64,{base64.b64encode(photo.picture).decode()}"
    what = f"nearest: {photo.label}" if photo.unknown else f"{photo.probability:.0%}"
    return (
        f'<li><a href="./{link}"><img src="{picture}" alt="{_text(file)}" loading="lazy"></a>'
        f"{_text(file)}<br><span>{_text(what)}</span></li>"
    )


def _text(name: str) -> str:
    return html.escape(page_text(name))
