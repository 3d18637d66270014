"""The compiler: a topology's program becomes a schedule.

    program -> values -> steps in memory -> order -> waits

Each pass is a file of its own; this one puts them in line and remembers the results.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pycollective.errors import ProgramError, TopologyError
from pycollective.schedule import registry
from pycollective.schedule.collectives import collective_named
from pycollective.schedule.lowering import lower
from pycollective.schedule.program import Program
from pycollective.schedule.schedule import Placement, Schedule
from pycollective.schedule.values import build_values
from pycollective.schedule.waits import order_steps, synchronize


def compile(
    topology: object,
    collective: str,
    size: int,
    root: int | None = None,
    placement: Placement = Placement.STAGED,
    small: bool = False,
) -> Schedule:
    """Compile one collective of a topology; the result is remembered.

    Args:
        topology: a name, "wheel(hub=3)", a class or an instance.
        collective: the name of the collective, such as "allreduce".
        size: the number of ranks, from 1.
        root: the root where the collective has one (default 0); ignored elsewhere.
        placement: which buffers peers can address.
        small: use the `<collective>_small` variant if the topology has one.

    Raises:
        TopologyError: no such topology, it lacks the collective, or the root is out of range.
        ProgramError: its program breaks a rule of the language.
    """
    instance = registry.get(topology)
    root = (root or 0) if collective_named(collective).rooted else None
    small = small and hasattr(instance, f"{collective}_small")
    return _compile(instance, collective, size, root, placement, small)


@lru_cache(maxsize=4096)
def _compile(
    instance: Any, collective: str, size: int, root: int | None, placement: Placement, small: bool
) -> Schedule:
    program = trace(instance, collective, size, root, small)
    return compile_program(program, placement, topology=registry.label(instance), small=small)


def trace(
    topology: object,
    collective: str,
    size: int,
    root: int | None = None,
    small: bool = False,
    program: Program | None = None,
) -> Program:
    """Run a topology's method and return the program that it wrote, `program` if that is given. Raises as `compile`."""
    instance = registry.get(topology)
    row = registry.info(instance)
    if size < 1:
        raise TopologyError(f"{row.name}: {size} ranks; a schedule needs at least one")
    if root is not None and not 0 <= root < size:
        raise TopologyError(f"{row.name}: root {root} is out of range for {size} ranks")
    if collective not in row.collectives:
        others = ", ".join(other.name for other in registry.describe() if collective in other.collectives)
        raise TopologyError(f"{row.name} has no {collective}; topologies that have it: {others or 'none'}")
    method = getattr(instance, collective)
    if small:
        method = getattr(instance, f"{collective}_small", method)
    if program is None:
        program = Program(collective, size, root)
    if root is None:
        method(program)
    else:
        method(program, root)
    return program


def compile_program(
    program: Program, placement: Placement = Placement.STAGED, *, topology: str = "", small: bool = False
) -> Schedule:
    """Compile a program that was written without a topology; `topology` and `small` only label the result.

    Raises:
        ProgramError: a statement reads what nothing has been written to.
    """
    if program.size < 1:
        raise ProgramError(f"a program for {program.size} ranks")
    steps = lower(program, build_values(program, pull_copies=not placement.out_shared), placement)
    ranks = synchronize(order_steps(steps, program.size))
    cells = [target.place + 1 for step in steps for target in step.targets]
    return Schedule(
        topology=topology,
        collective=program.collective,
        size=program.size,
        root=program.root,
        placement=placement,
        small=small,
        chunks=program.chunk_count,
        stride=max(1, *(len(mine.steps) for mine in ranks)),
        cells=max(0, 0, *cells),
        ranks=ranks,
    )
