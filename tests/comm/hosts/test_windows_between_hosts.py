"""Arrays of `comm.empty` on virtual hosts: used in place within each host, with the bits of plain arrays."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calls import MOVING, REDUCING, call, expected, has

import pycollective as pc
from comm.hosts.test_virtual_hosts import HOSTS, on_hosts
from pycollective import Communicator, _core, local_world
from pycollective.comm.planner import Planner

LARGE = _core.ALWAYS_STAGED_BETWEEN_HOSTS // 4 + 8
"""Elements of 4 bytes: more than is always staged, in a few tiles, and divisible by up to 8."""


def filled(comm: Communicator, x: Any) -> Any:
    """A copy in a window."""
    window = comm.empty(x.shape, x.dtype)
    window[...] = x
    return window


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
            x = filled(comm, xs[comm.rank]) if shared_in else xs[comm.rank].copy()
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
def test_ranks_may_place_their_arrays_differently(hosts: tuple[int, ...]) -> None:
    """Also if only a rank of another host does, and again when all agree."""

    def run(comm: Communicator) -> None:
        data = np.random.default_rng(comm.rank).standard_normal(LARGE).astype("f4")
        right = comm.allreduce(data).tobytes()
        for odd in (*range(comm.size), -1):
            x, out = filled(comm, data), comm.empty(LARGE, "f4")
            mine = data if comm.rank == odd else x
            assert comm.allreduce(mine, out=out).tobytes() == right
            assert comm.allreduce(x, out=None if comm.rank == odd else out).tobytes() == right
            assert comm.allreduce(x, out=np.empty_like(out) if comm.rank == odd else x).tobytes() == right

    on_hosts(hosts, run)


@pytest.mark.parametrize("root", range(3))
def test_a_broadcast_fills_the_root_s_window(root: int) -> None:
    def run(comm: Communicator) -> None:
        for odd in (-1, *range(comm.size)):
            x, out = np.full(LARGE, comm.rank + 1.0, "f4"), comm.empty(LARGE, "f4")
            out[:] = 0
            comm.broadcast(x, root=root, out=np.zeros(LARGE, "f4") if comm.rank == odd else out)
            assert (out == (0 if comm.rank == odd else root + 1)).all()

    on_hosts((0, 0, 1), run)


def test_nonblocking_calls_keep_their_order() -> None:
    def run(comm: Communicator) -> None:
        windows = [filled(comm, np.full(LARGE, i + comm.rank, "f4")) for i in range(4)]
        handles = []
        for x in windows:
            handles.append(comm.iallreduce(x, out=x))
            handles.append(comm.iallreduce(np.full(10, comm.rank)))
        handles.append(comm.ibroadcast(windows[0], root=3))
        comm.allreduce(np.ones(3))
        for handle in handles:
            handle.wait()
        for i, x in enumerate(windows):
            assert (x == 4 * i + 6).all()

    on_hosts((0, 0, 1, 1), run)


def test_windows_that_are_dropped_and_those_of_other_communicators() -> None:
    def run(comm: Communicator) -> None:
        x = filled(comm, np.full(LARGE, 1.0, "f4"))
        half, pair = comm.split(comm.rank % 2), comm.split(comm.rank // 2)
        assert half is not None and pair is not None
        for part in (half, pair):  # no window of theirs
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

    on_hosts((0, 0, 1, 1), run)


def test_mix_stays_staged() -> None:
    """Hosts that share no edge do not wait for each other."""

    def run(comm: Communicator) -> None:
        x = filled(comm, np.full(LARGE, comm.rank, "f4"))
        comm.mix(x, lambda rank, size, step: {rank: 0.5, rank ^ 1: 0.5}, 0, x)
        assert (x == comm.rank // 2 * 2 + 0.5).all()

    on_hosts((0, 0, 1, 1), run)


@pytest.fixture(params=["short", "window"])
def make(request: pytest.FixtureRequest) -> Callable[[Communicator], Any]:
    """Makes what ranks reduce: a few elements of their own, which travel at once, or many in a window."""
    if request.param == "short":
        return lambda comm: np.ones(3, "f4")
    return lambda comm: filled(comm, np.ones(LARGE, "f4"))


@pytest.mark.parametrize("odd", range(4))
@pytest.mark.parametrize("different", ["length", "call"])
def test_a_rank_that_calls_something_else_is_named_on_all(
    odd: int, different: str, make: Callable[[Communicator], Any]
) -> None:
    def run(comm: Communicator) -> str:
        with pytest.raises(pc.MismatchError) as caught:  # the others may still be in comm.empty, a collective call
            x = make(comm)
            if comm.rank == odd and different == "call":
                comm.allgather(np.ones(3))
            comm.allreduce(x[: x.size - (comm.rank == odd)], timeout=20)
            for _ in range(20):
                comm.barrier(timeout=20)
        return str(caught.value)

    texts = on_hosts((0, 0, 1, 1), run)
    assert all(f"rank {odd} calls" in text and "allreduce(count=" in text for text in texts), texts


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("late", range(4))
def test_a_rank_that_does_not_call_is_named(
    hosts: tuple[int, ...], late: int, make: Callable[[Communicator], Any]
) -> None:
    def run(comm: Communicator) -> str:
        x = make(comm)
        comm.allreduce(x, out=x)
        if comm.rank == late:
            while not comm.backend.team.poisoned:
                time.sleep(0.01)
            return f"rank {late}"
        with pytest.raises(pc.TimeoutError) as caught:
            comm.allreduce(x, out=x, timeout=0.5)
        return str(caught.value)

    texts = on_hosts(hosts, run)
    assert all(f"rank {late}" in text for text in texts), texts


@pytest.mark.parametrize("lost", range(4))
def test_a_rank_that_ends_is_named(lost: int, make: Callable[[Communicator], Any]) -> None:
    def run(comm: Communicator) -> str:
        x = make(comm)
        if comm.rank == lost:
            comm.allreduce(x, out=x)
            comm.free()
            return f"rank {lost}"
        with pytest.raises(pc.PeerLostError) as caught:  # the others may still be in the first call
            for _ in range(2):
                comm.allreduce(x, out=x, timeout=20)
        return str(caught.value)

    texts = on_hosts((0, 0, 1, 1), run)
    assert all(f"rank {lost}" in text for text in texts), texts


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

    on_hosts((0, 0, 1, 1), run)
