"""Tables and pictures as notebooks show them: what `_repr_html_` and `_repr_svg_` methods are written with."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = (), caption: str = "") -> str:
    """An HTML table of texts. Without a header the first cell of each row is its heading."""
    parts = ["<table>"]
    if caption:
        parts.append(f'<caption style="text-align: left; font-weight: bold">{escape(caption)}</caption>')
    if header:
        parts.append(f"<tr>{''.join(_cell('th', text) for text in header)}</tr>")
    for first, *others in rows:
        cells = _cell("td" if header else "th", first) + "".join(_cell("td", other) for other in others)
        parts.append(f"<tr>{cells}</tr>")
    return "".join([*parts, "</table>"])


def _cell(tag: str, content: object) -> str:
    return f'<{tag} style="text-align: left">{escape(str(content))}</{tag}>'


def can_draw() -> bool:
    """Whether matplotlib is installed (the extra `plot`): without it there are tables in place of pictures."""
    return importlib.util.find_spec("matplotlib") is not None


def svg(figure: Any) -> str:
    """A matplotlib figure as SVG text."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    text = drawn.getvalue()
    return text[text.index("<svg") :]  # a notebook's page is not XML: no declaration
