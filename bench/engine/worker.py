"""The program of each rank: the groups one after the other, each contender once in every round."""

from __future__ import annotations

import faulthandler
import gc
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from ..measurement.measure import take_rounds
from ..measurement.stats import rounded
from ..peers import open_peers
from ..ranks.events import Emit, discard, to_file
from ..ranks.worker import yield_flag
from ..ranks.world import World, first_problem, open_world
from ..workload.plan import Budget
from .contender import Contender
from .groups import GROUPS, Group, Hall
from .ours import Ours
from .result import EngineRow

__all__ = ["EnginePlan", "main", "work"]


@dataclass(frozen=True)
class EnginePlan:
    """Names of groups, and how long to measure."""

    groups: tuple[str, ...]
    budget: Budget


def work(plan: EnginePlan, world: World, emit: Emit) -> None:
    """Measure on the ranks of a world; collective, ``emit`` is used on rank 0."""
    emit = emit if world.rank == 0 else discard
    peers = open_peers(("mpi", "gloo"), world, emit)
    ours = Ours()
    libraries = {peer.name: peer.version for peer in peers.values()} | {"pycollective": ours.version}
    begin = {"kind": "begin", "ranks": world.size, "groups": len(plan.groups)}
    emit({**begin, "libraries": libraries, "yield": yield_flag()})
    for name in plan.groups:
        _measure(name, GROUPS[name], Hall(world.rank, ours, peers), world, plan.budget, emit)
        gc.collect()  # the arrays of a group are large
        emit({"kind": "group"})
    world.barrier()
    ours.close()
    for peer in peers.values():
        peer.close()
    emit({"kind": "end"})


def _measure(name: str, group: Group, hall: Hall, world: World, budget: Budget, emit: Emit) -> None:
    hall.shapes = group.shapes
    ready: dict[str, Contender] = {}
    for label, make in group.contenders.items():
        contender, problem = _make(make, hall, f"{name}: {label}")
        if problem := first_problem(world, problem):
            emit({"kind": "note", "text": f"{name}, without {label}: {problem}"})
        elif contender is not None:
            ready[label] = contender
    before = _wrong(ready, world)
    times = take_rounds(world, list(ready.values()), budget)
    after = _wrong(ready, world)
    tensors, size = len(hall.shapes), 4 * sum(prod(shape) for shape in hall.shapes)
    for (label, one), seconds in zip(ready.items(), times, strict=True):
        rounds = [rounded(1e6 * each, 5) for each in seconds]
        row = EngineRow(
            name, label, one.library, world.size, tensors, size, median(rounds), before[label] + after[label],
            one.repetitions, rounds,
        )  # fmt: skip
        emit({"kind": "contender", "row": msgspec.structs.asdict(row)})


def _make(make: Any, hall: Hall, name: str) -> tuple[Contender | None, str]:
    try:
        contender: Contender = make(hall, name)
        contender.call()  # the first call may connect, or negotiate names
    except Exception as error:  # any error: the others continue
        return None, f"{type(error).__name__}: {error}"
    return contender, ""


def _wrong(contenders: Mapping[str, Contender], world: World) -> dict[str, int]:
    """Number of wrong elements of each, on all ranks."""
    return {label: sum(world.share(one.check(world))) for label, one in contenders.items()}


def main(plan_file: str, events_file: str) -> None:
    """Measure the plan in a JSON file; append events to another."""
    faulthandler.enable()
    with open_world() as world:
        work(msgspec.json.decode(Path(plan_file).read_bytes(), type=EnginePlan), world, to_file(Path(events_file)))
