"""How notebooks show tables, pictures and lines of cells: helpers for `_repr_html_` and `_repr_svg_`."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import linecache
import sys
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_DISPLAYS = "pycollective.schedule.drawing.display"
"""Registers the display of programs, schedules and simulations; loaded when one is shown."""


@functools.singledispatch
def html(value: object) -> str | None:
    """The result of a value's `_repr_html_`. Modules that can show a type register with this function."""
    return _after_loading(html, value)


@functools.singledispatch
def picture(value: object) -> str | None:
    """The result of a value's `_repr_svg_`; likewise."""
    return _after_loading(picture, value)


def _after_loading(show: functools._SingleDispatchCallable[str | None], value: object) -> str | None:
    importlib.import_module(_DISPLAYS)
    registered = show.dispatch(type(value))
    return None if registered is show.dispatch(object) else registered(value)


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = (), caption: str = "") -> str:
    """An HTML table of strings. Without a header, the first cell of each row is its heading."""
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
    """Return whether matplotlib is installed (the extra `plot`): without it, tables replace pictures."""
    return importlib.util.find_spec("matplotlib") is not None


def svg(figure: Any) -> str:
    """A matplotlib figure as SVG text; equal figures give equal text, so that a saved notebook stays the same."""
    from matplotlib import rc_context

    drawn = io.StringIO()
    with rc_context({"svg.hashsalt": "pycollective"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue()
    return text[text.index("<svg") :]  # a notebook's page is not XML: no declaration


def place(where: str) -> str:
    """ "FILE:LINE" in IPython's form if FILE is a notebook cell: "Cell In[3], line 7"; otherwise unchanged."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    name = getattr(getattr(shell, "compile", None), "format_code_name", None)  # IPython 8 has it
    file, _, line = where.rpartition(":")
    cell = name(file) if name is not None and file else None
    return f"{' '.join(cell)}, line {line}" if cell else where


def statement(where: str) -> str:
    """Format an error's place, with the source if it is in a cell: cells are shown without line numbers."""
    shown = place(where)
    if shown == where:
        return where
    file, _, line = where.rpartition(":")
    return f"{shown}: {linecache.getline(file, int(line)).strip()}"
