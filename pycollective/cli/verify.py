"""`pycollective verify` and `pycollective topologies`."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pycollective.errors import Error, TopologyError
from pycollective.schedule import (
    COLLECTIVES,
    Report,
    describe,
    get,
    info,
    label,
    load,
    names,
    verify_topology,
)
from pycollective.schedule.program import MOST_RANKS


@dataclass
class _Row:
    """What was proved about one collective of one topology."""

    topology: str
    collective: str
    sizes: list[int]
    schedules: int = 0
    orders: set[str] = field(default_factory=set)
    largest: Report | None = None
    seconds: float = 0.0
    error: Exception | None = None

    def run(self, instance: Any) -> Iterator[int]:
        """Verify, one size after the other; stops at the first error, which it keeps."""
        started = time.perf_counter()
        for size in self.sizes:
            try:
                for report in verify_topology(instance, [size], collectives=[self.collective]):
                    self.schedules += 1
                    if size > 1:  # one rank has no order
                        self.orders.add(report.order)
                    if self.largest is None or report.steps > self.largest.steps:
                        self.largest = report
            except Exception as error:  # the user's code may raise anything; the other rows go on
                self.error = error
                break
            finally:
                self.seconds = time.perf_counter() - started
            yield size


def verify(where: str, ranks: str, collectives: str = "") -> int:
    """Verify topologies and print a table; 1 when anything is wrong, 2 when the request is.

    Args:
        where: a registered name, "name(parameter=value)", "FILE.py:NAME", "FILE.py" (all in it) or "all".
        ranks: numbers of ranks, as "1-17" or "2,4,8".
        collectives: names separated by commas; all that the topology has by default.
    """
    from rich.console import Console

    console, errors = Console(), Console(stderr=True)
    try:
        instances = find(where)
        rows = [row for instance in instances for row in _rows(instance, parse_ranks(ranks), collectives)]
    except (Error, ValueError, OSError, SyntaxError) as error:
        errors.print("✗", end=" ", style="red", highlight=False)
        errors.print(str(error), markup=False, highlight=False, soft_wrap=True)
        return 2
    _work(rows, {label(instance): instance for instance in instances}, errors)
    console.print(_table(rows))
    wrong = [row for row in rows if row.error is not None]
    for row in wrong:
        assert row.error is not None
        errors.print(f"{row.topology} {row.collective}: {type(row.error).__name__}", style="bold red", highlight=False)
        errors.print(f"  {row.error}{place(row.error)}", markup=False, highlight=False, soft_wrap=True)
    total = sum(row.schedules for row in rows)
    seconds = sum(row.seconds for row in rows)
    console.print(
        f"{total} schedules proved in {seconds:.1f} s" + (f", {len(wrong)} collectives wrong" if wrong else "")
    )
    return int(bool(wrong))


def place(error: Exception) -> str:
    """Where an error was raised that is not one of ours, which say it themselves."""
    if isinstance(error, Error):
        return ""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f" ({last.filename}:{last.lineno})"


def find(where: str) -> list[Any]:
    """The topology instances that a command's argument names.

    Raises:
        TopologyError: nothing of that name or in that file, or the file raises something when it is run.
        OSError, SyntaxError: the file cannot be read or compiled.
    """
    try:
        return _find(where)
    except (Error, OSError, SyntaxError):
        raise
    except Exception as error:  # a user's file may raise anything
        raise TopologyError(f"{where!r}: {type(error).__name__}: {error}{place(error)}") from error


def _find(where: str) -> list[Any]:
    if where == "all":
        return [get(name) for name in names()]
    path = Path(where.rpartition(":")[0] if ".py:" in where else where)
    if path.suffix != ".py":
        return [get(where)]
    try:
        return [load(where)]
    except TopologyError:
        if ".py:" in where:
            raise
        found = [get(row.cls) for row in describe() if _file_of(row.cls) == path.resolve()]
        if not found:
            raise
        return found


def parse_ranks(text: str) -> list[int]:
    """`"1-3,8"` as [1, 2, 3, 8].

    Raises:
        ValueError: anything else, or a number below 1 or above MOST_RANKS.
    """
    sizes: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            begin, end = int(first), int(last if dash else first)
        except ValueError:
            raise ValueError(f"rank counts are written as 1-17 or 2,4,8, not {text[:80]!r}") from None
        if begin < 1 or end > MOST_RANKS:
            raise ValueError(f"rank counts are from 1 to {MOST_RANKS}, in {text[:80]!r}")
        sizes.update(range(begin, end + 1))
    if not sizes:
        raise ValueError(f"rank counts are written as 1-17 or 2,4,8, not {text[:80]!r}")
    return sorted(sizes)


def list_topologies(as_json: bool) -> None:
    """Print one row for each registered topology."""
    if as_json:
        fields = ("name", "order", "small", "collectives", "doc")
        print(json.dumps([{name: getattr(row, name) for name in fields} for row in describe()], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(header_style="bold", box=None)
    for column in ("topology", "order", "collectives", ""):
        table.add_column(column)
    for row in describe():
        table.add_row(row.name, row.order, " ".join(row.collectives), row.doc)
    console = Console()
    console.print(table)
    console.print(
        "order: how each element is reduced: in [bold]rank[/] order, in one [bold]fixed[/] order, "
        "or in one that depends on the [bold]chunk[/]",
        style="dim",
    )


def _rows(instance: Any, sizes: list[int], collectives: str) -> list[_Row]:
    there = info(instance).collectives
    wanted = [name.strip() for name in collectives.split(",")] if collectives else list(there)
    for name in wanted:
        if name not in COLLECTIVES:
            raise ValueError(f"no collective is called {name!r}; there are {', '.join(COLLECTIVES)}")
        if name not in there:
            raise ValueError(f"{label(instance)} has no {name}; it has {', '.join(there)}")
    return [_Row(label(instance), name, sizes) for name in wanted]


def _work(rows: list[_Row], instances: dict[str, Any], console: Any) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("verify", total=sum(len(row.sizes) for row in rows))
        done = 0
        for row in rows:
            progress.update(task, description=f"{row.topology} {row.collective}")
            for _ in row.run(instances[row.topology]):
                progress.advance(task)
            done += len(row.sizes)
            progress.update(task, completed=done)


def _table(rows: list[_Row]) -> Any:
    from rich.table import Table

    caption = "order: the weakest found; steps, waits and scratch cells: of the schedule with most steps"
    table = Table(header_style="bold", box=None, pad_edge=False, caption=caption, caption_justify="left")
    for column in ("topology", "collective", "ranks", "proved", "order"):
        table.add_column(column, no_wrap=True)
    for column in ("steps", "waits", "cells", "ms"):
        table.add_column(column, justify="right")
    table.add_column("")
    for row in rows:
        most = row.largest
        weakest = min(row.orders, key=("none", "chunk", "fixed", "rank").index, default="")
        table.add_row(
            row.topology,
            row.collective,
            f"{row.sizes[0]}..{row.sizes[-1]}",
            str(row.schedules),
            weakest if COLLECTIVES[row.collective].reduces else "",
            *(map(str, (most.steps, most.waits, most.cells)) if most else ("", "", "")),
            f"{1e3 * row.seconds:.0f}",
            "[green]✓[/]" if row.error is None else "[red]✗[/]",
        )
    return table


def _file_of(cls: type) -> Path | None:
    name = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(name).resolve() if name else None
