"""The messages of a program's executions, in the order in which the simulator's ports serve them.

The order depends on the program only, not on costs: so time is a longest path, increases with every cost, and does not
depend on the order of independent statements in the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from pycollective.schedule.simulator.executions import Executions

    Array = np.ndarray[Any, Any]

FIRST, COMBINE, LAST, CONTINUES, AWAITED, BETWEEN = 1, 2, 4, 8, 16, 32
"""Bits of a message's kind: first and last of its execution; last of the operands, after which it combines; its chunk
continues a message; another message has it as `after`; it goes to another node."""


@dataclass(frozen=True, slots=True)
class SimulatedMessages:
    """Message i belongs to execution[i] and goes from source[i] to target[i], all int32 arrays.

    An execution that reads nothing from other ranks has one message from its rank to itself, at no cost. after[i] is
    the message by which the value that i passes on has reached its node, or -1.
    """

    execution: Array
    source: Array
    target: Array
    kind: Array
    after: Array


def messages_of(executions: Executions) -> SimulatedMessages:
    """All messages, in the order in which ports serve them.

    A rank executes round after round; within a round sums first, then copies, the nearest following rank's first, like
    the compiler. An execution reads all sources, then writes all targets, in each case the nearest following rank
    first. Of ranks at the same point, the one on which the longest chain depends comes first.

    Between the hosts of the program a value crosses once to each, see crossings.py.
    """
    import numpy as np

    rank = np.asarray(executions.rank, np.int64)
    bundle, level = rounds(executions)
    position, index, height = _positions(executions, bundle, level)
    execution, source, target, writes, value = _movements(executions)
    distance = np.where(writes, target - source, source - target) % executions.size
    order = np.lexsort((distance, writes, execution))
    execution, source, target, writes, value, distance = (
        a[order] for a in (execution, source, target, writes, value, distance)
    )
    first = np.diff(execution, prepend=-1) != 0  # of its execution
    last = np.diff(execution, append=-1) != 0
    last_read = ~writes & (last | np.append(writes[1:], False))
    index = index[execution]
    kind = FIRST * first + COMBINE * last_read + LAST * last + CONTINUES * (index > 0)
    alone = first & last  # several chunks are one message; of sums of many, each chunk is a message
    turn = (_count_from(first), np.where(alone, 0, index), position[execution], level[execution])
    order = np.lexsort((index, rank[execution], distance, -height[execution], *turn))
    execution, source, target, kind, value = (a[order] for a in (execution, source, target, kind, value))
    if executions.host_of:
        source, after = cross_once(executions, source, target, value)
        kind[after[after >= 0]] |= AWAITED
    else:
        after = np.full(len(source), -1)
    return SimulatedMessages(*(a.astype(np.int32) for a in (execution, source, target, kind, after)))


def rounds(executions: Executions) -> tuple[Array, Array]:
    """The number of the bundle of each execution, and the round of the bundle.

    Executions of one rank with the same sources and targets are one bundle: their chunks are sent together. Rounds are
    the levels of the dependencies between bundles. If these form a cycle, as in a ring, a bundle has only executions of
    the same depth, and that is its round: the compiler's order.
    """
    import numpy as np

    numbers: dict[Any, int] = {}
    bundle = np.fromiter((numbers.setdefault(key, len(numbers)) for key in _bundle_keys(executions)), np.int64)
    later = np.repeat(bundle, np.diff(executions.before_at))
    edges = np.unique(bundle[np.asarray(executions.before, np.int64)] * len(numbers) + later)
    levels = _levels(*np.divmod(edges, max(1, len(numbers))), len(numbers))
    if levels is not None:
        return bundle, levels[bundle]
    depth = np.asarray(executions.depth, np.int64)
    bundle = np.unique(bundle * (depth.max() + 1) + depth, return_inverse=True)[1]
    return bundle, depth


def _bundle_keys(executions: Executions) -> Any:
    source_at, target_at = executions.source_at, executions.target_at
    for number, rank in enumerate(executions.rank):
        sources = executions.sources[source_at[number] : source_at[number + 1]]
        targets = executions.targets[target_at[number] : target_at[number + 1]]
        if len(sources) == 1 and len(targets) == 1 and targets[0] == rank:
            yield rank * executions.size + sources[0]
        else:
            yield rank, sources.tobytes(), targets.tobytes()


def _levels(earlier: Array, later: Array, count: int) -> Array | None:
    """The longest path to each of `count` nodes over edges sorted by `earlier`; None if there is a cycle."""
    import numpy as np

    levels = np.zeros(count, np.int64)
    missing = np.bincount(later, minlength=count)
    begin = np.searchsorted(earlier, np.arange(count + 1))
    free, done, level = np.flatnonzero(missing == 0), 0, 0
    while len(free):
        levels[free] = level
        done, level = done + len(free), level + 1
        spans = begin[free + 1] - begin[free]
        edges = np.repeat(begin[free] - np.cumsum(spans) + spans, spans) + np.arange(spans.sum())
        following, counts = np.unique(later[edges], return_counts=True)
        missing[following] -= counts
        free = following[missing[following] == 0]
    return levels if done == count else None


def _positions(executions: Executions, bundle: Array, level: Array) -> Array:
    """List for each execution its bundle's position in its rank and round, its index in the bundle, and a length.

    That is of the longest chain that depends on any of the bundle.
    """
    import numpy as np

    columns = (executions.rank, executions.chunk, executions.depth, executions.height)
    rank, chunk, depth, height = (np.asarray(column, np.int64) for column in columns)
    source = np.asarray(executions.sources, np.int64)[np.asarray(executions.source_at[:-1], np.int64)]
    target = np.asarray(executions.targets, np.int64)[np.asarray(executions.target_at[:-1], np.int64)]
    distance = np.where(np.diff(executions.source_at) > 1, 0, (source - rank) % executions.size)
    lowest = np.full(len(rank), len(chunk) and chunk.max())  # chunk of each bundle
    np.minimum.at(lowest, bundle, chunk)
    order = np.lexsort((chunk, depth, bundle, source, target, lowest[bundle], distance, level, rank))
    begins = (np.diff(rank[order], prepend=-1) != 0) | (np.diff(level[order], prepend=-1) != 0)
    leads = begins | (np.diff(bundle[order], prepend=-1) != 0)
    together = np.cumsum(leads)
    found = np.empty((3, len(order)), np.int64)
    if len(order):
        most = np.maximum.reduceat(height[order], np.flatnonzero(leads))[together - 1]
        start = np.flatnonzero(begins)[np.cumsum(begins) - 1]
        found[:, order] = together - together[start], _count_from(leads), most
    return found


def _count_from(begins: Array) -> Array:
    """0, 1, 2, ... from each beginning; the first element is one."""
    import numpy as np

    count: Array = np.arange(len(begins)) - np.flatnonzero(begins)[np.cumsum(begins) - 1]
    return count


def _movements(executions: Executions) -> tuple[Array, Array, Array, Array, Array]:
    """(execution, from, to, whether it is a write, value) of each message; see `cross_once` for the value."""
    import numpy as np

    rank = np.asarray(executions.rank, np.int64)
    found = []
    values = np.asarray(executions.values, np.int64)
    for ranks, at in ((executions.sources, executions.source_at), (executions.targets, executions.target_at)):
        execution = np.repeat(np.arange(len(rank)), np.diff(at))
        other = np.asarray(ranks, np.int64)
        moves = other != rank[execution]
        found.append((execution[moves], other[moves], moves))
    (reader, read, reads), (writer, written, _) = found
    initial = ~(np.asarray(executions.chunk, np.int64)[reader] * executions.size + read)
    idle = np.flatnonzero(np.bincount(reader, minlength=len(rank)) == 0)
    return (
        np.concatenate((reader, idle, writer)),
        np.concatenate((read, rank[idle], rank[writer])),
        np.concatenate((rank[reader], rank[idle], written)),
        np.repeat((False, False, True), (len(reader), len(idle), len(writer))),
        np.concatenate((np.where(values[reads] >= 0, values[reads], initial), idle, writer)),
    )


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
