"""The console for tables and progress bars: like ``output``, it escapes control characters in all that it prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from equipoise.core.open_dir import printable
from equipoise.core.output import writing_output


class SafeConsole(Console):
    """A console in which every string is one line."""

    def print(self, *objects: Any, **options: Any) -> None:
        with writing_output():
            super().print(*objects, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape before the text is measured, so that columns of tables stay aligned."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape renderables other than strings, such as the ``Text`` of a progress bar."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield segment._replace(text="\n".join(map(printable, segment.text.split("\n"))))


def make_console() -> Console:
    """Return a console for standard output."""
    return SafeConsole(highlight=False, emoji=False)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines, which may be longer than the console is wide."""
    for line in lines:
        console.print(line, soft_wrap=True)
