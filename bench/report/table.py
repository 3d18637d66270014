"""The tables for display."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pycollective.cli.units import format_size, format_time

from ..measurement.stats import paired_ratio
from ..row import Row
from ..workload.plan import NAMES, OURS

__all__ = ["format_number", "pivot_table", "row_html", "row_table"]

_FIELDS = ("collective", "size", "count", "type", "op", "root", "ranks", "library")
"""Columns that show a field of the row as it is."""
_COLUMNS = (*_FIELDS, "topology", "path", "time", "p99", "algbw", "busbw", "#wrong")
_SAME = ("collective", "type", "op", "root", "ranks")
_TITLES = {"collective": "{}", "type": "{}", "op": "{}", "root": "", "ranks": "{} ranks"}
_RIGHT = {"ranks", "size", "count", "root", "time", "p99", "algbw", "busbw", "#wrong"}
_HTML_WIDTH = 160
_UNITS = {"size": "(B)", "count": "(elements)", "time": "(us)", "p99": "(us)", "algbw": "(GB/s)", "busbw": "(GB/s)"}


def format_number(value: float) -> str:
    """Four significant digits, never an exponent."""
    if value >= 1000:
        return f"{value:.0f}"
    for decimals, least in ((1, 100.0), (2, 10.0)):
        if value >= least:
            return f"{value:.{decimals}f}"
    return f"{value:.3f}"


def row_table(rows: Iterable[Row], width: int) -> Table:
    """Rows in the style of nccl-tests, a rule between groups, the fastest of each group in bold.

    If the width is not sufficient, columns with equal values move to the title, then others are omitted.
    """
    rows = list(rows)
    fastest: dict[int, float] = {}
    for row in rows:
        fastest[row.group] = min(row.time_us, fastest.get(row.group, row.time_us))
    cells = [_cells(row) for row in rows]
    same = [name for name in _SAME if len({str(one[name]) for one in cells}) == 1]
    headings = _fitting(cells, same, width)
    titles = [_TITLES[name].format(cells[0][name]) for name in same if name not in headings]
    title = ", ".join(text for text in titles if text and "none" not in text)
    table = Table(title=title or None, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        unit = f"\n[dim]{_UNITS[heading]}[/]" if heading in _UNITS else ""
        table.add_column(heading + unit, justify="right" if heading in _RIGHT else "left", no_wrap=True)
    for at, row in enumerate(rows):
        last = at + 1 == len(rows) or rows[at + 1].group != row.group
        style = "bold" if row.time_us == fastest[row.group] else "" if row.library == OURS else "dim"
        table.add_row(*(cells[at][heading] for heading in headings), style=style, end_section=last)
    return table


def row_html(rows: Iterable[Row]) -> str:
    """Format the table of `row_table` as HTML."""
    console = Console(record=True, width=_HTML_WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(row_table(rows, _HTML_WIDTH))
    return console.export_html(inline_styles=True, code_format='<pre style="line-height: 1.2">{code}</pre>')


def _fitting(cells: Sequence[dict[str, RenderableType]], same: Sequence[str], width: int) -> list[str]:
    """The columns that fit the width; those by which rows differ are omitted last."""
    headings = [name for name in _COLUMNS if name != "collective" or name not in same]
    spare = ("count", "algbw", "p99", "path", "library")
    keys = [one for one in ("library", "path") if len({str(cell[one]) for cell in cells}) > 1]
    for dropped in (*same, *(one for one in spare if one not in keys), "busbw", *keys):
        widths = (max(len(name), len(_UNITS.get(name, "")), *(len(str(c[name])) for c in cells)) for name in headings)
        if sum(widths) + 3 * len(headings) + 1 <= width:
            break
        headings = [name for name in headings if name != dropped]
    return headings


def _cells(row: Row) -> dict[str, RenderableType]:
    return {
        **{name: str(getattr(row, name)) for name in _FIELDS},
        "topology": row.topology or "-",
        "path": row.path + (", torch" if row.arrays == "torch" else "") + (" in place" if row.in_place else ""),
        "time": format_number(row.time_us),
        "p99": "-" if row.p99_us is None else format_number(row.p99_us),
        "algbw": format_number(row.algbw),
        "busbw": format_number(row.busbw),
        "#wrong": Text("N/A" if row.wrong is None else str(row.wrong), style="bold red" if row.wrong else ""),
    }


def pivot_table(rows: Sequence[Row], reference: str, width: int) -> Table:
    """A row per library, columns for as many sizes as fit: times, and the speedup over the reference library.

    The rows must be of one collective, type, operator and rank count.
    """
    sizes = sorted({row.size for row in rows})
    fitting = max(1, (width - 34) // 18)
    sizes = sizes[:: -(-len(sizes) // fitting)]
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("library", no_wrap=True)
    table.add_column("topology", no_wrap=True)
    for size in sizes:
        table.add_column(format_size(size), justify="right", no_wrap=True)
    references = {row.size: row for row in rows if row.library == reference}
    fastest = {size: min(row.time_us for row in rows if row.size == size) for size in sizes}
    for library, topology in dict.fromkeys((row.library, row.topology) for row in rows):
        here = {row.size: row for row in rows if (row.library, row.topology) == (library, topology)}
        cells = [_against(here.get(size), references.get(size), fastest[size]) for size in sizes]
        table.add_row(NAMES.get(library, library), topology or "-", *cells)
    return table


def _against(row: Row | None, reference: Row | None, fastest: float) -> Text:
    if row is None:
        return Text("-")
    text = Text(format_time(row.time_us / 1e6), style="bold" if row.time_us == fastest else "")
    if row.wrong:
        return text.append("  WRONG", style="bold red")
    if reference is not None and reference is not row:
        ratio = paired_ratio(row.rounds_us, reference.rounds_us).median
        shown = f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.1f}x" if ratio >= 0.1 else f"{ratio:.2f}x"
        text.append(f" {shown:>5}", style="green" if ratio >= 1 else "dim")
    return text
