"""Building the shared part of a communicator: its segment, and this rank's end of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from pycollective import _core, settings
from pycollective.comm.planner import Planner
from pycollective.errors import CommunicatorError

Exchange = Callable[[bytes], list[bytes]]
"""A collective allgather of bytes among all who take part, in rank order."""

KINDS = ("memfd", "posix_shm")
"""Shared memory between processes, in the order in which it is tried."""


def setting(name: str) -> float:
    """The value of an environment variable of the core."""
    return {variable: value for variable, _, value, _ in _core.settings()}[name]


def scratch_bytes() -> int:
    """Bytes of shared scratch of each rank (PYCOLLECTIVE_SCRATCH)."""
    return max(int(setting("PYCOLLECTIVE_SCRATCH")), 65536)


def share_segment(
    exchange: Exchange, position: int, members: Sequence[int], nbytes: int, kinds: Sequence[str]
) -> _core.Segment | None:
    """Collective: one segment for the ranks at `members` (positions in the exchange); the first of them makes it.

    Everybody in the exchange takes part, with its own group of members or with none. A kind of memory that one rank
    cannot make or map is given up by all together.

    Args:
        exchange: allgather of bytes.
        position: this rank's position in it.
        members: the positions that share with this one; empty for a bystander.
        nbytes: size of the segment.
        kinds: kinds of shared memory to try, in this order.

    Returns:
        the segment, mapped; None for a bystander.

    Raises:
        CommunicatorError: no kind of shared memory works; says why for each.
    """
    reasons: list[str] = []
    for kind in kinds:
        segment, token, problem = None, "", ""
        try:
            if members and position == members[0]:
                segment = _core.Segment.create(kind, nbytes)
                if kind == "posix_shm":  # limited by the size of /dev/shm: find out now
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
        problems = [text.decode() for text in exchange(problem.encode()) if text]
        if segment is not None:
            segment.seal()
        if not problems:
            return segment
        reasons.append(f"{kind}: {problems[0]}")
    raise CommunicatorError("no shared memory between the ranks; " + "; ".join(reasons))


def build_team(
    exchange: Exchange,
    position: int,
    members: Sequence[int],
    world_ranks: Sequence[int],
    name: str,
    threads: bool,
) -> _core.Team | None:
    """Collective: this rank's end of a new communicator of the ranks at `members`; None for a bystander.

    Args:
        exchange, position, members: as for share_segment.
        world_ranks: of the members, for messages.
        name: of the communicator, for messages.
        threads: whether the ranks are threads of this process.
    """
    # The first member's settings count: ranks whose tiles differ would not do the same steps.
    mine = f"{scratch_bytes()} {setting('PYCOLLECTIVE_TILE')} {setting('PYCOLLECTIVE_STAGED_TILE')}"
    said = exchange(mine.encode())
    scratch, tile, staged_tile = (float(text) for text in said[members[0] if members else position].split())
    size, scratch = len(members), int(scratch)
    nbytes = _core.Team.segment_bytes(size, scratch) if size else 0
    segment = share_segment(exchange, position, members, nbytes, ("local",) if threads else KINDS)
    team = None
    if segment is not None:
        rank = members.index(position)
        team = _core.Team(segment, rank, size, scratch, list(world_ranks), name, threads, Planner(rank, size))
        if world_ranks[rank] == 0:  # one process of a job; also where nobody calls init()
            settings.warn_of_unknown(stacklevel=4)
        team.tile_bytes = (tile, staged_tile)
    exchange(b"")  # everybody's presence is written
    if team is not None:
        team.watch_peers()
        set_patience(team, size)
    return team


def set_patience(team: _core.Team, ranks_here: int) -> None:
    """How long waits spin before they yield and sleep; a rank that shares its core must not spin."""
    spin = setting("PYCOLLECTIVE_SPIN_US") if ranks_here <= (os.cpu_count() or 1) else 0.0
    team.set_patience(spin, setting("PYCOLLECTIVE_YIELD_US"))
