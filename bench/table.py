"""The table that people see: live with a progress bar while it grows, whole at the end."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from .cases import format_size
from .plan import OURS
from .result import Row

__all__ = ["LiveTable", "format_number", "row_table"]

_COLUMNS: tuple[str, ...] = (
    "collective",
    "size",
    "count",
    "type",
    "op",
    "root",
    "ranks",
    "library",
    "topology",
    "path",
)
_COLUMNS += ("time", "algbw", "busbw", "#wrong")
_DROPPED = ("collective", "type", "op", "root", "ranks")
_FULL = 125
_RIGHT = {"ranks", "size", "count", "root", "time", "algbw", "busbw", "#wrong"}
_UNITS = {"size": "(B)", "count": "(elements)", "time": "(us)", "algbw": "(GB/s)", "busbw": "(GB/s)"}


def format_number(value: float) -> str:
    """Four significant digits, never an exponent."""
    if value >= 1000:
        return f"{value:.0f}"
    for decimals, least in ((1, 100.0), (2, 10.0)):
        if value >= least:
            return f"{value:.{decimals}f}"
    return f"{value:.3f}"


def row_table(rows: Iterable[Row], width: int = _FULL) -> Table:
    """Rows as nccl-tests shows them, a rule between groups, the fastest of each group in bold.

    On less than the full width, columns that say the same in every row move into the title.
    """
    rows = list(rows)
    fastest: dict[int, float] = {}
    for row in rows:
        fastest[row.group] = min(row.time_us, fastest.get(row.group, row.time_us))
    cells = [_cells(row) for row in rows]
    same = [name for name in _DROPPED if len({str(one[name]) for one in cells}) == 1]
    headings = [name for name in _COLUMNS if name not in (same if width < _FULL else same[:1])]
    title = ", ".join(
        f"{name} {cells[0][name]}" for name in same if str(cells[0][name]) not in ("none", "-1")
    )
    table = Table(title=title or None, title_justify="left", header_style="bold", pad_edge=False)
    for heading in headings:
        unit = f"\n[dim]{_UNITS[heading]}[/]" if heading in _UNITS else ""
        table.add_column(heading + unit, justify="right" if heading in _RIGHT else "left", no_wrap=True)
    for at, row in enumerate(rows):
        last = at + 1 == len(rows) or rows[at + 1].group != row.group
        style = "bold" if row.time_us == fastest[row.group] else "" if row.library == OURS else "dim"
        table.add_row(*(cells[at][heading] for heading in headings), style=style, end_section=last)
    return table


def _cells(row: Row) -> dict[str, RenderableType]:
    return {
        "collective": row.collective,
        "size": str(row.size),
        "count": str(row.count),
        "type": row.type,
        "op": row.op,
        "root": str(row.root),
        "ranks": str(row.ranks),
        "library": row.library,
        "topology": row.topology or "-",
        "path": row.path + (" in place" if row.in_place else ""),
        "time": format_number(row.time_us),
        "algbw": format_number(row.algbw),
        "busbw": format_number(row.busbw),
        "#wrong": Text(str(row.wrong), style="bold red" if row.wrong else ""),
    }


class LiveTable:
    """Watches a session: on a terminal the newest rows and a progress bar, elsewhere nothing until the end.

    The picture is redrawn only when something has arrived, which is between measurements: the ranks need
    the cores.
    """

    def __init__(self, console: Console, worlds: int) -> None:
        self._console, self._worlds = console, worlds
        self._rows: list[Row] = []
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("starting ranks", total=None)
        self._world = 0
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> LiveTable:
        if self._console.is_terminal:
            self._live.start()
            self._draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        match event["kind"]:
            case "begin":
                self._world += 1
                self._progress.reset(self._task, total=event["groups"])
                count = f" ({self._world} of {self._worlds})" if self._worlds > 1 else ""
                self._progress.update(self._task, description=f"{event['ranks']} ranks{count}")
            case "row":
                self._rows.append(Row(**event["row"]))
            case "note":
                self._console.print(Text(event["text"], style="yellow"))
            case "group":
                self._progress.advance(self._task)
                self._draw()
            case "end" if self._world < self._worlds:
                self._progress.update(self._task, description="starting ranks")
                self._draw()

    def _draw(self) -> None:
        if not self._console.is_terminal:
            return
        room = max(3, (self._console.height - 10) // 2)
        shown: list[RenderableType] = (
            [row_table(self._rows[-room:], self._console.width)] if self._rows else []
        )
        self._live.update(Group(*shown, self._progress), refresh=True)

    def summary(self) -> str:
        """One line: how much was measured and whether all of it was right."""
        wrong = sum(row.wrong for row in self._rows)
        sizes = [row.size for row in self._rows]
        span = f", {format_size(min(sizes))} to {format_size(max(sizes))}" if sizes else ""
        return f"{len(self._rows)} rows{span}; {wrong or 'no'} wrong elements"
