"""shrink(): how the survivors of a lost rank agree on the new members, in shared memory.

The old control block is still shared. Each survivor has a flag there; when every rank has raised its flag, died or run
out of time, the lowest survivor writes the members and the location of the new segment. If one of them dies before it
has finished, the others detect that and begin another round.
"""

from __future__ import annotations

import time

from pycollective import _core
from pycollective.comm.group import Group
from pycollective.comm.host.core_team import make_team, segment_bytes
from pycollective.comm.host.segments import kinds
from pycollective.errors import CommunicatorError

POLL_SECONDS = 0.001
CLOSING_SECONDS = 1.0
"""Between the moment when a process that ends closes its memory and that when it is reported to have ended."""
READY, CALLED, THERE, WATCHING = 1, 2, 3, 4
"""A survivor's progress in a round of shrink(): waiting; has called the others; has joined; watches the survivors.
Its flag is this plus ROUND times the number of the round."""
ROUND = 8


def shrink(team: _core.Team, group: Group, timeout: float) -> tuple[_core.Team, list[int]]:
    """See Communicator.shrink.

    Returns:
        the core's part of the new communicator, and its members' ranks in this one.
    """
    team.require_open()
    deadline = time.monotonic() + timeout
    mine = team.survivor(group.rank)
    number = mine // ROUND + 1 if mine else 0  # the previous call failed
    while True:
        number = max(number, max(team.survivor(rank) // ROUND for rank in range(group.size)))
        team.set_survivor(ROUND * number + READY)
        found = _find(team, group, number, deadline, timeout)
        made = _meet(team, group, number, *found, deadline + timeout) if found else None
        if made is not None and found is not None:
            return made, found[1]
        number += found is not None


def _find(
    team: _core.Team, group: Group, number: int, deadline: float, timeout: float
) -> tuple[_core.Segment | None, list[int]] | None:
    """A round's new segment (None: its creator died) and members; None if a later round has begun."""
    while True:
        flags = [team.survivor(rank) for rank in range(group.size)]
        if max(flags) // ROUND > number:
            return None
        called = [rank for rank, flag in enumerate(flags) if flag >= ROUND * number + CALLED and rank != group.rank]
        for leader in called:  # including one that has finished since
            label, token, listed = (*team.mail(leader).split(" "), "", "", "")[:3]
            if label == str(number):
                members = [int(rank) for rank in listed.split(",")]
                if group.rank not in members:
                    raise CommunicatorError(f"shrink() completed without rank {group.rank}, which called it too late")
                nbytes = segment_bytes(len(members), team.scratch_bytes, group.threads)
                return _attach(team, leader, token, nbytes), members
        living = [rank for rank in range(group.size) if not team.gone(rank) and not team.departed(rank)]
        ready = [rank for rank in living if flags[rank] >= ROUND * number + READY]
        late = time.monotonic() > deadline
        if ready[:1] == [group.rank] and (ready == living or late):
            nbytes = segment_bytes(len(ready), team.scratch_bytes, group.threads)
            segment = _core.Segment.create(kinds(group.threads)[0], nbytes)
            team.set_mail(f"{number} {segment.token()} {','.join(map(str, ready))}")
            team.set_survivor(ROUND * number + CALLED)
            return segment, ready
        if time.monotonic() > deadline + timeout:
            raise CommunicatorError(f"rank {ready[0]} should have led shrink() but did not within {timeout:g} s")
        time.sleep(POLL_SECONDS)


def _attach(team: _core.Team, leader: int, token: str, nbytes: int) -> _core.Segment | None:
    try:
        return _core.Segment.attach(token, nbytes)
    except (OSError, ValueError):
        end = time.monotonic() + CLOSING_SECONDS
        while not team.gone(leader):
            if time.monotonic() > end:
                raise
            time.sleep(POLL_SECONDS)
        return None  # its segment is gone with it


def _meet(
    old: _core.Team, group: Group, number: int, segment: _core.Segment | None, members: list[int], end: float
) -> _core.Team | None:
    """This rank's part of a communicator of `members`, once all have joined; None if one died before."""
    if segment is None:
        return None
    team = make_team(segment, group.part(members, f"{group.name}/shrunk"), old.scratch_bytes)
    team.tile_bytes = old.tile_bytes
    old.set_survivor(ROUND * number + THERE)
    if not _all_reach(old, members, number, THERE, end):
        return None
    team.watch_peers()
    if any(map(old.gone, members)):  # possibly before it could be watched
        return None
    old.set_survivor(ROUND * number + WATCHING)
    if not _all_reach(old, members, number, WATCHING, end):
        return None
    segment.seal()
    return team


def _all_reach(team: _core.Team, members: list[int], number: int, stage: int, end: float) -> bool:
    """Wait until all members reach a stage; False if one dies before, or leaves the round.

    All ranks get the same result: a rank at the last stage stays there unless another one never reaches it.
    """
    while True:
        gone = [rank for rank in members if team.gone(rank) or team.departed(rank)]
        flags = {rank: team.survivor(rank) for rank in members}
        if any(flag // ROUND > number for flag in flags.values()):
            return False
        missing = [rank for rank, flag in flags.items() if flag < ROUND * number + stage]
        if not missing:
            return True
        if set(missing) & set(gone):
            return False
        if time.monotonic() > end:
            raise CommunicatorError(f"ranks {missing} have joined shrink() but did not complete it")
        time.sleep(POLL_SECONDS)
