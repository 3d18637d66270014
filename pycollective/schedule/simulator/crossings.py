"""What crosses between hosts in a simulation: as in compiled schedules, a value is sent to each host once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from pycollective.schedule.simulator.executions import Executions

    Array = np.ndarray[Any, Any]


def cross_once(executions: Executions, source: Array, target: Array, value: Array) -> tuple[Array, Array]:
    """The sources of messages, if only the first that takes a value to a host comes from another host.

    Args:
        executions: the program, which knows hosts.
        source, target: the ranks of each message, in the order in which they are served.
        value: what each message transfers: the number of the execution that computed it, or ~(chunk * size + rank) for
            the content of a rank's chunk at the start.

    Returns:
        The new sources: a value that has reached the host already comes from the rank that received it, and one that
        was computed on the host from the rank that did so. For each message, the number of the one that brought its
        value to the host, if that is another one; otherwise -1.
    """
    import numpy as np

    host = np.asarray(executions.host_of, np.int64)
    computed = value >= 0
    computing = np.asarray(executions.rank, np.int64)[np.where(computed, value, 0)]
    owner = np.where(computed, computing, ~value % executions.size)
    at_home = host[owner] == host[target]
    source = np.where(at_home & (host[source] != host[target]), owner, source)
    after = np.full(len(source), -1)
    brought: dict[tuple[int, int], int] = {}  # by value and host
    for number in np.flatnonzero(~at_home).tolist():
        first = brought.setdefault((int(value[number]), int(host[target[number]])), number)
        if first != number:
            source[number], after[number] = target[first], first
    return source, after
