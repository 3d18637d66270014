"""The options that commands share, with the same names and meaning in each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_TOPOLOGY = "a name, 'name(parameter=value)', FILE.py:NAME or FILE.py"
FORMATS = (".png", ".svg", ".pdf")
"""Suffixes of pictures."""


def _topologies() -> list[str]:
    from pycollective.schedule import names

    return names()


def _collectives() -> list[str]:
    from pycollective.schedule import COLLECTIVES

    return list(COLLECTIVES)


Positional = Annotated[
    list[str] | None, typer.Argument(metavar="TOPOLOGY", help=_TOPOLOGY, autocompletion=_topologies, show_default=False)
]
Topology = Annotated[
    list[str] | None,
    typer.Option("--topology", metavar="TOPOLOGY", help="the same; repeatable", autocompletion=_topologies),
]
Collective = Annotated[str, typer.Option(help="collectives, separated by commas", autocompletion=_collectives)]
AllCollectives = Annotated[
    str,
    typer.Option(
        "--collective", help="collectives, separated by commas", show_default="all it has", autocompletion=_collectives
    ),
]
Ranks = Annotated[str, typer.Option(help="rank counts, as 1-17 or 2,4,8")]
Sizes = Annotated[str, typer.Option(help="FROM:TO:xFACTOR, FROM:TO:+STEP, or a list")]
Root = Annotated[int, typer.Option(help="root of the collectives that have one")]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="[FILE]", help="write JSON; no FILE: to standard output, alone")
]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="write CSV; '-': to standard output, alone")]
Picture = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="a .png, .svg or .pdf")]
Hosts = Annotated[
    str | None, typer.Option("-H", "--hosts", metavar="HOST:N,...", help="hosts, each with its number of ranks")
]
Hostfile = Annotated[Path | None, typer.Option(help="file with a host per line, as HOST slots=N")]
Rsh = Annotated[
    str, typer.Option(metavar="COMMAND", help="with hosts: remote shell, as 'ssh -p 2222'", show_default="ssh")
]
