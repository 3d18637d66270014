"""The program of each rank: the groups one after the other, each contender once in every round."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from ..measurement.measure import take_rounds
from ..peers import Peer, PeerUnavailable, open_peer
from ..ranks.events import Emit, discard, to_file
from ..ranks.launch import YIELD_VARIABLE
from ..ranks.world import World, open_world
from ..workload.plan import Budget
from .contender import Contender
from .groups import GROUPS, Group, Hall
from .ours import Ours
from .result import make_row

__all__ = ["EnginePlan", "main", "work"]


@dataclass(frozen=True)
class EnginePlan:
    """Names of groups, and how long to measure."""

    groups: tuple[str, ...] = tuple(GROUPS)
    peers: tuple[str, ...] = ("mpi", "gloo")
    budget: Budget = field(default_factory=Budget)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> EnginePlan:
        data = json.loads(text)
        return EnginePlan(tuple(data["groups"]), tuple(data["peers"]), Budget(**data["budget"]))


def work(plan: EnginePlan, world: World, emit: Emit) -> None:
    """Measure on the ranks of a world; collective, ``emit`` is used on rank 0."""
    emit = emit if world.rank == 0 else discard
    peers = _open_peers(plan, world, emit)
    ours = Ours()
    libraries = {peer.name: peer.version for peer in peers.values()} | {"pycollective": ours.version}
    flag = os.environ.get(YIELD_VARIABLE, "default") if "OMPI_COMM_WORLD_SIZE" in os.environ else "-"
    emit({"kind": "begin", "ranks": world.size, "groups": len(plan.groups), "libraries": libraries, "yield": flag})
    for index, name in enumerate(plan.groups):
        _measure(name, GROUPS[name], Hall(world.rank, ours, peers), world, plan.budget, emit)
        gc.collect()  # the arrays of a group are large
        emit({"kind": "group", "index": index})
    world.barrier()
    ours.close()
    for peer in peers.values():
        getattr(peer, "close", lambda: None)()
    emit({"kind": "end"})


def _open_peers(plan: EnginePlan, world: World, emit: Emit) -> dict[str, Peer]:
    peers: dict[str, Peer] = {}
    for name in plan.peers:
        try:
            peer, problem = open_peer(name, world), ""
        except PeerUnavailable as error:
            problem = str(error)
        if problems := [text for text in world.share(problem) if text]:
            emit({"kind": "note", "text": f"without {name}: {problems[0]}"})
        else:
            peers[name] = peer
    return peers


def _measure(name: str, group: Group, hall: Hall, world: World, budget: Budget, emit: Emit) -> None:
    hall.shapes = group.shapes()
    ready: list[Contender] = []
    for label, make in group.contenders.items():
        contender, problem = _make(make, hall, f"{name}: {label}")
        if problems := [text for text in world.share(problem) if text]:
            emit({"kind": "note", "text": f"{name}, without {label}: {problems[0]}"})
        elif contender is not None:
            contender.name = label
            ready.append(contender)
    wrong = _wrong(ready, world)
    times = take_rounds(world, ready, budget)
    wrong = [a + b for a, b in zip(wrong, _wrong(ready, world), strict=True)]
    tensors, size = len(hall.shapes), 4 * sum(prod(shape) for shape in hall.shapes)
    for one, bad, seconds in zip(ready, wrong, times, strict=True):
        row = make_row(name, one.name, one.library, world.size, tensors, size, bad, one.repetitions, seconds)
        emit({"kind": "row", "row": msgspec.structs.asdict(row)})


def _make(make: Any, hall: Hall, name: str) -> tuple[Contender | None, str]:
    try:
        contender: Contender = make(hall, name)
        contender.call()  # the first call may connect, or negotiate names
    except Exception as error:  # any error: the others continue
        return None, f"{type(error).__name__}: {error}"
    return contender, ""


def _wrong(contenders: Sequence[Contender], world: World) -> list[int]:
    """Number of wrong elements of each, on all ranks."""
    return [sum(world.share(one.check(world))) for one in contenders]


def main(arguments: Sequence[str]) -> None:
    """Arguments: the plan's JSON file, the file to append events to, and a number that is ignored."""
    faulthandler.enable()
    plan_file, events_file, _ = arguments
    with open_world() as world:
        work(EnginePlan.from_json(Path(plan_file).read_text()), world, to_file(Path(events_file)))
