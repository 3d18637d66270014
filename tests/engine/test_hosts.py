"""The engine among ranks that share no memory: half of them have another host name."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.two_hosts import on_two_hosts

CASE = """
import random, threading
import pytest
from dataclasses import replace
from engine.operations import SECONDS, play, random_phases
from engine.negotiation.test_join import uneven
engine = Engine(comm)
n, me = engine.size, engine.rank

phases = random_phases(random.Random(3), phases=8, most=25)
phases = [[[replace(one, window=False) for one in group] for group in groups] for groups in phases]
play(engine, phases, 3)

xs = [np.random.default_rng(rank).normal(size=200_003).astype("f4") for rank in range(n)]
right = ((xs[0] + xs[1]) + xs[2]) + xs[3]  # the bits of one host, however operations are fused
parts = [slice(0, 5), slice(5, 1700), slice(1700, 90_000), slice(90_000, None)]
works = [engine.submit([Item("allreduce", f"part {i}", xs[me][part])])[0] for i, part in enumerate(parts)]
for work, part in zip(works, parts):
    assert work.wait(SECONDS).tobytes() == right[part].tobytes(), part

view = engine.run([Item("call", "view", run=lambda comm: comm.empty(len(right), np.float32))])[0]
for windows in (range(n), range(n), (1, 2), ()):  # the ranks whose array is in a window
    x = view if me in windows else np.empty_like(view)
    x[:] = xs[me]
    assert engine.run([Item("allreduce", "in place", x, x)])[0].tobytes() == right.tobytes(), windows

called = []
if me == 0:  # the other ranks do not submit it before the barrier
    late = engine.submit([Item("allreduce", "late", np.ones(5))])[0]
    with pytest.raises(pc.TimeoutError, match="'late' has not completed yet"):
        late.wait(0.01)
    late.flush()
    assert not late.test()
    late.when_done(lambda: called.append("first"))
    late.when_done(lambda: 1 / 0)  # logged; the callbacks after it are called all the same
    second_called = threading.Event()
    late.when_done(second_called.set)
    assert not called
engine.run([Item("barrier", "late is waited for")])
if me != 0:
    late = engine.submit([Item("allreduce", "late", np.ones(5))])[0]
assert late.wait(SECONDS).sum() == 5 * n and late.test()
if me == 0:
    assert second_called.wait(SECONDS) and called == ["first"], called
late.when_done(lambda: called.append("at once"))
assert called[-1] == "at once", called

engine.submit([Item("allreduce", "twice", np.ones(2))])
with pytest.raises(ValueError):
    engine.submit([Item("allreduce", "twice", np.ones(2))])
engine.run([Item("barrier", "all are here")])

assert uneven(engine, me + 1) == n - 1
assert uneven(engine, me + 1) == n - 1
got = engine.run([Item("adasum", "adasum", np.eye(n)[me])])[0]
assert np.allclose(got, 1), got

second = Engine(comm)
if me == 1:
    second.close()
else:
    with pytest.raises(pc.CommunicatorError, match="rank 1 "):
        second.join()
    second.close()

if me == 1:  # the other ranks do not submit this
    left = engine.submit([Item("allreduce", "lonely", np.ones(2))])[0]
engine.run([Item("barrier", "lonely is submitted")])
engine.close()
with pytest.raises(pc.CommunicatorError):
    engine.submit([Item("allreduce", "late", np.ones(2))])
if me == 1:
    with pytest.raises(pc.CommunicatorError):
        left.wait(SECONDS)
print("fine", flush=True)
"""


@pytest.mark.mpi
@pytest.mark.parametrize(("threshold", "capacity"), [("", ""), ("1000", "7")])
def test_two_hosts(tmp_path: Path, threshold: str, capacity: str) -> None:
    done = on_two_hosts(
        tmp_path, CASE, env={"HOROVOD_FUSION_THRESHOLD": threshold, "HOROVOD_CACHE_CAPACITY": capacity}
    ).check()
    assert list(done) == ["fine\n"] * 4


MISSING = """
engine = Engine(comm)
if comm.rank == 1:
    def refuse(*a): raise MemoryError("no room")
    engine._exchange._learn = refuse
items = [Item("allreduce", name, np.ones(3)) for name in "ab"]
for turn in range(2):
    try:
        engine.run(items)
    except pc.CommunicatorError as error:
        print("broken", "no room" in str(error))
engine.close()

engine = Engine(comm)
engine.run(items)
if comm.rank == 3:
    os.kill(os.getpid(), signal.SIGSTOP)
for turn in range(2):
    try:
        engine.run(items)
    except pc.TimeoutError as error:
        print("silent", "rank 3 has not answered" in str(error))
engine.close()
for turn in range(2):
    try:
        comm.allreduce(np.ones(3), timeout=0.2 if turn == 0 else 1000)
    except pc.TimeoutError as error:
        print("late", "allreduce" in str(error))
left = comm.shrink(2)
print("left", left.world_ranks, left.allreduce(np.ones(1))[0])
"""


@pytest.mark.mpi
def test_a_rank_that_stops(tmp_path: Path) -> None:
    """An error on one rank is reported to all; a silent rank is named after PYCOLLECTIVE_TIMEOUT; none hangs."""
    env = {"PYCOLLECTIVE_TIMEOUT": "1.5", "HOROVOD_STALL_CHECK_TIME_SECONDS": "0.5"}
    done = on_two_hosts(tmp_path, MISSING, env=env)
    assert done.returncode != 0
    assert "  rank 3 has not answered for" in done.stderr, done.report()
    assert done[3].startswith("broken True\n" * 2), done.report()  # mpirun wakes it up before it ends it
    expected = [*(f"{event} True" for event in ("broken", "silent", "late") for _ in range(2)), "left (0, 1, 2) 3.0"]
    for rank in range(3):
        assert done[rank].splitlines() == expected, done.report()


KILLED = """
import pytest
engine = Engine(comm)
part = comm.split(comm.rank % 2)
engine.run([Item("barrier", "all")])
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
for turn in range(2):
    with pytest.raises(pc.PeerLostError) as caught:
        engine.run([Item("allreduce", name, np.ones(3)) for name in "ab"])
    print("gone", caught.value.rank, "rank 1 (host" in str(caught.value))
engine.close()
with pytest.raises(pc.PeerLostError) as caught:
    comm.allreduce(np.ones(3))
print("gone", caught.value.rank)
try:
    print("others", part.allreduce(np.ones(1))[0])
except pc.PeerLostError as error:
    print("gone", error.rank)
left = comm.shrink()
engine = Engine(left)
total = engine.run([Item("allreduce", "rank", np.array([comm.rank]))])[0]
print("left", left.world_ranks, left.local_size, left.cross_size, total)
engine.close()
if left.rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    left.allreduce(np.ones(3))
except pc.PeerLostError as error:
    print("gone", error.rank)
last = left.shrink()
print("last", last.world_ranks, last.allreduce(np.ones(1)), last.explain("allreduce", 8).window)
"""


@pytest.mark.mpi
def test_ranks_that_are_killed(tmp_path: Path) -> None:
    """If MPI tolerates it, the others continue: mpirun --with-ft mpi. Otherwise mpirun ends the job."""
    env, options = {"PYCOLLECTIVE_TIMEOUT": "20"}, ("--with-ft", "mpi")
    done = on_two_hosts(tmp_path, KILLED, env=env, options=options, clock=False)
    reports, left = ["gone 1 True", "gone 1 True", "gone 1"], "left (0, 2, 3)"
    assert done[0].splitlines() == [*reports, "others 2.0", f"{left} 1 2 [5]"], done.report()
    assert done[1] == ""
    for rank, others, crossing in ((2, "others 2.0", 2), (3, "gone 0", 1)):
        *lines, last = done[rank].splitlines()
        assert lines == [*reports, others, f"{left} 2 {crossing} [5]", "gone 0"], done.report()
        assert last.startswith("last (2, 3) [2.] ") and "shared memory" in last, done.report()
