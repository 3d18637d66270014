"""Arrays of `comm.empty` on virtual hosts: used in place within each host, with the bits of plain arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calls import MOVING, REDUCING, call, expected, has, on_each_rank, place
from speed import until

import pycollective as pc
from comm.hosts.test_virtual_hosts import HOSTS, on_hosts
from pycollective import Communicator, _core, local_world
from pycollective.comm.planner import Planner

TWO_HOSTS = (0, 0, 1, 1)
LARGE = _core.ALWAYS_STAGED_BETWEEN_HOSTS // 4 + 8
"""Elements of 4 bytes: more than is always staged, in a few tiles, and divisible by up to 8."""


def filled(comm: Communicator, x: Any) -> Any:
    """A copy in a window."""
    return place(comm, x, "window")


@pytest.fixture
def placements(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The placements that the ranks have planned."""
    seen: set[int] = set()
    plan = Planner.__call__

    def planned(self: Planner, *arguments: Any) -> Any:
        seen.add(arguments[4])
        return plan(self, *arguments)

    monkeypatch.setattr(Planner, "__call__", planned)
    return seen


@pytest.mark.parametrize("hosts", HOSTS, ids=str)
@pytest.mark.parametrize("topology", ["ordered", "ring", "tree", "halving_doubling", "star"])
def test_every_collective_in_every_placement(hosts: tuple[int, ...], topology: str, placements: set[int]) -> None:
    n = len(hosts)
    cases = [
        (name, shared_in, shared_out)
        for name in (*REDUCING, *MOVING, "scan")
        if has(topology, name)
        for shared_in, shared_out in itertools.product((False, True), repeat=2)
    ]
    xs = np.arange(n * LARGE, dtype="i4").reshape(n, LARGE) % 1013

    def run(comm: Communicator) -> None:
        for name, shared_in, shared_out in cases:
            plain = call(comm, name, xs[comm.rank].copy(), n - 1, topology=topology)
            if name != "scan":
                right = expected(name, xs, n - 1, comm.rank)
                assert (plain is None) == (right is None)
                assert plain is None or plain.tobytes() == np.asarray(right).tobytes(), name
            whole = comm.empty(n * LARGE, "i4")
            out = None if plain is None else (whole if shared_out else np.empty_like(whole))[: plain.size]
            x = place(comm, xs[comm.rank], "window" if shared_in else "plain")
            got = call(comm, name, x, n - 1, out=out, topology=topology)
            assert x.tobytes() == xs[comm.rank].tobytes()
            assert plain is None or got.tobytes() == plain.tobytes(), (name, shared_in, shared_out)
            if name in ("allreduce", "scan") and shared_in:
                assert call(comm, name, x, out=x, topology=topology).tobytes() == plain.tobytes()

    on_hosts(hosts, run)
    assert placements == {0, 1, 2, 3, 7}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64"])
@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 0), (0, 0, 1, 2, 2)], ids=str)
def test_the_default_has_the_bits_of_one_host(hosts: tuple[int, ...], dtype: str) -> None:
    def run(comm: Communicator) -> list[bytes]:
        kind = pc.comm.arguments.arrays.numpy_dtype(dtype)
        x = filled(comm, np.random.default_rng(comm.rank).standard_normal(200_003).astype(kind))
        out = comm.empty(x.shape, kind)
        found = [comm.allreduce(x, op="avg", out=out).tobytes(), comm.allreduce(x, prescale=0.3, out=out).tobytes()]
        return [*found, comm.scan(x, out=out).tobytes(), comm.allreduce(x, out=x).tobytes()]

    assert on_hosts(hosts, run) == local_world(len(hosts)).run(run)


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 2)], ids=str)
@on_each_rank()
def test_ranks_may_place_their_arrays_differently(comm: Communicator, hosts: tuple[int, ...]) -> None:
    """Also if only a rank of another host does, and again when all agree."""
    data = np.random.default_rng(comm.rank).standard_normal(LARGE).astype("f4")
    right = comm.allreduce(data).tobytes()
    for odd in (*range(comm.size), -1):
        x, out = filled(comm, data), comm.empty(LARGE, "f4")
        mine = data if comm.rank == odd else x
        assert comm.allreduce(mine, out=out).tobytes() == right
        assert comm.allreduce(x, out=None if comm.rank == odd else out).tobytes() == right
        assert comm.allreduce(x, out=np.empty_like(out) if comm.rank == odd else x).tobytes() == right


@pytest.mark.parametrize("root", range(3))
@on_each_rank(hosts=(0, 0, 1))
def test_a_broadcast_fills_the_root_s_window(comm: Communicator, root: int) -> None:
    for odd in (-1, *range(comm.size)):
        x, out = np.full(LARGE, comm.rank + 1.0, "f4"), filled(comm, np.zeros(LARGE, "f4"))
        comm.broadcast(x, root=root, out=np.zeros(LARGE, "f4") if comm.rank == odd else out)
        assert (out == (0 if comm.rank == odd else root + 1)).all()


@on_each_rank(hosts=TWO_HOSTS)
def test_nonblocking_calls_keep_their_order(comm: Communicator) -> None:
    windows = [filled(comm, np.full(LARGE, i + comm.rank, "f4")) for i in range(4)]
    handles = []
    for x in windows:
        handles += [comm.iallreduce(x, out=x), comm.iallreduce(np.full(10, comm.rank))]
    handles.append(comm.ibroadcast(windows[0], root=3))
    comm.allreduce(np.ones(3))
    for handle in handles:
        handle.wait()
    for i, x in enumerate(windows):
        assert (x == 4 * i + 6).all()


@on_each_rank(hosts=TWO_HOSTS)
def test_windows_that_are_dropped_and_those_of_other_communicators(comm: Communicator) -> None:
    x = filled(comm, np.full(LARGE, 1.0, "f4"))
    for part in (comm.split(comm.rank % 2), comm.split(comm.rank // 2)):  # no window of theirs
        assert (part.allreduce(x) == 2).all()
        y = filled(part, x)
        assert (part.allreduce(y, out=y) == 2).all()
        assert (comm.allreduce(y) == 8).all()  # no window of comm
    for turn in range(3):
        other = filled(comm, np.full(LARGE, turn, "f4"))
        if comm.rank == turn:
            other = np.full(LARGE, turn, "f4")  # drops the window
        assert (comm.allreduce(other) == 4 * turn).all()
        assert (comm.allreduce(x) == 4).all()


@on_each_rank(hosts=TWO_HOSTS)
def test_mix_stays_staged(comm: Communicator) -> None:
    """Hosts that share no edge do not wait for each other."""
    x = filled(comm, np.full(LARGE, comm.rank, "f4"))
    comm.mix(x, lambda rank, size, step: {rank: 0.5, rank ^ 1: 0.5}, 0, x)
    assert (x == comm.rank // 2 * 2 + 0.5).all()


@pytest.fixture(params=["short", "window"])
def make(request: pytest.FixtureRequest) -> Callable[[Communicator], Any]:
    """Makes what ranks reduce: a few elements of their own, which travel at once, or many in a window."""
    if request.param == "short":
        return lambda comm: np.ones(3, "f4")
    return lambda comm: filled(comm, np.ones(LARGE, "f4"))


@pytest.mark.parametrize("odd", range(4))
@pytest.mark.parametrize("different", ["length", "call"])
@on_each_rank(hosts=TWO_HOSTS)
def test_a_rank_that_calls_something_else_is_named_on_all(
    comm: Communicator, odd: int, different: str, make: Callable[[Communicator], Any]
) -> None:
    with pytest.raises(pc.MismatchError) as caught:  # the others may still be in comm.empty, a collective call
        x = make(comm)
        if comm.rank == odd and different == "call":
            comm.allgather(np.ones(3))
        comm.allreduce(x[: x.size - (comm.rank == odd)], timeout=20)
        for _ in range(20):
            comm.barrier(timeout=20)
    assert f"rank {odd} calls" in str(caught.value) and "allreduce(count=" in str(caught.value)


@pytest.mark.parametrize("hosts", [TWO_HOSTS, (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("late", range(4))
@on_each_rank()
def test_a_rank_that_does_not_call_is_named(
    comm: Communicator, hosts: tuple[int, ...], late: int, make: Callable[[Communicator], Any]
) -> None:
    x = make(comm)
    comm.allreduce(x, out=x)
    if comm.rank == late:
        until(lambda: comm.backend.team.poisoned)
        return
    with pytest.raises(pc.TimeoutError, match=f"rank {late}"):
        comm.allreduce(x, out=x, timeout=0.5)


@pytest.mark.parametrize("lost", range(4))
@on_each_rank(hosts=TWO_HOSTS)
def test_a_rank_that_ends_is_named(comm: Communicator, lost: int, make: Callable[[Communicator], Any]) -> None:
    x = make(comm)
    if comm.rank == lost:
        comm.allreduce(x, out=x)
        comm.free()
        return
    with pytest.raises(pc.PeerLostError, match=f"rank {lost}"):  # the others may still be in the first call
        for _ in range(2):
            comm.allreduce(x, out=x, timeout=20)


def test_torch_tensors_and_explain() -> None:
    torch = pytest.importorskip("torch")

    def run(comm: Communicator) -> None:
        x = torch.from_numpy(comm.empty(LARGE, "f4")).fill_(comm.rank)
        assert (comm.allreduce(x, out=x) == 6).all()
        text = comm.explain("allreduce", 4 * LARGE)
        assert text.window.startswith("in place within a host") and text.plain.startswith("staged"), text
        staged = {("allreduce", 9000): "bytes an extra copy costs less", ("gather", 1 << 20): "gather is always staged"}
        for (name, nbytes), why in staged.items():
            other = comm.explain(name, nbytes)
            assert other.window == other.plain and why in other.reason, other

    on_hosts(TWO_HOSTS, run)
