"""`pycollective topologies`: the list."""

from __future__ import annotations

from json import dumps

from pycollective.cli import outputs
from pycollective.cli.commands import refusing
from pycollective.cli.options import Json
from pycollective.schedule import describe, get


def topologies(json: Json = None) -> None:
    """The topologies: their collectives, and their order of reduction."""
    with refusing():
        outputs.check(None, json)
    fields = ("name", "order", "small", "collectives", "doc")
    rules = {row.name: row.ranks.words(get(row.cls)) if row.ranks else "any" for row in describe()}
    rows = [{**{name: getattr(row, name) for name in fields}, "ranks": rules[row.name]} for row in describe()]
    if json is not None:
        outputs.write_text(json, dumps(rows, indent=2) + "\n")
    if json == outputs.STDOUT:
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
