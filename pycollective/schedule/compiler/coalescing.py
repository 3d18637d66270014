"""Message coalescing: contributions that cross from one host to another together, where messages cost more than bytes.

Without it each of n ranks of a host sends its contribution by itself, which costs n system calls on either side.
With coalescing one rank collects them through shared memory and sends them with one call; one rank receives them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pycollective.schedule.compiler.values import Value


@dataclass(frozen=True, slots=True)
class CoalescedMessage:
    """Contributions of one host that another one needs.

    Attributes:
        values: in the order in which they are sent.
        sender: a rank of their host.
        receiver: a rank of the other one.
        host: the other one's number.
    """

    values: tuple[Value, ...]
    sender: int
    receiver: int
    host: int


def coalesced_messages(
    values: Sequence[Value],
    host_of: Sequence[int],
    hosts: Sequence[Sequence[int]],
    needing: Callable[[Value], dict[int, list[int]]],
) -> list[CoalescedMessage]:
    """The coalesced messages of a program: one for each pair of hosts between which several contributions cross.

    The rank that sends to a host also receives from it; ranks of one host take turns over the other hosts. `needing`
    lists by host the ranks that need a value.
    """
    crossing: dict[tuple[int, int], list[Value]] = {}
    needed_by: dict[tuple[int, int], set[int]] = {}
    for value in values:
        here = host_of[value.rank]
        for there, ranks in needing(value).items():
            if there != here:
                crossing.setdefault((here, there), []).append(value)
                needed_by.setdefault((here, there), set()).update(ranks)
    found = []
    for (here, there), together in crossing.items():
        if len(together) < 2:
            continue
        owners = {value.rank for value in together}
        sender = _only(owners, hosts[here][there % len(hosts[here])])
        receiver = _only(needed_by[here, there], hosts[there][here % len(hosts[there])])
        found.append(CoalescedMessage(tuple(together), sender, receiver, there))
    return found


def _only(ranks: set[int], otherwise: int) -> int:
    """The one rank that is concerned, or another one if there are several."""
    return min(ranks) if len(ranks) == 1 else otherwise
