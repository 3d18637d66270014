"""The controlling side of a run: worlds of ranks one after another, their events collected into one result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..peers import MPIS, mpi_of
from ..result import Provenance, Result, Row, available_cores, collect_provenance
from ..workload.plan import Plan
from .events import Emit
from .launch import Launcher, busy_neighbours, find_launcher, launch
from .worker import work
from .world import first_rank, open_world, ranks_started

__all__ = ["Session", "Watcher", "run_plans", "worlds"]

Watcher = Callable[[dict[str, Any]], None]


def busy_cores(seconds: float = 0.2) -> float:
    """How many cores are in use now. The load average would count what has just ended, such as a compilation."""

    def used() -> float:
        user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split()[1:9])
        return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(seconds)
    return (used() - before) / seconds


class Session:
    """The events received so far.

    Attributes:
        failed: one of our topologies failed.
    """

    def __init__(self, watch: Watcher) -> None:
        self._watch = watch
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.failed = False
        self._libraries: dict[str, str] = {}
        self._yields: dict[str, str] = {}
        self._launcher = ""
        self._load = os.getloadavg()[0]
        self._busy = busy_cores()

    def take(self, event: dict[str, Any]) -> None:
        """Process one event of a world, and pass it to the watcher."""
        match event["kind"]:
            case "row":
                self.rows.append(Row(**event["row"]))
            case "note":
                self.failed |= event.get("failed", False)
                if event["text"] in self.notes:
                    return
                self.notes.append(event["text"])
            case "begin":
                self._libraries.update(event["libraries"])
                if event["yield"] != "-" or str(event["ranks"]) not in self._yields:
                    self._yields[str(event["ranks"])] = event["yield"]
        self._watch(event)

    def begin(self, launcher: Launcher) -> None:
        """Before a world that this launcher will start."""
        if not self._launcher and self._busy > available_cores() / 2:
            text = f"this machine is busy (others use {self._busy:.1f} cores): figures will be off"
            self.take({"kind": "note", "text": text})
        self._launcher = launcher.kind
        if launcher.note:
            self.take({"kind": "note", "text": launcher.note})

    def run(self, plan: Plan, ranks: int, launcher: Launcher | None = None) -> None:
        """Start a world on a plan and process its events.  Raises LaunchError.

        ``launcher`` is by default that of the MPI that the plan compares.
        """
        launcher = launcher or _launcher_of(plan)
        self.begin(launcher)
        first = 1 + max((row.group for row in self.rows), default=-1)
        with busy_neighbours(plan.conditions.neighbours):
            for event in launch(plan, ranks, launcher=launcher):
                if event["kind"] == "row":
                    event["row"]["group"] += first  # after those of other worlds
                self.take(event)

    def provenance(self) -> Provenance:
        """Provenance of what the worlds have reported."""
        return collect_provenance(self._libraries, self._yields, self._launcher or "user", self._load)

    def result(self, options: dict[str, Any]) -> Result:
        """The rows with their provenance."""
        return Result(self.provenance(), options, self.notes, self.rows)


def run_plans(plans: Sequence[tuple[int, Plan]], session: Session) -> bool:
    """Run (ranks, plan) pairs, each in worlds of its own, or in this world if a launcher made one.

    In the latter case the first plan runs whatever its rank count; the return value is False on every rank but 0,
    which have no results.
    """
    if not ranks_started():
        for ranks, plan in plans:
            for one in worlds(plan, session):
                session.run(one, ranks)
        return True
    neighbours = plans[0][1].conditions.neighbours if first_rank() else 0
    with busy_neighbours(neighbours), open_world() as world:
        emit: Emit = session.take
        work(plans[0][1], world, emit)
        return world.rank == 0


def worlds(plan: Plan, session: Session | None = None) -> list[Plan]:
    """A plan for each MPI that it compares, since the ranks of a world can use only one.

    Peers that need no MPI are measured in the first.  Those whose MPI is not installed are left out, with a note.
    """
    if len({mpi_of(name) for name in plan.wanted} - {""}) < 2:
        return [plan]
    others = tuple(name for name in plan.wanted if not mpi_of(name))
    peers: dict[str, list[str]] = {}  # of each MPI
    for name in (name for name in plan.wanted if mpi_of(name)):
        launcher = find_launcher(mpi_of(name))
        if not launcher.program:
            if session is not None:
                session.take({"kind": "note", "text": f"without {name}: {launcher.note}"})
            continue
        here = peers.setdefault(launcher.kind, [])
        if name not in MPIS or not set(here) & set(MPIS):  # each MPI once
            here.append(name)
    first, *rest = [tuple(names) for names in peers.values()] or [()]
    return [plan.with_peers((*first, *others)), *(plan.with_peers(names) for names in rest)]


def _launcher_of(plan: Plan) -> Launcher:
    """The launcher of the MPI that the plan compares, or the usual one."""
    return find_launcher(next((mpi_of(name) for name in plan.wanted if mpi_of(name)), "mpi"))
