"""Communicators made from others: split, and what survivors of a failure have left."""

from __future__ import annotations

import json
import time

from pycollective import _core, checks
from pycollective.comm.communicator import Communicator
from pycollective.comm.nodes import Nodes
from pycollective.comm.planner import Planner
from pycollective.comm.rail_calls import RailCalls
from pycollective.comm.teams import KINDS, build_team, set_patience
from pycollective.errors import CommunicatorError

POLL_SECONDS = 0.001
_INT64 = -(1 << 63), (1 << 63) - 1


def split(
    comm: Communicator, color: int | None, key: int, name: str | None, operation: str = "split"
) -> Communicator | None:
    """See Communicator.split.

    Args:
        operation: which of the methods that split it is, with what all ranks must give alike.

    Raises:
        MismatchError: the ranks do different operations.
    """
    mine = None if color is None else checks.integer(color, "color", *_INT64)
    key = checks.integer(key, "key", *_INT64)
    if name is not None:
        checks.text(name, "name")
    comm._backend.require_turn()
    number = next(comm._numbers)
    said = [json.loads(text) for text in comm._exchange(json.dumps([mine, key]).encode(), operation)]
    chosen = [(theirs, rank) for rank, (other, theirs) in enumerate(said) if mine is not None and other == mine]
    members = [rank for _, rank in sorted(chosen)]
    name = name or f"{comm.name}/split{number}:{color}"
    world = [comm.world_ranks[rank] for rank in members]
    if isinstance(comm._backend, RailCalls):
        return _split_rail(comm, comm._backend, color, key, members, world, name)
    team = build_team(comm._exchange, comm.rank, members, world, name, comm._threads)
    if team is None:
        return None
    return Communicator(team, nodes=_on_one_host(team.rank, team.size), world_ranks=world, name=name,
                        threads=comm._threads, kin=comm._kin)  # fmt: skip


def _split_rail(
    comm: Communicator,
    backend: RailCalls,
    color: int | None,
    key: int,
    mine: list[int],
    world: list[int],
    name: str,
) -> Communicator | None:
    """Part of a communicator that spans hosts: shared memory if the part is on one host, else MPI again."""
    here = {comm._nodes.of[rank] for rank in mine}
    shared = len(here) == 1
    team = build_team(comm._exchange, comm.rank, mine if shared else [], world, name, False)
    rail = backend.rail.split(color if mine and not shared else None, key)
    if not mine:
        return None
    order = {node: i for i, node in enumerate(dict.fromkeys(comm._nodes.of[rank] for rank in mine))}
    nodes = Nodes(mine.index(comm.rank), tuple(order[comm._nodes.of[rank]] for rank in mine))
    made: _core.Team | RailCalls | None = team
    if rail is not None:
        made = RailCalls(rail)
    assert made is not None
    return Communicator(made, nodes=nodes, world_ranks=world, name=name)


def _on_one_host(rank: int, size: int) -> Nodes:
    return Nodes(rank, (0,) * size)


READY, CALLED, THERE, WATCHING = 1, 2, 3, 4
"""How far a survivor is in a round of shrink(): waits; has called the others; has come; watches all others, who live.
Its flag is this, and ROUND times the number of the round."""
ROUND = 8


def shrink(comm: Communicator, timeout: float) -> Communicator:
    """See Communicator.shrink.

    The old control block still is common memory. Each survivor has a flag there; when every rank has raised its,
    died or run out of time, the lowest survivor writes down who is in and where the new segment is. If one of these
    dies before it has come there, the others see that and begin another round.
    """
    if not timeout >= 0:
        raise ValueError(f"timeout must be a number of seconds, 0 or more, not {timeout}")
    team = comm._backend
    if isinstance(team, RailCalls):
        return _shrink_rail(comm, team, timeout)
    team.require_open()
    deadline = time.monotonic() + timeout
    number = team.survivor(comm.rank) // ROUND + 1 if team.survivor(comm.rank) else 0  # the call before this failed
    while True:
        number = max(number, max(team.survivor(rank) // ROUND for rank in range(comm.size)))
        team.set_survivor(ROUND * number + READY)
        found = _find(comm, team, number, deadline, timeout)
        made = _meet(comm, team, number, *found, deadline + timeout) if found else None
        if made is not None:
            return made
        number += found is not None


def _shrink_rail(comm: Communicator, backend: RailCalls, timeout: float) -> Communicator:
    """MPI finds out who lives, where it was started to tolerate the loss of ranks."""
    rail, ranks = backend.rail.shrink(timeout)
    world = [comm.world_ranks[rank] for rank in ranks]
    hosts = [comm._nodes.of[rank] for rank in ranks]
    order = {host: i for i, host in enumerate(dict.fromkeys(hosts))}
    nodes = Nodes(ranks.index(comm.rank), tuple(order[host] for host in hosts))
    made = Communicator(RailCalls(rail), nodes=nodes, world_ranks=world, name=f"{comm.name}/shrunk")
    return made if len(order) > 1 else made.dup()  # on one host they share memory


def _find(
    comm: Communicator, team: _core.Team, number: int, deadline: float, timeout: float
) -> tuple[_core.Segment | None, list[int]] | None:
    """Of a round: the new segment (None: its maker is gone) and its members; None: a later round has begun."""
    while True:
        flags = [team.survivor(rank) for rank in range(comm.size)]
        if max(flags) // ROUND > number:
            return None
        called = [rank for rank, flag in enumerate(flags) if flag >= ROUND * number + CALLED and rank != comm.rank]
        for leader in called:  # also one that has finished since
            label, token, listed = (*team.mail(leader).split(" "), "", "", "")[:3]
            if label == str(number):
                members = [int(rank) for rank in listed.split(",")]
                if comm.rank not in members:
                    raise CommunicatorError(f"shrink() went on without rank {comm.rank}, which came too late")
                return _attach(team, leader, token, len(members)), members
        living = [rank for rank in range(comm.size) if not team.gone(rank) and not team.departed(rank)]
        ready = [rank for rank in living if flags[rank] >= ROUND * number + READY]
        late = time.monotonic() > deadline
        if ready[:1] == [comm.rank] and (ready == living or late):
            kind = "local" if comm._threads else KINDS[0]
            segment = _core.Segment.create(kind, _core.Team.segment_bytes(len(ready), team.scratch_bytes))
            team.set_mail(f"{number} {segment.token()} {','.join(map(str, ready))}")
            team.set_survivor(ROUND * number + CALLED)
            return segment, ready
        if time.monotonic() > deadline + timeout:
            raise CommunicatorError(f"rank {ready[0]} should have led shrink() but did not within {timeout:g} s")
        time.sleep(POLL_SECONDS)


def _attach(team: _core.Team, leader: int, token: str, size: int) -> _core.Segment | None:
    try:
        return _core.Segment.attach(token, _core.Team.segment_bytes(size, team.scratch_bytes))
    except (OSError, ValueError):
        if team.gone(leader):  # and with it what it has made
            return None
        raise


def _meet(
    comm: Communicator, old: _core.Team, number: int, segment: _core.Segment | None, members: list[int], end: float
) -> Communicator | None:
    """The communicator of `members`, once all have come; None: one has died before."""
    if segment is None:
        return None
    rank, size = members.index(comm.rank), len(members)
    world = [comm.world_ranks[member] for member in members]
    name = f"{comm.name}/shrunk"
    team = _core.Team(segment, rank, size, old.scratch_bytes, world, name, comm._threads, Planner(rank, size))
    team.tile_bytes = old.tile_bytes
    set_patience(team, size)
    old.set_survivor(ROUND * number + THERE)
    if not _all_reach(old, members, number, THERE, end):
        return None
    team.watch_peers()
    if any(map(old.gone, members)):  # perhaps before it could be watched
        return None
    old.set_survivor(ROUND * number + WATCHING)
    if not _all_reach(old, members, number, WATCHING, end):
        return None
    segment.seal()
    return Communicator(team, nodes=_on_one_host(rank, size), world_ranks=world, name=name, threads=comm._threads,
                        kin=comm._kin)  # fmt: skip


def _all_reach(team: _core.Team, members: list[int], number: int, stage: int, end: float) -> bool:
    """Wait until all are so far; False if one dies before, or gives up the round.

    What one rank finds all find: who is at the last stage stays there unless another one never comes so far.
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
            raise CommunicatorError(f"ranks {missing} have joined shrink() but did not come to its end")
        time.sleep(POLL_SECONDS)
