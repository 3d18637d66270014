"""The program of each rank, or the part of a rank that a launcher has started."""

from __future__ import annotations

import faulthandler
import importlib
import os
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..measurement.measure import Buffers, Measured, NotMeasured, measure
from ..peers import Array, Peer, PeerUnavailable, open_peers
from ..peers.ceiling import CEILING, CeilingPeer
from ..peers.pycollective import PycollectivePeer, find_topology, has, topologies_of, unsupported
from ..peers.tensors import import_torch
from ..result import make_row
from ..workload.cases import format_size
from ..workload.plan import OURS, Candidate, Options, Plan, has_topologies, short_name, sweep_groups
from .events import Emit, discard, to_file
from .launch import YIELD_VARIABLE
from .world import World, first_problem, open_world

__all__ = ["work", "yield_flag"]

Group = Sequence[Candidate]


def work(plan: Plan, world: World, emit: Emit) -> None:
    """Measure a plan on the ranks of a world; collective, ``emit`` is used on rank 0."""
    emit = emit if world.rank == 0 else discard
    others = open_peers(plan.wanted, world, emit)
    peers = {(asked, ""): peer for asked, peer in others.items()}
    names = {asked: peer.name for asked, peer in others.items()}
    versions = {peer.name: peer.version for peer in peers.values()}
    groups: list[Group] = list(plan.groups)
    if plan.sweep:
        topologies = _topologies(plan.sweep, world.size, emit)
        groups += sweep_groups(plan.sweep, world.size, list(names), topologies)
    present = {OURS, CEILING, *names}
    groups = [[one for one in group if one.library in present] for group in groups]
    if any(one.arrays == "torch" for group in groups for one in group) and not _has_torch(world, emit):
        groups = [[one for one in group if one.arrays != "torch"] for group in groups]
    comm: Any = None  # opened only if the plan needs it
    if any(one.library in (OURS, CEILING) for group in groups for one in group):
        package = importlib.import_module("pycollective")
        comm, versions[OURS] = package.init(), f"pycollective {package.__version__}"
        peers.update(_our_peers(comm, groups))
    begin = {"kind": "begin", "ranks": world.size, "groups": len(groups)}
    emit({**begin, "libraries": versions, "yield": yield_flag()})
    allocate: dict[str, Callable[[int], Array]] = {
        "plain": lambda nbytes: np.empty(nbytes, np.uint8),
        "shared": _shared,
        "windows": lambda nbytes: comm.empty((nbytes,), np.uint8),
    }
    buffers = Buffers(world, allocate, plan.conditions)
    for index, group in enumerate(groups):
        for outcome in measure(group, peers, buffers, plan.budget):
            _report(outcome, index, names, emit)
        emit({"kind": "group"})
    emit({"kind": "end"})
    for peer in dict.fromkeys(peers.values()):  # in the same order on all ranks
        peer.close()


def _shared(nbytes: int) -> Array:
    with importlib.import_module("pycollective").shared_arrays():
        return np.empty(nbytes, np.uint8)


def _report(outcome: Measured | NotMeasured, group: int, names: dict[str, str], emit: Emit) -> None:
    if isinstance(outcome, Measured):
        emit({"kind": "row", "row": msgspec.structs.asdict(make_row(outcome, group, names))})
        return
    one, case = outcome.candidate, outcome.candidate.case
    label = " ".join(filter(None, [names.get(one.library, one.library), short_name(one.topology)]))
    if outcome.supported:
        label += f", {one.path}{', torch' * (one.arrays == 'torch')}, {case.ranks} ranks, {format_size(case.nbytes)}"
    operator = f" {case.op}" if case.kind.reduces else ""
    text = f"without {label}: {case.collective} {case.dtype}{operator}: {outcome.reason}"
    emit({"kind": "note", "text": text, "failed": outcome.supported and one.library == OURS})


def _has_torch(world: World, emit: Emit) -> bool:
    """Return whether every rank has torch."""
    problem = ""
    try:
        import_torch()
    except PeerUnavailable as error:
        problem = str(error)
    if problem := first_problem(world, problem):
        emit({"kind": "note", "text": f"without torch tensors: {problem}"})
    return not problem


def _topologies(options: Options, ranks: int, emit: Emit) -> dict[str, list[str]]:
    """List for each collective of a sweep the topologies, requested or all, that have it for so many ranks."""
    if options.topologies == ("none",) or not options.paths:
        return {name: [] for name in options.collectives}
    others = {name: ["default"] for name in options.collectives if not has_topologies(name)}
    collectives = [name for name in options.collectives if name not in others]
    return others | _implementing(collectives, options, ranks, emit)


def _implementing(collectives: Sequence[str], options: Options, ranks: int, emit: Emit) -> dict[str, list[str]]:
    if not options.topologies:
        found = {name: topologies_of(name) for name in collectives}
        return {name: [text for text in texts if not unsupported(text, ranks)] for name, texts in found.items()}
    refused = {text: problem for text in options.topologies if (problem := unsupported(text, ranks))}
    for text, problem in refused.items():
        emit({"kind": "note", "text": f"without {short_name(text)}: {problem}"})
    asked = [text for text in options.topologies if text not in refused]
    for name, text in product(collectives, asked):
        if not has(text, name):
            emit({"kind": "note", "text": f"without {short_name(text)}: it has no {name}"})
    return {name: [text for text in asked if has(text, name)] for name in collectives}


def _our_peers(comm: Any, groups: Sequence[Group]) -> dict[tuple[str, str], Peer]:
    """The ceiling, and a peer for each topology named in the groups."""
    peers: dict[tuple[str, str], Peer] = {}
    for one in (one for group in groups for one in group):
        if one.library == CEILING:
            peers[one.library, one.topology] = CeilingPeer(comm.rank, comm.size)
        elif one.library == OURS and (OURS, one.topology) not in peers:
            peers[OURS, one.topology] = PycollectivePeer(comm, find_topology(one.topology))
    return peers


def yield_flag() -> str:
    """Return whether Open MPI, if it started the ranks, yields when idle: as in Provenance."""
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        return "-"
    return os.environ.get(YIELD_VARIABLE, "default")


def main(plan_file: str, events_file: str) -> None:
    """Measure the plan in a JSON file; append events to another."""
    faulthandler.enable()
    with open_world() as world:
        work(msgspec.json.decode(Path(plan_file).read_bytes(), type=Plan), world, to_file(Path(events_file)))
