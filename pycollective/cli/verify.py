"""`pycollective verify`: proofs for all collectives of topologies."""

from __future__ import annotations

import linecache
import re
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from pycollective.cli import outputs, selection
from pycollective.cli.commands import refusing
from pycollective.cli.options import AllCollectives, Json, Picture, Positional, Topology
from pycollective.errors import ProgramError, VerificationError
from pycollective.schedule import COLLECTIVES, Report, info, label, verify_topology
from pycollective.schedule.language import registry
from pycollective.schedule.verifier.verifier import supported_sizes

_NAMED_LINE = re.compile(r"(.+?:\d+): ")


@dataclass
class Row:
    """What was proved about one collective of one topology."""

    topology: str
    collective: str
    sizes: list[int]
    left_out: list[int]  # numbers of ranks that the topology does not support
    host_counts: list[int] | None = None  # requested numbers of hosts
    hosts: set[int] = field(default_factory=set)  # those proved
    schedules: int = 0
    orders: set[str] = field(default_factory=set)
    largest: Report | None = None
    longest: dict[int, int] = field(default_factory=dict)  # by ranks: maximum number of steps of a rank
    seconds: float = 0.0
    error: Exception | None = None  # the first
    correct_above: list[int] = field(default_factory=list)  # numbers of ranks above that of the error

    def run(self, instance: Any) -> Iterator[int]:
        """Verify, one size after the other; stores the first error, and stops there if the topology declares sizes."""
        started = time.perf_counter()
        for size in self.sizes:
            try:
                for report in verify_topology(instance, [size], collectives=[self.collective], hosts=self.host_counts):
                    self._take(size, report)
            except Exception as error:  # the user's code may raise anything; the other rows continue
                self.error = self.error or error
                if info(instance).ranks is not None:
                    break
            else:
                self.correct_above += [size] if self.error else []
            finally:
                self.seconds = time.perf_counter() - started
            yield size

    def _take(self, size: int, report: Report) -> None:
        self.schedules += 1
        self.hosts.add(report.hosts)
        self.longest[size] = max(report.longest, self.longest.get(size, 0))
        if size > 1:  # one rank has no order
            self.orders.add(report.order)
        if self.largest is None or report.steps > self.largest.steps:
            self.largest = report

    @property
    def order(self) -> str:
        """The weakest order that was found; empty without a reduction."""
        weakest = min(self.orders, key=("none", "chunk", "fixed", "rank").index, default="")
        return weakest if COLLECTIVES[self.collective].reduces else ""


def verify(
    topology: Positional = None,
    named: Topology = None,
    ranks: Annotated[
        str | None, typer.Option(help="rank counts, as 1-17 or 2,4,8", show_default="those of 1-17 that it supports")
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(
            help="numbers of hosts with equal shares of the ranks, as 2 or 1-3",
            show_default="1; with 2 to 8 ranks also 2, 3, one for each rank, and 2 with alternating ranks",
        ),
    ] = None,
    collective: AllCollectives = "",
    json: Json = None,
    plot: Picture = None,
) -> int:
    """Prove every compiled schedule of a topology correct, free of races and deadlocks; exit code 1 if not.

    'all' stands for all topologies. --plot: the steps of each over ranks.
    """
    from rich.console import Console

    console, errors = Console(quiet=json == outputs.STDOUT), Console(stderr=True)
    with refusing("matplotlib" if plot else ""):
        instances = selection.topologies(topology, named)
        if not instances:
            raise ValueError("name a topology, FILE.py:NAME, FILE.py or all")
        rows = [row for instance in instances for row in _rows(instance, ranks, hosts, collective)]
        outputs.check(plot, json)
    _work(rows, {label(instance): instance for instance in instances})
    console.print(_table(rows))
    wrong = [row for row in rows if row.error is not None]
    for row in wrong:
        assert row.error is not None
        errors.print(f"{row.topology} {row.collective}: {type(row.error).__name__}", style="bold red", highlight=False)
        for line in (*_report(row.error), *_declaration(row)):
            errors.print(line, markup=False, highlight=False, soft_wrap=True)
    for text in dict.fromkeys(_left_out(row) for row in rows if row.left_out):
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    total, seconds = sum(row.schedules for row in rows), sum(row.seconds for row in rows)
    proved = f"{total} schedules proved in {seconds:.1f} s" if total or not wrong else "nothing was proved"
    console.print(proved + (f"; {len(wrong)} of {len(rows)} collectives failed" if wrong else ""))
    outputs.write_json(json, "pycollective-verification/1", {"rows": [_plain(row) for row in rows]})
    if plot is not None:
        _plot(rows, plot)
        console.print(f"plot: {plot}", highlight=False)
    return int(bool(wrong))


def _rows(instance: Any, ranks: str | None, hosts: str | None, collectives: str) -> list[Row]:
    wanted = selection.collectives(collectives) if collectives else list(info(instance).collectives)
    selection.having([instance], wanted)
    counts = supported_sizes(instance) if ranks is None else selection.ranks(ranks)
    sizes = selection.supported(instance, counts)
    left_out = [count for count in counts if count not in sizes]
    host_counts = None
    if hosts is not None:
        host_counts = selection.ranks(hosts, "host", "2 or 1-3")
        if host_counts[0] > sizes[-1]:
            raise ValueError(f"--hosts {hosts}: {sizes[-1]} ranks are on 1 to {sizes[-1]} hosts")
        sizes = [size for size in sizes if size >= host_counts[0]]
    return [Row(label(instance), name, sizes, left_out, host_counts) for name in wanted]


def _left_out(row: Row) -> str:
    instance = registry.get(row.topology)
    rule = info(instance).ranks
    assert rule is not None
    return f"{row.topology} takes {rule.words(instance)}: {len(row.left_out)} other rank counts are left out"


def _report(error: Exception) -> Iterator[str]:
    """The error's message, then each statement that it refers to: file, line and source."""
    yield f"  {error.message if isinstance(error, VerificationError) else error}{selection.place(error)}"
    for where in source_lines(error):
        file, _, number = where.rpartition(":")
        text = linecache.getline(file, int(number)).strip()
        if text:
            yield f"    {_short(file)}:{number}: {text}"


def _declaration(row: Row) -> Iterator[str]:
    """A hint for a topology that is correct for numbers of ranks which it does not declare."""
    if row.correct_above:
        counts = ", ".join(map(str, row.correct_above))
        yield f"  correct for {counts} ranks: a topology for these only declares them by @topology(..., ranks=...)"


def _short(file: str) -> str:
    """Relative to the current folder, if the file is in it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def source_lines(error: Exception) -> tuple[str, ...]:
    """ "file:line" of the statements that an error refers to."""
    if isinstance(error, VerificationError):
        return error.lines
    if isinstance(error, ProgramError):
        named = _NAMED_LINE.match(str(error))
        return (named[1],) if named else ()
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return tuple(f"{frame.filename}:{frame.lineno}" for frame in last)


def _plain(row: Row) -> dict[str, Any]:
    """A row in JSON form."""
    most = row.largest
    return {
        "topology": row.topology,
        "collective": row.collective,
        "ranks": row.sizes,
        "hosts": sorted(row.hosts),
        "schedules": row.schedules,
        "order": row.order,
        "steps": most.steps if most else 0,
        "waits": most.waits if most else 0,
        "cells": most.cells if most else 0,
        "longest": [row.longest.get(size, 0) for size in row.sizes],
        "seconds": row.seconds,
        "error": None if row.error is None else f"{type(row.error).__name__}: {row.error}",
        "lines": [] if row.error is None else list(source_lines(row.error)),
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    """Maximum number of steps of a rank, over ranks."""
    import matplotlib
    from matplotlib.figure import Figure

    from pycollective.schedule.drawing.style import STYLE, chunk_colour

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.subplots()
        for number, row in enumerate(rows):
            points = zip(*row.longest.items(), strict=True) if row.longest else ((), ())
            colour, label = chunk_colour(number, len(rows)), f"{row.topology} {row.collective}"
            axes.plot(*points, marker="o", markersize=3, color=colour, label=label)
        axes.set(xlabel="ranks", ylabel="most steps of a rank, in any placement and on any hosts")
        figure.legend(loc="outside right upper")
        figure.savefig(path)


def _work(rows: list[Row], instances: dict[str, Any]) -> None:
    with outputs.progress("verify", sum(len(row.sizes) for row in rows)) as update:
        done = 0
        for row in rows:
            update(description=f"{row.topology} {row.collective}")
            for _ in row.run(instances[row.topology]):
                update(advance=1)
            done += len(row.sizes)
            update(completed=done)


def _table(rows: list[Row]) -> Any:
    from rich.table import Table

    caption = "order: the weakest found; steps, waits and scratch cells: of the schedule with most steps"
    table = Table(header_style="bold", box=None, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    table.add_column("topology", overflow="fold")
    for column in ("collective", "ranks", "hosts", "proved", "order"):
        table.add_column(column, no_wrap=True)
    for column in ("steps", "waits", "cells", "ms"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in rows:
        most = row.largest
        table.add_row(
            row.topology,
            row.collective,
            f"{row.sizes[0]}..{row.sizes[-1]}",
            f"{min(row.hosts)}..{max(row.hosts)}" if row.hosts else "",
            str(row.schedules),
            row.order,
            *(map(str, (most.steps, most.waits, most.cells)) if most else ("", "", "")),
            f"{1e3 * row.seconds:.0f}",
            "[green]✓[/]" if row.error is None else "[red]✗[/]",
        )
    return table
