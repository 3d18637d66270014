"""Shared memory between the ranks of a host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pycollective import _core
from pycollective.errors import CommunicatorError

Exchange = Callable[[bytes], list[bytes]]
"""A collective allgather of bytes among all participants, in rank order."""

KINDS = ("memfd", "posix_shm")
"""Shared memory between processes, in the order tried."""


def kinds(threads: bool) -> Sequence[str]:
    """The kinds of shared memory to try, in this order."""
    return ("local",) if threads else KINDS


def setting(name: str) -> float:
    """The value of an environment variable of the core."""
    return {variable: value for variable, _, value, _ in _core.settings()}[name]


def scratch_bytes() -> int:
    """Bytes of shared scratch of each rank (PYCOLLECTIVE_SCRATCH)."""
    return max(int(setting("PYCOLLECTIVE_SCRATCH")), 65536)


def share_segment(
    exchange: Exchange, position: int, members: Sequence[int], nbytes: int, threads: bool = False
) -> _core.Segment | None:
    """Collective: one segment for the ranks at `members` (positions in the exchange); the first of them creates it.

    Every rank in the exchange takes part, with its own group of members or with none. If one rank cannot create or
    map a kind of memory, no rank uses it.

    Args:
        position: this rank's position in the exchange.
        members: the positions that share the segment with this one; empty for a non-member, which gets None.
        threads: whether the ranks are threads of this process.

    Raises:
        CommunicatorError: no kind of shared memory works; gives the reason for each.
    """
    reasons: list[str] = []
    for kind in kinds(threads):
        segment, token, problem = None, "", ""
        try:
            if members and position == members[0]:
                segment = _core.Segment.create(kind, nbytes)
                if kind == "posix_shm":  # limited by the size of /dev/shm: fail now
                    segment.reserve(0, nbytes)
                token = segment.token()
        except OSError as error:
            problem = str(error)
        tokens = exchange(token.encode())
        try:
            if members and position != members[0] and tokens[members[0]]:
                segment = _core.Segment.attach(tokens[members[0]].decode(), nbytes)
        except (OSError, ValueError) as error:
            problem = str(error)
        problem = first_problem(exchange, problem)
        if segment is not None:
            segment.seal()
        if not problem:
            return segment
        reasons.append(f"{kind}: {problem}")
    raise CommunicatorError("no shared memory between the ranks; " + "; ".join(reasons))


def first_problem(exchange: Exchange, problem: str) -> str:
    """Collective: the first of all ranks' problems, by rank; empty if no rank has one."""
    return next((text.decode() for text in exchange(problem.encode()) if text), "")
