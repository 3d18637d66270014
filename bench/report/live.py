"""The table of a session as it grows, with a progress bar."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from pycollective.cli.units import format_size

from ..result import Row
from .table import row_table


def can_redraw(console: Console) -> bool:
    """Return whether output can be replaced: on a terminal.

    A command in a notebook's cell (`!pycollective bench`) also has a terminal, but its cursor cannot move up.
    """
    return console.is_terminal and "JPY_PARENT_PID" not in os.environ


class LiveTable:
    """Watches a session: on a terminal it shows the newest rows and a progress bar, elsewhere only the final table.

    It is redrawn only on new events, i.e. between measurements: the ranks need
    the cores.
    """

    def __init__(self, console: Console, worlds: int) -> None:
        self._console, self._worlds = console, worlds
        self._drawn = can_redraw(console)
        self._rows: list[Row] = []
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("starting ranks", total=None)
        self._world = 0
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> LiveTable:
        if self._drawn:
            self._live.start()
            self._draw()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._drawn:
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
                self._console.print(Text(event["text"], style="yellow"), soft_wrap=True)
            case "group":
                self._progress.advance(self._task)
                self._draw()
            case "end" if self._world < self._worlds:
                self._progress.update(self._task, description="starting ranks")
                self._draw()

    def _draw(self) -> None:
        if not self._drawn:
            return
        room = max(3, (self._console.height - 10) // 2)
        shown: list[RenderableType] = [row_table(self._rows[-room:], self._console.width)] if self._rows else []
        self._live.update(Group(*shown, self._progress), refresh=True)

    def summary(self) -> str:
        """One line: number of measurements and whether all of them were right."""
        checked = [row.wrong for row in self._rows if row.wrong is not None]
        sizes = [row.size for row in self._rows]
        span = f", {format_size(min(sizes))} to {format_size(max(sizes))}" if sizes else ""
        return f"{len(self._rows)} rows{span}; {sum(checked) or 'no'} wrong elements" + (
            "" if len(checked) == len(self._rows) else ", not all were checked"
        )
