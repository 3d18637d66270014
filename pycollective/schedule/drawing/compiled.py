"""Schedules as they are drawn: on one host, or on two if the topology looks at hosts."""

from __future__ import annotations

from pycollective.schedule.compiler.compiler import compile, trace
from pycollective.schedule.compiler.schedule import Placement, Schedule
from pycollective.schedule.language.hosts import equal_shares


def compiled(
    topology: object, collective: str, ranks: int, root: int = 0, small: bool = False, hosts: int | None = None
) -> Schedule:
    """The schedule for window arrays or, with several hosts, for others.

    Args:
        topology, collective, ranks, root, small: as for `compile`.
        hosts: number of hosts, with equal shares of the ranks; None: two if the program is another one there.
    """
    if hosts is None:
        hosts = 2 if ranks > 2 and _looks_at_hosts(topology, collective, ranks, root, small) else 1
    placement = Placement.WINDOW if hosts == 1 else Placement.STAGED
    return compile(topology, collective, ranks, root, placement, small, equal_shares(ranks, hosts))


def _looks_at_hosts(topology: object, collective: str, ranks: int, root: int, small: bool) -> bool:
    one, two = (
        trace(topology, collective, ranks, root, small, hosts=equal_shares(ranks, hosts)).statements for hosts in (1, 2)
    )
    return one != two
