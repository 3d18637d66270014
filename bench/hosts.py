"""``python -m bench.hosts``: float32 allreduce across hosts that are network namespaces of this machine.

Ours, Open MPI over TCP and Gloo take turns in the same processes, which Open MPI's mpirun starts on every host.  A
ratio is the median over the rounds of the ratio of lower quartiles.  On two ranks the same bytes also cross a plain
socket, without being added: what no library can be much faster than.  It needs root and iproute2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from pycollective.cli.commands import Command, refusing

from .goals import HOSTS, MIB, WIRE, Speedup
from .namespaces import Hosts, why_not
from .options import Quick, new_app, out_option
from .peers.pycollective import topologies_of, unsupported
from .ranks.launch import Launcher, LaunchError, find_launcher
from .ranks.session import Session
from .report.lines import line_table, markdown, times_text
from .result import TableResult
from .row import Line, Row, about
from .runner import open_session, wide_console, write
from .workload.cases import case_of, format_size, parse_sizes
from .workload.plan import NAMES, OURS, Budget, Candidate, Conditions, Plan

__all__ = ["HostsResult", "HostsRow", "Layout", "groups_for", "lines_of", "topology_group", "wire_seconds"]

SCHEMA = "pycollective-hosts/1"
_MPI, _GLOO, _SOCKETS = "openmpi", "gloo", "sockets"
_SLOW = ("star",)
"""Topologies without a goal: everything passes through one rank."""
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_PAYLOAD = 1448 / 1514
"""TCP's share of a full Ethernet frame of 1500 bytes, with timestamps."""

app = new_app()


class HostsRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate's row on some hosts.  An entry of `rounds_us` is the lower quartile of a round's calls."""

    layout: Annotated[str, about("hosts x ranks on each")]
    bandwidth: Annotated[str, about("of each host, in tc's notation; empty: not limited")]
    row: Row


class HostsResult(TableResult[HostsRow], frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=SCHEMA):
    """A complete run of `python -m pycollective.bench.hosts`."""


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
        case = case_of("allreduce", size, layout.ranks)
        groups.append((*(Candidate(case, peer) for peer in peers), Candidate(case, OURS, "default")))
    return groups


def topology_group(layout: Layout, size: int) -> tuple[Candidate, ...]:
    """Every packaged topology that has an allreduce, and Open MPI."""
    case = case_of("allreduce", size, layout.ranks)
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
            least = None if ours.bandwidth else HOSTS.get((ours.layout, size, theirs.row.library))
            if topology != "default":
                least = None if topology in _SLOW else 1.0
            lines.append(_against_peer(named, ours.row, theirs.row, least))
    return lines


def _against_peer(name: str, ours: Row, theirs: Row, least: float | None) -> Line:
    line = Speedup(name, "", OURS, NAMES[theirs.library], least or 0.0).line(ours.rounds_us, theirs.rounds_us)
    return replace(line, goal="", met=None) if least is None else line


def _against_wire(name: str, ours: HostsRow) -> Line:
    wire, seconds = wire_seconds(Layout.parse(ours.layout), ours.row.size, ours.bandwidth), ours.row.time_us / 1e6
    share = wire / seconds
    shown, where = f"{math.floor(100 * share)}%", times_text(seconds, wire)
    return Line(name, "the wire", f">= {WIRE:.0%}", shown, share >= WIRE, where, {"share": share})


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
    out: Annotated[Path, out_option("hosts-speed")] = Path(),
    quick: Quick = False,
) -> None:
    """Measure allreduce across hosts; write JSON and a Markdown table.  The exit code is 1 if a result was wrong."""
    with refusing():
        if reason := why_not():
            raise ValueError(reason)
        sizes = "16M" if bandwidth and sizes == "8,64K,1M,64M" else sizes
        wanted, places = parse_sizes(sizes), [Layout.parse(text) for text in layouts.split(",")]
        if bandwidth:
            wire_seconds(places[0], 0, bandwidth)
    console = wide_console()
    budget = Budget.quick() if quick else Budget(block_s=0.03, rounds=41, least_rounds=9, group_s=8.0)
    session, rows = open_session(console), list[HostsRow]()
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
    console.print(line_table(result.lines))
    write(out, "hosts-speed", result, markdown(result.lines, result.provenance, "hosts"), console)
    if session.failed or any(one.row.wrong for one in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}.hosts")
