"""``python -m bench.hosts``: float32 allreduce across hosts that are network namespaces of this machine.

Ours, Open MPI over TCP and Gloo take turns in the same processes, which Open MPI's mpirun starts on every host.  A
ratio is the median over the rounds of the ratio of lower quartiles.  On two ranks the same bytes also cross a plain
socket, without being added: what no library can be much faster than.  It needs root and iproute2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from pycollective.cli.commands import Command, refusing

from .goals import MIB
from .measurement.stats import paired_ratio
from .peers.pycollective import topologies_of, unsupported
from .ranks.launch import Launcher, LaunchError, find_launcher
from .ranks.namespaces import Hosts, why_not
from .ranks.session import Session
from .report.table import format_time
from .result import Provenance, Row, to_json
from .speed import Line, markdown, ratio_text, show, table_of
from .workload.cases import KIB, Case, format_size, parse_sizes
from .workload.plan import NAMES, OURS, Budget, Candidate, Conditions, Plan

__all__ = ["GOALS", "HostsResult", "HostsRow", "Layout", "groups_for", "lines_of", "topology_group", "wire_seconds"]

SCHEMA = "pycollective-hosts/1"
_SIZES = (8, 64 * KIB, MIB, 64 * MIB)
_MPI, _GLOO, _SOCKETS = "openmpi", "gloo", "sockets"
_RATIOS = {
    "2x1": (1.15, 1.25, 1.8, 2.5),
    "4x1": (1.1, 1.7, 1.6, 2),
    "2x2": (2.5, 3.3, 4, 3),
    "2x4": (2.5, 2.7, 3.3, 2.4),
}
GOALS = {
    **{(layout, size, _MPI): least for layout, row in _RATIOS.items() for size, least in zip(_SIZES, row, strict=True)},
    **{("2x1", size, _GLOO): least for size, least in ((8, 5), (64 * KIB, 5), (64 * MIB, 1.3))},
}
"""(layout, size, peer) -> the smallest ratio, theirs over ours."""
_WIRE_GOAL = 0.97
_SLOW = ("star",)
"""Topologies without a goal: everything passes through one rank."""
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_PAYLOAD = 1448 / 1514
"""TCP's share of a full Ethernet frame of 1500 bytes, with timestamps."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


class HostsRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate's row on some hosts.  An entry of `rounds_us` is the lower quartile of a round's calls."""

    layout: Annotated[str, msgspec.Meta(description="hosts x ranks on each")]
    bandwidth: Annotated[str, msgspec.Meta(description="of each host, in tc's notation; empty: not limited")]
    row: Row


class HostsResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=SCHEMA):
    """A complete run of `python -m pycollective.bench.hosts`."""

    lines: list[Line]
    provenance: Provenance
    options: dict[str, Any]
    notes: list[str]
    rows: list[HostsRow]


@dataclass(frozen=True)
class Layout:
    """Hosts, with the same number of ranks on each."""

    hosts: int
    each: int

    @staticmethod
    def parse(text: str) -> Layout:
        """``2x4``; ValueError for anything else."""
        match = re.fullmatch(r"(\d+)x(\d+)", text)
        if match is None or int(match[1]) < 2 or int(match[2]) < 1:
            raise ValueError(f"a layout is HOSTSxRANKS with two hosts or more, such as 2x4, not {text!r}")
        return Layout(int(match[1]), int(match[2]))

    @property
    def ranks(self) -> int:
        """Number of ranks of all hosts."""
        return self.hosts * self.each

    def __str__(self) -> str:
        return f"{self.hosts}x{self.each}"


@dataclass(frozen=True)
class _Mpirun(Launcher):
    """Open MPI's mpirun across hosts."""

    hosts: Hosts | None = None
    each: int = 1

    def command(self, ranks: int, words: Sequence[str]) -> list[str]:
        assert self.hosts is not None
        return self.hosts.mpirun(self.program, [self.each] * len(self.hosts.names), words)

    def environment(self, ranks: int) -> dict[str, str]:
        over_tcp = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self,sm"}  # sm within a host
        return {**super().environment(ranks), **over_tcp}


def groups_for(layout: Layout, sizes: Sequence[int], peers: Sequence[str]) -> list[tuple[Candidate, ...]]:
    """A group for each size: the peers, and ours on plain arrays."""
    groups = []
    for size in sizes:
        case = Case("allreduce", "float32", "sum", max(1, size // 4), layout.ranks)
        groups.append((*(Candidate(case, peer) for peer in peers), Candidate(case, OURS, "default")))
    return groups


def topology_group(layout: Layout, size: int) -> tuple[Candidate, ...]:
    """Every packaged topology that has an allreduce, and Open MPI."""
    case = Case("allreduce", "float32", "sum", size // 4, layout.ranks)
    names = [name for name in topologies_of("allreduce") if not unsupported(name, layout.ranks)]
    return (Candidate(case, _MPI), *(Candidate(case, OURS, name) for name in names))


def wire_seconds(layout: Layout, size: int, bandwidth: str) -> float:
    """Seconds for the bytes that an allreduce must send from each host, 2 (hosts - 1) / hosts of its size."""
    match = re.fullmatch(r"([\d.]+)([kmg]bit)", bandwidth)
    if match is None:
        raise ValueError(f"a bandwidth is a number with kbit, mbit or gbit, such as 1gbit, not {bandwidth!r}")
    crossing = 2 * (layout.hosts - 1) / layout.hosts * size
    return crossing * 8 / (float(match[1]) * _UNITS[match[2]] * _PAYLOAD)


def lines_of(rows: Sequence[HostsRow]) -> list[Line]:
    """Ours against each peer of the same group; with limited bandwidth, against the wire too."""
    lines = []
    for ours in (one for one in rows if one.row.library == OURS):
        size, topology = ours.row.size, ours.row.topology
        name = f"{ours.layout}, {format_size(size)}" + f", {ours.bandwidth}" * bool(ours.bandwidth)
        named = name + f", {topology}" * (topology != "default")
        if ours.bandwidth:
            lines.append(_against_wire(named, ours))
        for theirs in (one for one in rows if one.row.library != OURS and one.row.group == ours.row.group):
            least = None if ours.bandwidth else GOALS.get((ours.layout, size, theirs.row.library))
            if topology != "default":
                least = None if topology in _SLOW else 1.0
            lines.append(_against_peer(named, ours.row, theirs.row, least))
    return lines


def _against_peer(name: str, ours: Row, theirs: Row, least: float | None) -> Line:
    peer = NAMES[theirs.library]
    ratio = paired_ratio(ours.rounds_us, theirs.rounds_us)
    goal = "" if least is None else ratio_text(least, peer)
    met = None if least is None else ratio.median >= least
    where = f"{format_time(ours.time_us / 1e6)} against {format_time(theirs.time_us / 1e6)}"
    return Line(name, peer, goal, ratio_text(ratio.median, peer, goal=False), met, where, ratio.figures())


def _against_wire(name: str, ours: HostsRow) -> Line:
    wire, seconds = wire_seconds(Layout.parse(ours.layout), ours.row.size, ours.bandwidth), ours.row.time_us / 1e6
    share = wire / seconds
    where = f"{format_time(seconds)} against {format_time(wire)}"
    shown = f"{math.floor(100 * share)}%"
    return Line(name, "the wire", f">= {_WIRE_GOAL:.0%}", shown, share >= _WIRE_GOAL, where, {"share": share})


def _measure(layout: Layout, plan: Plan, bandwidth: str, session: Session) -> list[HostsRow]:
    before = len(session.rows)
    launcher = find_launcher(_MPI)
    if launcher.kind != _MPI:
        raise LaunchError(launcher.note)
    with Hosts(layout.hosts, bandwidth) as hosts:
        session.run(
            plan, layout.ranks, _Mpirun(launcher.kind, launcher.program, "", launcher.library, hosts, layout.each)
        )
    return [HostsRow(str(layout), bandwidth, row) for row in session.rows[before:]]


@app.command(cls=Command)
def main(
    layouts: Annotated[str, typer.Option(help="hosts x ranks on each, separated by commas")] = "2x1,4x1,2x2,2x4",
    sizes: Annotated[str, typer.Option(help="as of `pycollective bench`; with --bandwidth 16M")] = "8,64K,1M,64M",
    bandwidth: Annotated[str, typer.Option(help="of each host, such as 1gbit")] = "",
    topologies: Annotated[bool, typer.Option("--topologies", help="instead every topology, 1 MiB on 2x4")] = False,
    gloo: Annotated[bool, typer.Option(help="also Gloo, on 2x1")] = True,
    out: Annotated[Path, typer.Option(help="folder for hosts-speed.json and hosts-speed.md")] = Path(),
    quick: Annotated[bool, typer.Option("--quick", help="fewer and shorter rounds: to see that it works")] = False,
) -> None:
    """Measure allreduce across hosts; write JSON and a Markdown table.  The exit code is 1 if a result was wrong."""
    from rich.console import Console

    with refusing():
        if reason := why_not():
            raise ValueError(reason)
        sizes = "16M" if bandwidth and sizes == "8,64K,1M,64M" else sizes
        wanted, places = parse_sizes(sizes), [Layout.parse(text) for text in layouts.split(",")]
        if bandwidth:
            wire_seconds(places[0], 0, bandwidth)
    console = Console(width=160)
    budget = Budget.quick() if quick else Budget(block_s=0.03, rounds=41, least_rounds=9, group_s=8.0)
    session, rows = Session(lambda event: show(event, console)), list[HostsRow]()
    for layout in [Layout(2, 4)] if topologies else places:
        pair = (layout.hosts, layout.each) == (2, 1) and not topologies
        peers = (_MPI, *(_GLOO,) * (pair and gloo), *(_SOCKETS,) * pair)
        groups = [topology_group(layout, MIB)] if topologies else groups_for(layout, wanted, peers)
        plan = Plan(tuple(groups), peers=peers, budget=budget, conditions=Conditions(quartile=True))
        try:
            rows += _measure(layout, plan, bandwidth, session)
        except (LaunchError, OSError) as error:
            session.take({"kind": "note", "text": f"without {layout}: {error}", "failed": True})
    options = {"quick": quick, "layouts": layouts, "sizes": sizes, "bandwidth": bandwidth, "topologies": topologies}
    done = session.result(options)
    result = HostsResult(lines_of(rows), done.provenance, options, done.notes, rows)
    console.print(table_of(result.lines))
    out.mkdir(parents=True, exist_ok=True)
    (out / "hosts-speed.json").write_text(to_json(result))
    (out / "hosts-speed.md").write_text(markdown(result.lines, result.provenance, "hosts"))
    if session.failed or any(one.row.wrong for one in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}.hosts")
