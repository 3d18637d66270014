"""Arrays of shared_arrays(): used in place by every communicator, private to forked children, freed, reused."""

from __future__ import annotations

import gc
import os
import pickle
import re
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calls import MOVING, REDUCING, call, on_each_rank
from processes import Job, all_say, run
from speed import until

import pycollective
from pycollective import Communicator, _core, local_world

COUNT = 40_000
LARGE = COUNT * 8


def shared(values: Any) -> Any:
    with pycollective.shared_arrays():
        return np.array(values)


def place_of(comm: Communicator, x: Any) -> str:
    return str(comm.backend.team.place_of(x))  # type: ignore[attr-defined]


def heaps() -> list[str]:
    """The mappings of heaps in this process, with their flags."""
    rows = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    large = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") // 1024
    size = re.compile(rf"^Size: +{large} kB$", re.MULTILINE)
    return [row for row in rows if "memfd:pycollective" in row and size.search(row)]


def until_mapped(comm: Communicator) -> None:
    """Two calls: in the first ranks name their memory, in the second all have mapped it."""
    x = shared(np.ones(COUNT))
    for _ in range(2):
        comm.allreduce(x, out=x)
        comm.barrier()
    assert place_of(comm, x) == "shared"


def equal_bits(comm: Communicator, _: Connection) -> None:
    until_mapped(comm)
    flags = [row.rpartition("VmFlags:")[2].split() for row in heaps()]
    assert len(flags) == comm.size
    assert all("dd" in each for each in flags), "a core dump would contain all that is not allocated"
    generator = np.random.default_rng(comm.rank)
    for collective in (*REDUCING, *MOVING):
        for count in (100, 9_000, COUNT):
            x = generator.standard_normal(count * comm.size).astype(np.float32)
            plain = call(comm, collective, x, 1)
            large = shared(np.resize(x, max(len(x), COUNT)))[: len(x)]
            assert place_of(comm, large) == "shared"
            with pycollective.shared_arrays():
                got = call(comm, collective, large, 1)
            assert large.tobytes() == x.tobytes()
            assert (plain is None) == (got is None)
            assert plain is None or plain.tobytes() == got.tobytes(), (collective, count)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_bits_are_those_of_plain_arrays(n: int) -> None:
    run(n, equal_bits)


def left_behind(comm: Communicator, link: Connection, fills: bool) -> list[float]:
    """The last rank is stopped in a handshake while the others, which need nothing of it, make many calls."""
    x, other = shared(np.ones(COUNT)), shared(np.ones(COUNT))
    until_mapped(comm)
    small = np.zeros(8)
    if comm.rank == 0:
        link.send("ready")
        assert link.recv() == "the last one is stopped"
    elif comm.rank == comm.size - 1:
        link.send("enters")
    x[:] = comm.rank
    comm.broadcast(np.full(COUNT, 7.0) if fills and comm.rank == 0 else x, 0, out=x, topology="ring")
    seen = [x[0]]
    for step in range(40):
        if step == 15:  # announced where the first call was
            other[:] = comm.rank + 100
            comm.broadcast(other, 0, out=other, topology="ring")
            seen.append(other[-1])
            continue
        if step == 12 and comm.rank == 0:
            link.send("has run ahead")
        small[:] = step if comm.rank == 0 else -1
        assert (comm.broadcast(small, 0, out=small, topology="ring") == step).all()
    return seen


@pytest.mark.parametrize("fills", [False, True])
def test_a_rank_that_is_stopped_in_a_handshake_finds_what_was_announced(fills: bool) -> None:
    with Job(4, left_behind, fills) as job:
        assert job.hear(0) == "ready"
        assert job.hear(3) == "enters"
        until(lambda: Path(f"/proc/{job.pid[3]}/stat").read_text().rpartition(")")[2].split()[0] == "S")
        job.kill(3, signal.SIGSTOP)
        job.link[0].send("the last one is stopped")
        assert job.hear(0) == "has run ahead"
        job.kill(3, signal.SIGCONT)
        assert job.results() == [[7.0 if fills else 0.0, 100.0]] * 4


def parts_of_the_world(comm: Communicator, _: Connection) -> None:
    x = shared(np.full(COUNT, comm.rank + 1.0))
    for part in (comm.dup(), comm.split(comm.rank // 2), comm):
        until_mapped(part)
        assert place_of(part, x) == "shared"
        assert part.allreduce(x)[-1] == sum(rank + 1.0 for rank in part.world_ranks)
        part.barrier()


def test_every_communicator_uses_the_same_arrays() -> None:
    run(4, parts_of_the_world)


def mixed(comm: Communicator, _: Connection) -> None:
    """Ranks whose arrays are elsewhere, in any order of calls, also while the memory is not mapped yet."""
    window = comm.empty(COUNT)
    places = [lambda: np.empty(COUNT), lambda: shared(np.empty(COUNT)), lambda: window]
    choice = np.random.default_rng(7)
    for step in range(60):
        kinds = choice.integers(0, len(places), comm.size) if step % 3 else [step // 3 % len(places)] * comm.size
        x = places[kinds[comm.rank]]()
        x[:] = np.arange(COUNT) * (comm.rank + 1 + step)
        total = sum(rank + 1 + step for rank in range(comm.size))
        root = step % comm.size
        assert (comm.allreduce(x, out=x if step % 2 else None) == np.arange(COUNT) * total).all()
        x[:] = comm.rank
        assert (comm.broadcast(x, root, out=x) == root).all()


@pytest.mark.parametrize("n", [2, 4])
def test_ranks_may_pass_arrays_of_any_place(n: int) -> None:
    run(n, mixed)


def only_one_rank(comm: Communicator, _: Connection) -> None:
    """A rank that shares is not waited for by the others, which may be many calls ahead."""
    x = shared(np.ones(COUNT)) if comm.rank == comm.size - 1 else np.ones(COUNT)
    for step in range(100):
        x[:] = step
        assert (comm.broadcast(x, 0, out=x, topology="ring") == step).all()
    assert place_of(comm, x) == "plain"


def test_one_rank_alone_shares_its_arrays() -> None:
    run(4, only_one_rank)


@on_each_rank(3)
def test_threads_share_the_memory_of_their_process(comm: Communicator) -> None:
    until_mapped(comm)
    assert comm.allreduce(shared(np.ones(COUNT)))[0] == comm.size


def test_only_new_large_arrays_of_the_block_are_shared() -> None:
    def address(x: Any) -> int:
        return int(x.__array_interface__["data"][0])

    before = np.ones(COUNT)
    with pycollective.shared_arrays():
        inside, small = np.ones(COUNT), np.ones(100)
        elsewhere: list[Any] = []
        thread = threading.Thread(target=lambda: elsewhere.append(np.ones(COUNT)))
        thread.start()
        thread.join()
        with pycollective.shared_arrays():
            pass
        nested = np.zeros(COUNT)
    after = np.ones(COUNT)
    assert [_core.is_in_heap(address(x)) for x in (inside, nested)] == [True, True]
    assert not any(_core.is_in_heap(address(x)) for x in (before, small, elsewhere[0], after))
    assert not nested.any()


def test_memory_is_freed_reused_and_zero_where_numpy_says_so() -> None:
    gc.collect()
    used = _core.heap_bytes()[0]
    choice = np.random.default_rng(3)
    kept: dict[int, Any] = {}
    with pycollective.shared_arrays():
        for step in range(10_000):
            at = int(choice.integers(0, 20))
            kept.pop(at, None)
            count = int(choice.integers(64 << 10, 600 << 10))
            kept[at] = x = np.zeros(count, np.uint8) if step % 2 else np.empty(count, np.uint8)
            assert step % 2 == 0 or not x.any()
            x[:: 1 << 12] = at + 1
            x[-1] = at + 1
    for at, x in kept.items():
        assert x[-1] == at + 1
        assert (x[:: 1 << 12] == at + 1).all()
    in_use, taken = _core.heap_bytes()
    assert in_use - used >= sum(x.nbytes for x in kept.values())
    assert taken < in_use * 2 + (80 << 20)
    kept.clear()
    x = None
    assert _core.heap_bytes()[0] == used


def test_arrays_are_resized_viewed_and_pickled_like_others() -> None:
    x = shared(np.arange(COUNT))
    with pycollective.shared_arrays():
        for count in (3 * COUNT, 10, 2 * COUNT):
            kept = x[: min(len(x), count)].copy()
            x.resize(count, refcheck=False)
            assert (x[: len(kept)] == kept).all()
    assert (pickle.loads(pickle.dumps(x)) == x).all()
    view = x[5:]
    del x
    assert view[0] == 5


def in_a_child(act: Callable[[], object]) -> None:
    """In a forked process, which then ends."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_a_child_has_its_own_copy() -> None:
    """What either process writes after the fork stays its own, and the child allocates and frees without harm."""
    x, y = shared(np.ones(COUNT)), shared(np.ones(COUNT))

    def act() -> None:
        nonlocal y
        x[:] = 2
        assert (x == 2).all() and (y == 1).all()
        del y
        assert shared(np.full(COUNT, 3.0))[0] == 3

    in_a_child(act)
    assert (x == 1).all()
    used = _core.heap_bytes()[0]
    del y
    assert _core.heap_bytes()[0] < used


def survivors(comm: Communicator, link: Connection) -> int:
    x = shared(np.ones(COUNT))
    until_mapped(comm)
    link.send("ready")
    try:
        while True:
            comm.allreduce(x, out=x, topology="ring")
            x[:] = 1
    except pycollective.Error:
        pass
    gc.collect()
    used = _core.heap_bytes()[0]
    for _ in range(5):  # calls that fail at once keep nothing
        with pytest.raises(pycollective.Error):
            comm.allreduce(shared(np.ones(COUNT)))
    assert _core.heap_bytes()[0] == used
    address, freed = x.__array_interface__["data"][0], x.nbytes
    del x  # a peer that was stopped may still write there
    others = [shared(np.zeros(freed // 8)) for _ in range(50)]
    assert address not in [other.__array_interface__["data"][0] for other in others]
    left = comm.shrink()
    until_mapped(left)
    before = len(heaps())
    comm.free()
    assert len(heaps()) == before - 1, "the memory of the rank that was killed"
    return left.size


def test_a_killed_rank_leaves_nothing_behind_and_its_survivors_share_again() -> None:
    with Job(3, survivors) as job:
        all_say(job, "ready")
        job.kill(1)
        outcomes = job.outcomes()
        assert [outcomes[rank].value for rank in (0, 2)] == [2, 2], outcomes


def test_a_world_of_threads_after_a_fork() -> None:
    """The memory of a parent is not the child's to share: its calls stage what is there."""
    x = shared(np.ones(COUNT))

    def act() -> None:
        assert local_world(2).run(lambda comm: comm.allreduce(x)[0]) == [2.0, 2.0]

    in_a_child(act)
