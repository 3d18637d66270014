"""Communicators made from others: split, and what survivors of a failure have left."""

from __future__ import annotations

import time

from pycollective import _core
from pycollective.comm.communicator import Communicator
from pycollective.comm.nodes import Nodes
from pycollective.comm.planner import Planner
from pycollective.comm.rail_calls import RailCalls
from pycollective.comm.teams import KINDS, build_team, set_patience
from pycollective.errors import CommunicatorError

POLL_SECONDS = 0.001


def split(comm: Communicator, color: int | None, key: int, name: str | None) -> Communicator | None:
    """See Communicator.split."""
    number = next(comm._numbers)
    told = "" if color is None else f"{int(color)} {int(key)}"
    said = [text.decode() for text in comm._exchange(told.encode())]
    mine = []
    if color is not None:
        chosen = [
            (int(text.split()[1]), rank) for rank, text in enumerate(said) if text.split()[:1] == [str(int(color))]
        ]
        mine = [rank for _, rank in sorted(chosen)]
    name = name or f"{comm.name}/split{number}:{color}"
    world = [comm.world_ranks[rank] for rank in mine]
    if isinstance(comm._backend, RailCalls):
        return _split_rail(comm, comm._backend, color, key, mine, world, name)
    team = build_team(comm._exchange, comm.rank, mine, world, name, comm._threads)
    if team is None:
        return None
    return Communicator(team, nodes=_on_one_host(team.rank, team.size), world_ranks=world, name=name,
                        threads=comm._threads)  # fmt: skip


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


def shrink(comm: Communicator, timeout: float) -> Communicator:
    """See Communicator.shrink.

    The old control block still is common memory. Each survivor raises its flag there; when every rank has raised it,
    died or run out of time, the lowest survivor writes down who is in and where the new segment is.
    """
    team = comm._backend
    if isinstance(team, RailCalls):
        raise CommunicatorError("a communicator that spans hosts cannot shrink")
    deadline = time.monotonic() + timeout
    team.set_mail("")
    team.set_survivor(1)
    while True:
        announced = [rank for rank in range(comm.size) if rank != comm.rank and team.survivor(rank) == 2]
        if announced:  # also by a leader that has finished since
            return _follow(comm, team, announced[0])
        living = [rank for rank in range(comm.size) if not team.gone(rank) and not team.departed(rank)]
        late = time.monotonic() > deadline
        ready = [rank for rank in living if team.survivor(rank) >= 1]
        leader = ready[0]
        if comm.rank == leader and (ready == living or late):
            return _lead(comm, team, ready)
        if time.monotonic() > deadline + timeout:
            raise CommunicatorError(f"rank {leader} should have led shrink() but did not within {timeout:g} s")
        time.sleep(POLL_SECONDS)


def _lead(comm: Communicator, team: _core.Team, members: list[int]) -> Communicator:
    size, scratch = len(members), team.scratch_bytes
    kind = "local" if comm._threads else KINDS[0]
    segment = _core.Segment.create(kind, _core.Team.segment_bytes(size, scratch))
    team.set_mail(f"{segment.token()} {','.join(map(str, members))}")
    team.set_survivor(2)
    return _join(comm, team, segment, members)


def _follow(comm: Communicator, team: _core.Team, leader: int) -> Communicator:
    token, _, listed = team.mail(leader).partition(" ")
    members = [int(rank) for rank in listed.split(",")]
    if comm.rank not in members:
        raise CommunicatorError(f"shrink() went on without rank {comm.rank}, which came too late")
    return _join(comm, team, _core.Segment.attach(token), members)


def _join(comm: Communicator, old: _core.Team, segment: _core.Segment, members: list[int]) -> Communicator:
    rank, size = members.index(comm.rank), len(members)
    world = [comm.world_ranks[member] for member in members]
    name = f"{comm.name}/shrunk"
    team = _core.Team(segment, rank, size, old.scratch_bytes, world, name, comm._threads, Planner(rank, size))
    team.tile_bytes = old.tile_bytes
    set_patience(team, size)
    made = Communicator(team, nodes=_on_one_host(rank, size), world_ranks=world, name=name, threads=comm._threads)
    made.barrier()  # everybody has attached
    team.watch_peers()
    segment.seal()
    return made
