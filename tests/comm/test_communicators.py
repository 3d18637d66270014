"""Communicators made from others: split, dup, group, free, nested; their windows; and that nothing is left behind."""

from __future__ import annotations

import gc
import itertools
import os
import struct
import threading
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calls import MOVING, REDUCING, call, expected, has, on_each_rank, place
from processes import run
from reference import TOPOLOGIES, contributions

import pycollective
from meeting import on_threads
from pycollective import Communicator, local_world


def check_works(comm: Communicator) -> None:
    """All kinds of calls among the ranks of the communicator, with values that only they have."""
    n = comm.size
    xs = contributions("int32", "sum", n, 1500)
    for turn, (collective, topology) in enumerate(itertools.product((*REDUCING, *MOVING), TOPOLOGIES)):
        if has(topology, collective):
            root = turn % n
            got = call(comm, collective, xs[comm.rank], root, topology=topology)
            right = expected(collective, xs, root, comm.rank)
            assert got is None if right is None else got.tolist() == right.tolist()
    window = place(comm, np.full(5000, 1 << comm.rank), "window")
    assert (comm.allreduce(window, out=window, op="bor") == (1 << n) - 1).all()
    if n > 1:
        handle = comm.isend(xs[comm.rank], (comm.rank + 1) % n)
        assert comm.recv(np.empty(1500, np.int32), (comm.rank - 1) % n).tolist() == xs[(comm.rank - 1) % n].tolist()
        handle.wait(20)
    comm.barrier()


def split_in_every_way(comm: Communicator, link: Connection | None) -> None:
    n, me = comm.size, comm.rank
    for divisor in (1, 2, 3, n):
        part = comm.split(me // divisor)
        assert part.world_ranks == tuple(rank for rank in range(n) if rank // divisor == me // divisor)
        assert part.rank == part.world_ranks.index(me)
        check_works(part)
        part.free()
    back = comm.split(-7, -me)
    assert (back.rank, back.world_ranks) == (n - 1 - me, tuple(reversed(range(n))))
    check_works(back)
    tied = comm.split(1 << 40, me % 2)  # ties are ordered by rank
    assert tied.world_ranks == (*range(0, n, 2), *range(1, n, 2))
    some = comm.split(None if me == 1 else 0)
    if me == 1:
        assert some is None
    else:
        assert 1 not in some.world_ranks
        check_works(some)
    assert comm.split(None) is None
    check_works(comm)


@pytest.mark.parametrize("n", [1, 3, 6])
def test_split(n: int) -> None:
    local_world(n).run(lambda comm: split_in_every_way(comm, None))


def nest(comm: Communicator, link: Connection | None) -> tuple[int, ...]:
    half = comm.split(comm.rank % 2)
    pair = half.group([half.size - 1, 0])
    if half.rank in (0, half.size - 1):
        assert pair.rank == (half.rank == 0)
        assert pair.world_ranks == (half.world_ranks[-1], half.world_ranks[0])
        copy = pair.dup()
        half.free()
        check_works(copy)
        check_works(pair)
        return copy.world_ranks
    assert pair is None
    return ()


def test_nested_communicators_outlive_their_parents() -> None:
    expected = [(4, 0), (5, 1), (), (), (4, 0), (5, 1)]
    assert local_world(6).run(lambda comm: nest(comm, None)) == expected
    assert run(6, nest) == expected


def test_split_in_processes() -> None:
    run(3, split_in_every_way)


MAKING = {
    "split": lambda comm, seconds: comm.split(0, timeout=seconds),
    "half of a split": lambda comm, seconds: comm.split(0, timeout=seconds),
    "dup": lambda comm, seconds: comm.dup(timeout=seconds),
    "group": lambda comm, seconds: comm.group([0, 1], timeout=seconds),
    "empty": lambda comm, seconds: comm.empty(3, timeout=seconds),
}


@pytest.mark.parametrize("hosts", [(0, 0, 0), (0, 0, 1)], ids=str)
@pytest.mark.parametrize("kind", MAKING)
@on_each_rank()
def test_making_one_takes_as_long_as_is_given(
    comm: Communicator, kind: str, hosts: tuple[int, ...], event: threading.Event
) -> None:
    assert MAKING[kind](comm, 60) is not None or kind == "group"
    if comm.rank == 2:
        if kind == "half of a split":  # its first part
            comm.backend.exchange(struct.pack("=?qq", True, 0, 0), "split")
        assert event.wait(60)
        return
    try:
        with pytest.raises(pycollective.TimeoutError, match=r"within 0\.\d+ s (by|from) rank 2"):
            MAKING[kind](comm, 0.3)
    finally:
        event.set()
    with pytest.raises(ValueError, match="timeout must be a number"):
        MAKING[kind](comm, -1)


@on_each_rank(2)
def test_names_and_numbers(comm: Communicator) -> None:
    part = comm.split(0, name="gradients")
    assert part.name == "gradients"
    assert repr(part) == f"<Communicator 'gradients': rank {comm.rank} of 2>"
    assert (comm.local_rank, comm.local_size, comm.cross_rank, comm.cross_size) == (comm.rank, 2, 0, 1)
    assert (part.local_rank, part.local_size, part.cross_rank, part.cross_size) == (comm.rank, 2, 0, 1)
    with pytest.raises(ValueError, match=r"gradients|not a rank"):
        part.broadcast(np.ones(2), 5)
    if comm.rank == 0:
        with pytest.raises(pycollective.TimeoutError, match="communicator 'gradients'"):
            part.barrier(timeout=0.1)
    comm.barrier()  # rank 1 keeps its part until then


def work_in_threads(comm: Communicator, link: Connection | None) -> None:
    """Several threads of each rank at once, each with its own communicator."""
    comms = [comm.dup() for _ in range(4)]

    def work(number: int) -> None:
        for turn in range(60):
            value = number + turn
            got = comms[number].allreduce(np.full(37 * turn % 3000 + 1, value))
            assert (got == comm.size * value).all()
            if turn % 7 == 0:
                comms[number].iallreduce(np.ones(500, int)).wait(5)

    assert on_threads([partial(work, number) for number in range(4)]) == [None] * 4


def test_threads_with_their_own_communicators() -> None:
    local_world(2).run(lambda comm: work_in_threads(comm, None))
    run(3, work_in_threads)


def share_one(comm: Communicator, link: Connection) -> None:
    """Calls from several threads of each rank: any order of them is valid."""

    def work(number: int) -> None:
        for turn in range(100):
            handle = comm.iallreduce(np.ones(500)) if (turn + number) % 5 == 0 else None
            got = comm.allreduce(np.ones(500)) if handle is None else handle.result(5)
            assert (got == comm.size).all()

    assert on_threads([partial(work, number) for number in range(3)]) == [None] * 3


def test_threads_of_one_rank() -> None:
    run(2, share_one, env={"PYCOLLECTIVE_TIMEOUT": "5"})


@on_each_rank(2)
def test_explain_sends_nothing(comm: Communicator) -> None:
    if comm.rank == 0:
        text = str(comm.explain("allreduce", 1 << 20))
        for word in ("direct", "zero-copy", "staged", "memory of this process"):
            assert word in text
        assert comm.explain("allreduce", 8, "ring").topology == "ring"
        with pytest.raises(pycollective.TopologyError, match="rong"):
            comm.explain("allreduce", 8, "rong")
        with pytest.raises((ValueError, pycollective.Error), match="allredcue"):
            comm.explain("allredcue", 8)
    comm.barrier()


# -- nothing is left -----------------------------------------------------------------------------------------------


def holdings() -> dict[str, int]:
    """Resources of this process: descriptors, our mappings, and resident memory in KiB."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": sum("pycollective" in line for line in maps),
        "resident": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024,
    }


def make_and_drop(comm: Communicator, rounds: int) -> None:
    for turn in range(rounds):
        made: list[Any] = [comm.dup(), comm.split(comm.rank % 2), comm.group([0, 1])]
        for one in made:
            if one is not None:
                window = place(one, np.ones(20_000), "window")
                one.allreduce(window, out=window)
                one.iallreduce(np.ones(3)).wait(20)
                if one.size > 1 and one.rank < 2:
                    one.isend(np.ones(3), 1 - one.rank)
                    one.recv(np.ones(3), 1 - one.rank)
                if turn % 2:
                    one.free()
        comm.barrier()


def count_holdings(comm: Communicator, link: Connection) -> tuple[dict[str, int], dict[str, int]]:
    make_and_drop(comm, 5)
    before = holdings()
    make_and_drop(comm, 40)
    return before, holdings()


def test_communicators_and_windows_leave_nothing() -> None:
    for before, after in run(3, count_holdings):
        assert after["descriptors"] <= before["descriptors"]
        assert after["mappings"] <= before["mappings"]
        assert after["resident"] < before["resident"] + 4096


def keep_many(comm: Communicator, link: Connection) -> int:
    kept = [comm.dup() for _ in range(5)]
    before = holdings()["descriptors"]
    kept += [comm.dup() for _ in range(20)]
    assert kept[-1].allreduce(np.ones(1))[0] == comm.size
    return holdings()["descriptors"] - before


def test_communicators_of_the_same_ranks_share_their_descriptors() -> None:
    assert run(3, keep_many) == [0, 0, 0]


def repeat_calls(comm: Communicator, link: Connection) -> tuple[dict[str, int], dict[str, int]]:
    """Always new sizes and spellings of operators and topologies: caches of calls are bounded."""

    def some(begin: int, end: int) -> None:
        for turn in range(begin, end):
            comm.allreduce(np.ones(turn % 7000 + 1), topology="wheel(hub=" + str(turn % 2) + ")")
            comm.iallreduce(np.ones(turn % 5000 + 1), op="".join(("m", "ax"))).wait(20)

    some(0, 2500)
    before = holdings()
    some(2500, 7500)
    return before, holdings()


def test_caches_of_new_calls_are_bounded() -> None:
    for before, after in run(2, repeat_calls):
        assert after["descriptors"] == before["descriptors"]
        assert after["mappings"] == before["mappings"]
        assert after["resident"] < before["resident"] + 16384


def threads_come_and_go() -> dict[str, int]:
    for _ in range(15):
        local_world(4).run(lambda comm: comm.dup().allreduce(comm.empty(100_000)))
    return holdings()


def test_worlds_of_threads_leave_nothing() -> None:
    before = threads_come_and_go()
    for _ in range(4):
        after = threads_come_and_go()
    assert after["descriptors"] <= before["descriptors"]
    assert after["resident"] < before["resident"] + 8192
