"""The verifier: proves that a compiled schedule implements its collective, or reports where it does not.

It examines only the compiled steps, as the executor will run them: neither the program nor the compiler is trusted.
Steps are numbered from 0 in the order in which their rank executes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pycollective import checks
from pycollective.errors import TopologyError, VerificationError
from pycollective.schedule.collectives import COLLECTIVES, collective_named
from pycollective.schedule.compiler.compiler import compile
from pycollective.schedule.compiler.schedule import Placement, Schedule
from pycollective.schedule.language import registry
from pycollective.schedule.language.hosts import equal_shares, numbered
from pycollective.schedule.language.program import MOST_RANKS
from pycollective.schedule.language.registry import Order
from pycollective.schedule.verifier.contributions import ProvenOrder, check_contributions
from pycollective.schedule.verifier.interleaving import check_interleavings
from pycollective.schedule.verifier.structure import check_structure
from pycollective.schedule.verifier.weights import check_weights

MOST_RANKS_ACROSS = 8
"""Up to this number, `layouts` distributes ranks over several hosts."""
_STRENGTH: dict[str, int] = {"none": 0, "chunk": 1, "fixed": 2, "rank": 3}


@dataclass(frozen=True, slots=True)
class Report:
    """What was proved about one schedule, and its size.

    Attributes:
        title: topology, collective, ranks, root and placement.
        order: the strongest order of reduction that holds, see `TopologyInfo`; "none" if ranks differ.
        steps: steps of all ranks per tile.
        waits: waits of all ranks per tile.
        longest: maximum number of steps of a rank.
        cells: maximum number of scratch cells of a rank.
        hosts: number of hosts.
    """

    title: str
    order: ProvenOrder
    steps: int
    waits: int
    longest: int
    cells: int
    hosts: int = 1


def verify(schedule: Schedule, order: Order | None = None) -> Report:
    """Prove that a schedule produces correct results, without races or deadlocks, in the declared order.

    Args:
        schedule: a compiled schedule.
        order: the declared order of reduction; by default that of the topology registered under the
            schedule's name, and none for a schedule without a topology.

    Raises:
        VerificationError: names rank, chunk and the steps in conflict.
    """
    checks.instance(schedule, "schedule", Schedule, "a compiled Schedule")
    if order is not None:
        checks.choice(order, "order", registry.ORDERS)
    check_structure(schedule)
    executed = check_interleavings(schedule)
    proven: ProvenOrder = "rank"
    if COLLECTIVES[schedule.collective].weighted:
        check_weights(schedule, executed)
    else:
        proven = check_contributions(schedule, executed)
    claim = order or _claim(schedule)
    if claim is not None and _STRENGTH[proven] < _STRENGTH[claim]:
        found = {"none": "ranks reduce the same chunk in different orders"}.get(proven, f"it is {proven!r} at most")
        raise VerificationError(f"{schedule.title}: claims order {claim!r}, but {found}")
    steps = [step for rank in schedule.ranks for step in rank.steps]
    return Report(
        title=schedule.title,
        order=proven,
        steps=len(steps),
        waits=sum(len(step.waits) for step in steps),
        longest=max(len(rank.steps) for rank in schedule.ranks),
        cells=schedule.cells,
        hosts=max(schedule.hosts, default=0) + 1,
    )


def verify_topology(
    topology: object,
    sizes: Iterable[int] | None = None,
    placements: Iterable[Placement] = tuple(Placement),
    collectives: Iterable[str] | None = None,
    roots: Iterable[int] | None = None,
    hosts: Iterable[int] | None = (1,),
) -> Iterator[Report]:
    """Verify everything a topology implements: each collective, with its small variant, size, placement, root, hosts.

    Args:
        topology: a name, "wheel(hub=3)", a class or an instance.
        sizes: numbers of ranks; default those from 1 to 17 that the topology supports, or the smallest that it does.
        placements: placements to compile for.
        collectives: only these; default all that the topology implements.
        roots: only these; default the first, the last and one in between.
        hosts: numbers of hosts, which have equal shares of the ranks; those above the number of ranks are left out.
            None: all of `layouts`.

    Returns:
        a report for each schedule, as soon as it is proved.

    Raises:
        VerificationError: the first incorrect schedule.
        ProgramError, TopologyError: see `compile`.
        TypeError, ValueError: an argument is invalid; raised immediately.
    """
    instance = registry.get(topology)
    row = registry.info(instance)
    chosen = row.collectives if collectives is None else tuple(checks.items(collectives, "collectives", "names"))
    for name in chosen:
        collective_named(name)
    some = checks.items(placements, "placements", "placements")
    for i, placement in enumerate(some):
        checks.instance(placement, f"placements[{i}]", Placement, "a Placement")
    counts = supported_sizes(instance) if sizes is None else checks.integers(sizes, "sizes", 1)
    some_roots = None if roots is None else checks.integers(roots, "roots", 0)
    some_hosts = None if hosts is None else checks.integers(hosts, "hosts", 1)
    return _reports(instance, counts, some, chosen, some_roots, some_hosts)


def layouts(size: int) -> list[tuple[int, ...]]:
    """Typical distributions of ranks over hosts, as a host number for each rank. The first is one host, written ().

    For 2 to MOST_RANKS_ACROSS ranks also: two hosts and three with consecutive ranks each, two hosts with alternating
    ranks, and a host for each rank.
    """
    if not 2 <= size <= MOST_RANKS_ACROSS:
        return [()]
    several = [equal_shares(size, count) for count in (2, 3, size) if count <= size]
    several.append(numbered([rank % 2 for rank in range(size)], size))
    return list(dict.fromkeys([(), *several]))


def supported_sizes(topology: object) -> list[int]:
    """The numbers of ranks from 1 to 17 that a topology supports, or if there are none, the smallest above.

    Raises:
        TopologyError: see `registry.get`; or it supports none up to MOST_RANKS.
    """
    found = [size for size in range(1, 18) if registry.supports(topology, size)]
    found = found or [size for size in range(18, MOST_RANKS + 1) if registry.supports(topology, size)][:1]
    if not found:
        raise TopologyError(f"{registry.label(topology)} supports no number of ranks up to {MOST_RANKS}")
    return found


def _reports(
    instance: Any,
    sizes: list[int],
    placements: list[Placement],
    chosen: tuple[str, ...],
    roots: list[int] | None,
    host_counts: list[int] | None,
) -> Iterator[Report]:
    for size in sizes:
        if host_counts is None:
            hosts = layouts(size)
        else:
            hosts = [equal_shares(size, count) for count in host_counts if count <= size]
        for name in chosen:
            some_roots = sorted({0, size // 2, size - 1}) if roots is None else [r for r in roots if r < size]
            variants = (False, True) if registry.has_small(instance, name) else (False,)
            for root in some_roots if COLLECTIVES[name].rooted else (None,):
                for small in variants:
                    for placement, where in itertools.product(placements, hosts):
                        yield verify(compile(instance, name, size, root, placement, small, where))


def _claim(schedule: Schedule) -> Order | None:
    try:
        return registry.info(schedule.topology).order if schedule.topology else None
    except TopologyError:
        return None
