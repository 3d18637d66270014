"""Calls across hosts, with ranks as threads on virtual hosts: the results, bits and errors of one host."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from calls import MOVING, REDUCING, call, expected, has, on_each_rank
from fuzz.sequences import play, random_steps
from reference import DTYPES, OPERATORS, Array, contributions, same_bits, takes

import pycollective as pc
from comm.test_communicators import split_in_every_way
from pycollective import Communicator, local_world, topology
from pycollective.comm.host import local_world as local_worlds
from pycollective.comm.hosts.team import _own_cores as own_cores
from pycollective.schedule import Program
from pycollective.schedule.language import registry

HOSTS = [(0, 1), (0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 2), (0, 0, 0, 1), (0, 0, 1, 1, 2, 2, 2, 3)]
MORE_HOSTS = [
    (0, 1, 1), (0, 0, 1, 1, 1), (0, 1, 2, 2), (0, 0, 1, 1, 2, 2), (0, 1, 2, 0, 1, 2), (0, 1, 2, 3),
    (0, 0, 0, 0, 1, 1, 1, 1), (0, 1, 0, 1, 0, 1, 0, 1), (0, 0, 1, 1, 2, 2, 3, 3),
]  # fmt: skip
"""With HOSTS: two to four hosts, equal and unequal, one rank a host, up to eight ranks, in blocks and interleaved."""
PACKAGED = [row.name for row in registry.describe()]


def on_hosts(hosts: Sequence[int], function: Any) -> list[Any]:
    return local_world(len(hosts), hosts=hosts).run(function)


@pytest.mark.parametrize("hosts", [*HOSTS, *MORE_HOSTS], ids=str)
@pytest.mark.parametrize("topology", PACKAGED)
@on_each_rank()
def test_every_collective(comm: Communicator, hosts: tuple[int, ...], topology: str) -> None:
    n, rank = comm.size, comm.rank
    cases = [
        (name, count * n, (count + n - 1) % n)
        for name in (*REDUCING, *MOVING, "scan", "exscan")
        if has(topology, name)
        for count in ((0, 1, 5, 9000) if hosts in HOSTS else (1, 3000))
    ]
    data = {count: np.arange(n * count, dtype="i8").reshape(n, count) % 1013 for _, count, _ in cases}

    def make(name: str, count: int, root: int) -> Any:
        return call(comm, name, data[count][rank].copy(), root, topology=topology, timeout=20)

    results = [make(*case) for case in cases]
    handles = [make(f"i{name}", count, root) for name, count, root in cases]
    results += [handle.result(20) for handle in handles]
    for (name, count, root), got in zip([*cases, *cases], results, strict=True):
        if name == "exscan" and rank == 0:
            continue  # nothing comes before it
        if "scan" in name:
            right = data[count][: rank + (name == "scan")].sum(0)
        else:
            right = expected(name, data[count], root, rank)
        assert (got is None) == (right is None), (name, count, rank)
        assert right is None or np.array_equal(got, right), (name, count, rank)


@pytest.mark.parametrize("hosts", [*HOSTS, *MORE_HOSTS], ids=str)
@on_each_rank()
def test_averages_with_neighbours(comm: Communicator, hosts: tuple[int, ...]) -> None:
    n, me = comm.size, comm.rank
    for shift in range(1, n):
        got = comm.mix(np.full(9000, me, "f8"), lambda r, size, step, s=shift: {r: 0.5, (r + s) % size: 0.5}, shift)
        assert (got == (me + (me + shift) % n) / 2).all()


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 1, 2, 2, 2), (0, 0, 1, 1, 2, 2), (0, 1, 0, 1)], ids=str)
def test_topologies_of_users_and_pairs_of_topologies(hosts: tuple[int, ...]) -> None:
    @topology("by_the_last")
    class ByTheLast:
        def allreduce(self, p: Program) -> None:
            for c in p.chunks(2):
                for ranks in p.hosts:
                    p[ranks[-1], c] = p.sum(p[rank, c] for rank in ranks)
                lasts = [ranks[-1] for ranks in p.hosts]
                p[lasts[0], c] = p.sum(p[rank, c] for rank in lasts)
                p[range(p.size), c] = p[lasts[0], c]

    pairs = itertools.product(["direct", "ring", "tree", "halving_doubling", "star"], repeat=2)
    names = ["by_the_last", ByTheLast(), *(f"hierarchical(inner={i!r}, outer={o!r})" for i, o in pairs)]

    def run(comm: Communicator) -> None:
        for name, count in itertools.product(names, (7, 30_000)):
            x = np.arange(count, dtype="i8") * (comm.rank + 1)
            total = np.arange(count) * sum(range(1, comm.size + 1))
            assert np.array_equal(comm.allreduce(x, topology=name, timeout=20), total), name

    on_hosts(hosts, run)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 0), (0, 0, 1, 2, 2), (0, 1, 1, 2, 3, 3)], ids=str)
def test_the_default_has_the_bits_of_one_host(hosts: tuple[int, ...], dtype: str) -> None:
    n = len(hosts)
    scales = [{}, {"prescale": 0.7}, {"postscale": 1.3}] if dtype != "bool" else [{}]
    cases = [
        (name, op, count, scale if op in ("sum", "avg") else {})
        for name in (*REDUCING, "scan", "exscan")
        for op in OPERATORS
        if takes(op, dtype) and not (op == "avg" and "scan" in name)
        for count, scale in zip((n, 700 * n, 20_000), itertools.cycle(scales), strict=False)
    ]
    data = {(op, count): contributions(dtype, op, n, count) for _, op, count, _ in cases}

    def run(comm: Communicator) -> list[Array | None]:
        with np.errstate(all="ignore"):
            return [
                call(comm, name, data[op, count][comm.rank], root=n - 1, op=op, **scale)
                for name, op, count, scale in cases
            ]

    here, across = local_world(n).run(run), on_hosts(hosts, run)
    for rank, number in itertools.product(range(n), range(len(cases))):
        one, other = here[rank][number], across[rank][number]
        assert (one is None) == (other is None), (rank, cases[number])
        assert one is None or same_bits(one, other), (rank, cases[number])


@pytest.mark.parametrize("hosts", HOSTS, ids=str)
@on_each_rank()
def test_random_sequences_of_calls(comm: Communicator, hosts: tuple[int, ...]) -> None:
    play(comm, random_steps(len(hosts), 60))


def test_large_arrays_in_many_tiles() -> None:
    def run(comm: Communicator) -> list[bytes]:
        x = np.random.default_rng(comm.rank).standard_normal(1_500_001).astype("f4")
        return [comm.allreduce(x, topology=name).tobytes() for name in ("ordered", "ring", "tree")]

    here, across = local_world(4).run(run), on_hosts((0, 0, 1, 1), run)
    assert across[0][0] == here[0][0]
    assert across.count(across[0]) == 4


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 2, 3), (0, 1, 0, 1)], ids=str)
@on_each_rank()
def test_communicators_of_some_ranks(comm: Communicator, hosts: tuple[int, ...]) -> None:
    split_in_every_way(comm, None)
    assert (comm.split(0 if comm.rank == 3 else None) is None) == (comm.rank != 3)
    comm.barrier()


@on_each_rank(hosts=(0, 0, 1, 1))
def test_messages_both_ways_at_once_and_sends_before_receives(comm: Communicator) -> None:
    peer = comm.rank ^ 2
    for _ in range(3):  # a small message is sent although nobody receives yet
        comm.send(np.full(100, comm.rank), peer)
    large = comm.isend(np.full(700_000, float(comm.rank)), peer)
    for count in (100, 100, 100, 700_000):
        assert (comm.recv(np.empty(count, int if count == 100 else float), peer) == peer).all()
    large.wait()


def test_sizes_and_hosts_are_checked() -> None:
    with pytest.raises(ValueError, match="size must be an integer from 1 to"):
        local_world(0)
    with pytest.raises(ValueError, match="one number for each of 3 ranks, not 2"):
        local_world(3, hosts=(0, 1))
    assert local_world(2, hosts=(7, 7)).run(lambda comm: comm.local_size) == [2, 2]
    uneven = local_world(3, hosts=(5, 2, 5)).run(lambda comm: (comm.local_size, comm.cross_rank))
    assert uneven == [(2, 0), (1, 1), (2, 0)]


def _first_error(comm: Communicator, call: Callable[[], object]) -> str:
    """Error of a call that differs between ranks, or of this rank's next ones."""
    with pytest.raises(pc.MismatchError) as caught:
        call()
        for _ in range(20):  # a rank that has completed the call is told in a later one
            comm.barrier(timeout=20)
    return str(caught.value)


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@on_each_rank(hosts=(0, 1))
def test_ranks_that_each_only_send_or_only_wait_are_told(comm: Communicator, collective: str) -> None:
    """Each of two roots sends in its own call, and meets the other's message in the next; or both wait."""
    text = _first_error(comm, lambda: call(comm, collective, np.ones(3), comm.rank))
    assert "root=0" in text and "root=1" in text, text


def _within_hosts(weight: float) -> Callable[[int, int, int], dict[int, float]]:
    """A graph whose edges connect ranks 0 and 1, and ranks 2 and 3."""
    return lambda rank, size, step: {rank: 1 - weight, rank ^ 1: weight}


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 0, 1, 2), (0, 1, 0, 1), (0, 1, 2, 3)])
@pytest.mark.parametrize("differs", ["weights", "step", "length", "call"])
@on_each_rank()
def test_ranks_without_an_edge_between_their_hosts_compare_their_calls(
    comm: Communicator, hosts: tuple[int, ...], differs: str
) -> None:
    what = differs if comm.rank >= 2 else ""

    def call() -> None:
        for _ in range(30):
            comm.mix(np.ones(3), _within_hosts(0.5), 1)
        if what == "call":
            comm.allreduce(np.ones(3))
        else:
            graph = _within_hosts(0.25 if what == "weights" else 0.5)
            comm.mix(np.ones(4 if what == "length" else 3), graph, 2 if what == "step" else 1)

    text = _first_error(comm, call)
    found = {"call": "allreduce(count=3", "length": "mix(count=4", "step": "step=2", "weights": "edges"}[differs]
    assert "call 31 " in text and "mix(count=3" in text and found in text, text


@on_each_rank(hosts=(0, 1, 2))
def test_a_rank_that_receives_nothing_hears_of_a_different_call(comm: Communicator, event: threading.Event) -> None:
    """Rank 0 has sent its part of a sum and gone on; rank 1 only sends, and its peer of those calls agrees with it."""
    comm.barrier()
    if comm.rank == 0:
        comm.reduce(np.ones(1), 1, topology="direct")
        event.set()
        return
    assert event.wait(20)
    text = _first_error(comm, lambda: [comm.broadcast(np.ones(1), 1, topology="ring") for _ in range(30)])
    assert "call 2 " in text and "rank 0 calls reduce(" in text and "rank 1 calls broadcast(" in text


@pytest.mark.parametrize("slow", range(4))
@on_each_rank(hosts=(0, 0, 1, 1))
def test_a_host_may_be_many_calls_ahead_if_no_edge_leads_to_it(comm: Communicator, slow: int) -> None:
    x = np.full(100, float(comm.rank))
    for step in range(3000):
        comm.mix(x, _within_hosts(0.5), step, x)
        if comm.rank == slow and step % 500 == 0:
            time.sleep(0.01)
    assert comm.allreduce(x).sum() == 600


@pytest.mark.parametrize("cores", [2, 4])
@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 2, 2)], ids=str)
def test_short_allreduces_use_few_messages_where_ranks_share_cores(
    hosts: tuple[int, ...], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_worlds, "usable_cores", lambda: frozenset(range(cores)))

    def run(comm: Communicator) -> list[str]:
        calls = [("allreduce", 1 << 17), ("allreduce", (1 << 17) + 4), ("barrier", 0), ("broadcast", 8)]
        return [comm.explain(*each).topology for each in calls]

    few = cores < len(hosts) and len(set(hosts)) > 2
    otherwise = "ordered(one_in=4)"
    wanted = ["star" if few else "ordered", "ordered", "star" if few else otherwise, otherwise]
    assert on_hosts(hosts, run) == [wanted] * len(hosts)


def test_cores_are_counted_by_machine_and_their_limit_by_host() -> None:
    def rank(machine: str, quota: float | None = None) -> dict[str, Any]:
        return {"machine": machine, "cores": [0, 1], "quota": quota}

    on_two = [rank("a"), rank("a"), rank("b"), rank("b")]
    assert own_cores(on_two, [0, 0, 1, 1]) == {"a": True, "b": True}
    assert own_cores([*on_two, rank("b")], [0, 0, 1, 1, 1]) == {"a": True, "b": False}
    containers = [rank("a", 1.0), rank("a", 1.0)]
    assert own_cores(containers, [0, 1]) == {"a": True}
    assert own_cores(containers, [0, 0]) == {"a": False}
