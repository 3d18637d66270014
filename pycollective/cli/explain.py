"""`pycollective explain`: which topology, memory and path calls would take on ranks of this host."""

from __future__ import annotations

import json as json_text
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pycollective.cli import outputs, selection
from pycollective.cli.commands import complain, refusing
from pycollective.cli.options import Collective, Json, Picture, Positional, Sizes, Topology
from pycollective.cli.units import format_size, parse_sizes
from pycollective.schedule import compile, get, label
from pycollective.schedule.language.hosts import equal_shares

_SECONDS = 120
_ASK = """
import dataclasses, json, os, sys, pycollective
from pycollective.cli import selection
words, topologies, collectives, sizes, host_of = json.loads(sys.argv[1])
if max(host_of):
    os.environ["PYCOLLECTIVE_HOST"] = f"host {host_of[int(os.environ['PYCOLLECTIVE_RANK'])]}"
comm = pycollective.init()
selection.topologies(words, ())
found = [
    dataclasses.asdict(comm.explain(name, size, topology=topology))
    for topology in topologies for name in collectives for size in sizes
]
if comm.rank == 0:
    print("EXPLAINED" + json.dumps(found))
"""


def explain(
    topology: Positional = None,
    named: Topology = None,
    ranks: Annotated[
        str, typer.Option(help="rank counts, as 1-17 or 2,4,8", show_default="one per core, at least 2")
    ] = "",
    hosts: Annotated[
        int, typer.Option(help="number of hosts with equal shares of the ranks, simulated on this one")
    ] = 1,
    collective: Collective = "allreduce",
    sizes: Sizes = "1K,1M,64M",
    json: Json = None,
    plot: Picture = None,
) -> int:
    """Show which topology, variant, memory and path calls take, and why: on ranks of this host, or as if of several.

    Without a topology: the default one. --plot: the schedules that they run.
    """
    with refusing("matplotlib" if plot else ""):
        counts = selection.ranks(ranks) if ranks else [max(2, len(os.sched_getaffinity(0)))]
        if counts[-1] > 4096:
            raise ValueError(f"at most 4096 ranks can be started, not {counts[-1]}")
        wanted, wanted_sizes = selection.collectives(collective), parse_sizes(sizes)
        instances = selection.topologies(topology, named)
        selection.having(instances, wanted)
        for instance in instances:
            for count in counts:
                selection.supported(instance, [count])
        hosts_of = {count: equal_shares(count, hosts) or (0,) for count in counts}
        outputs.check(plot, json)
    labels: list[Any] = [label(one) for one in instances] or [None]
    question = [[*(topology or ()), *(named or ())], labels, wanted, wanted_sizes]
    rows: list[dict[str, Any]] = []
    for count in counts:
        found, output = _ask(count, [*question, hosts_of[count]])
        if found is None:
            complain(f"{count} ranks failed: {output.strip().splitlines()[-1] if output.strip() else 'no output'}")
            return 1
        rows += [{"ranks": count, **one} for one in found]
    outputs.write_json(json, "pycollective-explanation/1", {"rows": rows})
    if json != outputs.STDOUT:
        _print(rows)
    if plot is not None:
        _plot(rows, plot, hosts, quiet=json == outputs.STDOUT)
    return 0


def _ask(ranks: int, question: list[Any]) -> tuple[list[dict[str, Any]] | None, str]:
    """The explanations of ranks started for this purpose, and all their output."""
    launcher = [sys.executable, "-m", "pycollective.cli.main", "run", "-np", str(ranks)]
    command = [*launcher, sys.executable, "-c", _ASK, json_text.dumps(question)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None, f"no answer within {_SECONDS} s"
    line = next((line for line in done.stdout.splitlines() if line.startswith("EXPLAINED")), None)
    return (None if line is None else json_text.loads(line.removeprefix("EXPLAINED"))), done.stdout + done.stderr


def _print(rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console

    console = Console()
    for row in rows:
        order = f", order of reduction: {row['order']}" if row["order"] else ""
        console.print(
            f"[bold]{row['collective']}, {format_size(row['nbytes'])}, {row['ranks']} ranks[/]: "
            f"topology [bold]{row['topology']}[/], {row['variant']} variant{order}",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
        lines = {"comm.empty": "window", "other arrays": "plain", "why": "reason", "cores": "waiting", "links": "links"}
        for name, text in ((name, row[field]) for name, field in lines.items() if row[field]):
            print(textwrap.fill(text, console.width, initial_indent=f"  {name + ':':<14}", subsequent_indent=" " * 16))


def _plot(rows: Sequence[dict[str, Any]], path: Path, hosts: int, quiet: bool) -> None:
    """The schedule of each explained call, without duplicates."""
    from pycollective.comm.planner import default_text
    from pycollective.schedule import drawing

    if ".py" in default_text():  # PYCOLLECTIVE_TOPOLOGY
        selection.find(default_text())
    drawn = {(row["ranks"], row["collective"], row["topology"], row["variant"]): row for row in rows}
    labels = [f"{label(get(name))}-{call}-{ranks}-{variant}" for ranks, call, name, variant in drawn]
    for (ranks, call, name, variant), file in zip(drawn, outputs.pictures(path, labels), strict=True):
        drawing.draw(compile(name, call, ranks, small=variant == "small", hosts=equal_shares(ranks, hosts)), file)
        if not quiet:
            print(f"plot: {file}")
