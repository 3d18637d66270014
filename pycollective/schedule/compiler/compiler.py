"""The compiler: translates a topology's program to a schedule.

    program -> values -> steps in memory -> order -> waits

Each pass is a separate file; this one runs them in order and caches the results.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, SupportsIndex

from pycollective import checks
from pycollective.errors import ProgramError, TopologyError
from pycollective.schedule.collectives import collective_named
from pycollective.schedule.compiler.lowering import Lowering
from pycollective.schedule.compiler.messages import across_hosts
from pycollective.schedule.compiler.mixtures import mixtures
from pycollective.schedule.compiler.schedule import Placement, Schedule
from pycollective.schedule.compiler.steps import SEND
from pycollective.schedule.compiler.values import build_values
from pycollective.schedule.compiler.waits import Waits, order_steps, synchronize
from pycollective.schedule.language import registry
from pycollective.schedule.language.hosts import numbered
from pycollective.schedule.language.program import MOST_RANKS, Program


def compile(
    topology: object,
    collective: str,
    size: int,
    root: int | None = None,
    placement: Placement = Placement.STAGED,
    small: bool = False,
    hosts: Iterable[SupportsIndex] = (),
) -> Schedule:
    """Compile one collective of a topology; the result is remembered.

    Args:
        topology: a name, "wheel(hub=3)", a class or an instance.
        collective: the name of the collective, such as "allreduce".
        size: the number of ranks, from 1.
        root: the root if the collective has one (default 0); otherwise ignored.
        placement: which buffers peers can address; on several hosts, those of the same one.
        small: use the `<collective>_small` variant if the topology has one.
        hosts: a number for each rank, equal for ranks of one host; empty: they share one.

    Raises:
        TopologyError: no such topology, it lacks the collective or does not support this number of ranks, or the root
            is out of range.
        ProgramError: no such collective, or the topology's program breaks a rule of the language.
        TypeError, ValueError: another argument is invalid.
    """
    instance = registry.get(topology)
    size, root = checked_ranks(instance, collective, size, root)
    checks.instance(placement, "placement", Placement, "a Placement")
    small = checks.flag(small, "small") and registry.has_small(instance, collective)
    return _compile(instance, collective, size, root, placement, small, numbered(hosts, size))


@lru_cache(maxsize=4096)
def _compile(
    instance: Any,
    collective: str,
    size: int,
    root: int | None,
    placement: Placement,
    small: bool,
    hosts: tuple[int, ...],
) -> Schedule:
    with _collector_paused():
        program = trace(instance, collective, size, root, small, hosts=hosts)
        return compile_program(program, placement, topology=registry.label(instance), small=small)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """No garbage collection: hundreds of thousands of objects are made here, and looking through them again and again
    takes longer than everything else."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def trace(
    topology: object,
    collective: str,
    size: int,
    root: int | None = None,
    small: bool = False,
    program: Program | None = None,
    hosts: Iterable[SupportsIndex] = (),
) -> Program:
    """Run a topology's method and return the program that it wrote.

    Args:
        topology: a name, "wheel(hub=3)", a class or an instance.
        collective: its name.
        size: the number of ranks.
        root: the root if the collective has one (default 0); otherwise ignored.
        small: whether to run the variant for small messages.
        program: an empty program to write to; default a new one.
        hosts: a number for each rank, equal for ranks of one host; empty: they share one. Ignored with `program`.

    Returns:
        the program.

    Raises:
        Exception: see `compile`.
    """
    instance = registry.get(topology)
    row = registry.info(instance)
    size, root = checked_ranks(instance, collective, size, root)
    if program is not None:
        checks.instance(program, "program", Program, "a Program or None")
    if collective not in row.collectives:
        others = ", ".join(other.name for other in registry.describe() if collective in other.collectives)
        raise TopologyError(f"{row.name} has no {collective}; topologies that have it: {others or 'none'}")
    method = getattr(instance, collective)
    if checks.flag(small, "small"):
        method = getattr(instance, f"{collective}_small", method)
    if program is None:
        program = Program(collective, size, root, hosts)
    if root is None:
        method(program)
    else:
        method(program, root)
    return program


def checked_ranks(topology: object, collective: str, size: int, root: int | None) -> tuple[int, int | None]:
    """The number of ranks and the root of a topology's program: 0 by default, None if the collective has no root.

    Raises:
        ProgramError: no such collective.
        TypeError: not integers.
        ValueError: more than MOST_RANKS.
        TopologyError: not a positive number, a number of ranks that the topology does not support, or the root is not
            one of them.
    """
    name, rooted = registry.info(topology).name, collective_named(collective).rooted
    size = checks.integer(size, "size", most=MOST_RANKS)
    if size < 1:
        raise TopologyError(f"{name}: {size} ranks; a schedule needs at least one")
    registry.check_ranks(topology, size)
    root = checks.integer(0 if root is None else root, "root") if rooted else None
    if root is not None and not 0 <= root < size:
        raise TopologyError(f"{name}: root {root} is out of range for {size} ranks")
    return size, root


def compile_program(
    program: Program, placement: Placement = Placement.STAGED, *, topology: str = "", small: bool = False
) -> Schedule:
    """Compile a program that does not belong to a topology.

    Args:
        program: all its statements; its ranks may be on several hosts.
        placement: which buffers peers can address; on several hosts, those of the same one.
        topology, small: only label the result.

    Returns:
        the schedule of all ranks.

    Raises:
        ProgramError: a statement reads a place that has not been written.
    """
    checks.instance(program, "program", Program, "a Program")
    checks.instance(placement, "placement", Placement, "a Placement")
    checks.text(topology, "topology")
    small = checks.flag(small, "small")
    if program.size < 1:
        raise ProgramError(f"a program for {program.size} ranks")
    graph = build_values(program, pull_copies=bool(program.host_of) or not placement.out_shared)
    if program.host_of:
        waits = across_hosts(program, graph, placement, pipelined=not small)
    else:
        waits = Waits(order_steps(Lowering(program, placement).run(graph), program.size))
    weighted = collective_named(program.collective).weighted
    cells = [target.place + 1 for mine in waits.lists for step in mine if step.kind != SEND for target in step.targets]
    return Schedule(
        topology=topology,
        collective=program.collective,
        size=program.size,
        root=program.root,
        placement=placement,
        small=small,
        chunks=program.chunk_count,
        stride=waits.stride,
        cells=max(0, 0, *cells),
        ranks=synchronize(waits, _neighbours(program) if weighted else None),
        mixtures=mixtures(program) if weighted else (),
        hosts=program.host_of,
    )


def _neighbours(program: Program) -> list[int]:
    """List for each rank the next one of its host, and after the last the first."""
    following: dict[int, int] = {}
    for ranks in program.hosts:
        following.update(zip(ranks, ranks[1:] + ranks[:1], strict=True))
    return [following[rank] for rank in program.ranks]
