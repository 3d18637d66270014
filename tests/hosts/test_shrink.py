"""shrink() between hosts: which survivors continue, and what the others get."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pycollective as pc
from pycollective.comm.host.segments import Exchange
from pycollective.comm.hosts import team as hosts_team
from pycollective.comm.hosts.connections import Meeting
from pycollective.comm.hosts.shrink import MemberLostError, Survivor, SurvivorAgreement, why_not
from pycollective.engine import Engine, Item

REFUSED = "needs more than half"


def _survive(comm: pc.Communicator, lost: Collection[int]) -> str | list[int]:
    """What a rank gets when some leave: the world ranks of the survivors, or an error."""
    if comm.rank in lost:
        with contextlib.suppress(pc.PeerLostError):
            comm.barrier()
        comm.free()
        return "lost"
    with pytest.raises(pc.PeerLostError):  # by the barrier, if another rank has missed one before this one leaves it
        comm.barrier()
        while True:
            comm.allreduce(np.ones(3))
    try:
        fresh = comm.shrink(10)
    except pc.CommunicatorError as error:
        return str(error)
    assert fresh.allreduce(np.ones(100_000)).tolist() == [float(fresh.size)] * 100_000
    ranks: list[int] = fresh.allgather(np.array([comm.rank])).tolist()
    assert fresh.world_ranks == tuple(ranks)
    return ranks


@pytest.mark.parametrize(
    ("hosts", "lost"),
    [
        *(((0, 0, 1, 1), lost) for lost in ({3}, {0}, {2, 3}, {0, 1})),
        ((0, 1, 2), {0}),
        ((0, 1, 2), {0, 2}),
        ((0, 1), {1}),
        ((0, 1, 0, 1, 2), {1, 3}),
    ],
)
def test_more_than_half_continue_or_half_with_rank_0(hosts: tuple[int, ...], lost: set[int]) -> None:
    got = pc.local_world(len(hosts), hosts=hosts).run(lambda comm: _survive(comm, lost))
    rest = [rank for rank in range(len(hosts)) if rank not in lost]
    for rank in rest:
        if 2 * len(rest) > len(hosts) or (2 * len(rest) == len(hosts) and rest[0] == 0):
            assert got[rank] == rest
        else:
            assert REFUSED in got[rank]


def test_survivors_of_survivors_continue() -> None:
    def run(comm: pc.Communicator) -> object:
        if comm.rank == 4:
            return None
        fresh = comm.shrink(0.5)
        if comm.rank == 1:
            return None
        last = fresh.shrink(0.5)
        with pytest.raises(pc.CommunicatorError, match="was shrunk before"):
            comm.shrink(0.1)
        return last.allgather(np.array([comm.rank])).tolist()

    got = pc.local_world(5, hosts=(0, 0, 1, 1, 2)).run(run)
    assert got == [[0, 2, 3], None, [0, 2, 3], [0, 2, 3], None]


def test_a_communicator_that_has_lost_nobody_can_be_shrunk_again() -> None:
    def run(comm: pc.Communicator) -> object:
        made = [comm.shrink(5) for _ in range(5)]
        return [fresh.allgather(np.array([comm.rank])).tolist() for fresh in made]

    assert pc.local_world(3, hosts=(0, 0, 1)).run(run) == [[[0, 1, 2]] * 5] * 3


@pytest.mark.parametrize("late", [0, 1, 3])
def test_a_late_rank_learns_that_it_was_left_out(late: int) -> None:
    done = threading.Barrier(4)

    def run(comm: pc.Communicator) -> object:
        if comm.rank == late:
            done.wait(30)
            with pytest.raises(pc.CommunicatorError, match=f"completed without rank {late}, which called it too late"):
                comm.shrink(5)
            return None
        with pytest.raises(pc.TimeoutError, match=f"rank {late}"):
            comm.allreduce(np.ones(3), timeout=0.3)
        fresh = comm.shrink(0.5)
        done.wait(30)
        return fresh.allgather(np.array([comm.rank])).tolist()

    rest = [rank for rank in range(4) if rank != late]
    got = pc.local_world(4, hosts=(0, 0, 1, 1)).run(run)
    assert [got[rank] for rank in rest] == [rest] * 3


def _connect_only(comm: pc.Communicator, others: Collection[int], seconds: float) -> None:
    """Connect for shrink(), and send nothing."""
    team = comm.backend
    wanted = {(rank, 0) for rank in others}
    meeting = Meeting(team.network.listener, team._endpoints, comm.rank, wanted, team._name + b" shrink")
    end = time.monotonic() + seconds
    while len(meeting.connected) < len(wanted) or time.monotonic() < end:
        meeting.advance(time.monotonic() + 0.05)
        time.sleep(0.005)
    meeting.close()


def test_a_leader_that_does_not_answer_is_named() -> None:
    over = threading.Barrier(3)

    def run(comm: pc.Communicator) -> str:
        if comm.rank == 0:
            _connect_only(comm, {1, 2}, 3.5)
            over.wait(30)
            return ""
        with pytest.raises(pc.CommunicatorError) as caught:
            comm.shrink(0.3)
        over.wait(30)
        return str(caught.value)

    got = pc.local_world(3, hosts=(0, 1, 1)).run(run)
    assert got[1:] == ["rank 0 should have led shrink() but did not within 0.3 s"] * 2


def test_a_leader_that_ends_is_replaced() -> None:
    def run(comm: pc.Communicator) -> object:
        if comm.rank == 0:
            _connect_only(comm, {1, 2}, 0.2)
            return None
        return comm.shrink(20).allgather(np.array([comm.rank])).tolist()

    assert pc.local_world(3, hosts=(0, 1, 2)).run(run) == [None, [1, 2], [1, 2]]


@pytest.mark.parametrize("leader", [0, 1])
def test_a_member_that_ends_while_the_communicator_is_made_is_named(leader: int) -> None:
    mine, its = socket.socketpair()
    its.close()
    agreement = SurvivorAgreement(0, leader, [0, 1, 2], {1: Survivor(mine)}, time.monotonic() + 5)
    with mine, pytest.raises(MemberLostError, match=r"rank 1 took part in shrink\(\), and has gone"):
        agreement.exchange(b"mine")


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_survivors_meet_again_if_one_is_lost_before_they_have_connected(
    lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = hosts_team.connect

    def losing(exchange: Exchange, position: int, members: Sequence[int], *rest: Any) -> object:
        if len(members) == 4 and position == lost:
            raise SystemExit
        return connect(exchange, position, members, *rest)

    monkeypatch.setattr(hosts_team, "connect", losing)

    def run(comm: pc.Communicator) -> object:
        try:
            return comm.shrink(20).allgather(np.array([comm.rank])).tolist()
        except SystemExit:
            comm.free()
            return None

    rest = [rank for rank in range(4) if rank != lost]
    got = pc.local_world(4, hosts=(0, 0, 1, 2)).run(run)
    assert [got[rank] for rank in rest] == [rest] * 3


@pytest.mark.parametrize("unable", [0, 1])
def test_survivors_learn_why_one_cannot_connect(unable: int, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = hosts_team.connect

    def failing(exchange: Exchange, position: int, *rest: Any) -> object:
        if position == unable:
            raise pc.BootstrapError("no route")
        return connect(exchange, position, *rest)

    monkeypatch.setattr(hosts_team, "connect", failing)

    def run(comm: pc.Communicator) -> None:
        with pytest.raises(pc.CommunicatorError, match="the survivors cannot connect: no route"):
            comm.shrink(20)

    pc.local_world(3, hosts=(0, 1, 1)).run(run)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_of_groups_that_cannot_reach_each_other_at_most_one_continues(group_of: list[int]) -> None:
    groups = [[rank for rank, group in enumerate(group_of) if group == one] for one in set(group_of)]
    assert sum(not why_not(members, len(group_of)) for members in groups) <= 1
    assert not why_not(range(len(group_of)), len(group_of))


@pytest.mark.parametrize("seconds", [float("inf"), 1e10])
def test_timeouts_without_end(seconds: float) -> None:
    def run(comm: pc.Communicator) -> None:
        engine = Engine(comm)
        work = engine.submit([Item("allreduce", "x", np.ones(3))])[0]
        assert work.wait(seconds).tolist() == [2.0] * 3
        engine.close()
        assert comm.allreduce(np.ones(3), timeout=seconds).tolist() == [2.0] * 3
        assert comm.shrink(timeout=seconds).size == 2

    pc.local_world(2, hosts=(0, 1)).run(run)
