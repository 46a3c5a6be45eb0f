"""How each of our SVG pictures begins: size, title, ground, and the colours of a dark page. Pure."""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape

INK: Final = "#22262c"
GROUND: Final = "#ffffff"
PALE: Final = "#f4f5f7"
GRID: Final = "#e3e6ea"
QUIET: Final = "#6a717b"
ALARM: Final = "#b3261e"
_DARK: Final = (
    (f'rect[fill="{GROUND}"]', "fill: #1e2129"),
    (f'[fill="{INK}"]', "fill: #e3e6ea"),
    (f'[stroke="{INK}"]', "stroke: #e3e6ea"),
    (f'[fill="{PALE}"]', "fill: #2b303b"),
    (f'[stroke="{GRID}"]', "stroke: #3d4451"),
    (f'[fill="{QUIET}"]', "fill: #a9b0bb"),
    (f'[fill="{ALARM}"]', "fill: #f2897f"),
    (f'[stroke="{ALARM}"]', "stroke: #f2897f"),
)
DARK: Final = (
    "<style>@media (prefers-color-scheme: dark) { "
    + " ".join(f"{where} {{ {what} }}" for where, what in _DARK)
    + " }</style>"
)
"""A picture in a page follows the page: a browser gives it the colour scheme of the element that shows it."""


def opening(title: str, width: float, height: float) -> list[str]:
    """The first lines of a document; the last one is `</svg>`. `title` is plain text."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="12" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        DARK,
        f'<rect width="{width}" height="{height}" fill="{GROUND}"/>',
    ]
