"""Schedules that one process compiles for all: who compiles, and what happens if it fails, ends or stops."""

from __future__ import annotations

import gc
import signal
import threading
import time
from array import array
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from processes import Job, run

from comm.host.test_peer_death import check
from pycollective import Communicator, MismatchError, TimeoutError, VerificationError, _core, local_world
from pycollective.comm import planner
from pycollective.comm.host import segments, shared_tables
from pycollective.comm.host.core_team import SHARING_RANKS
from pycollective.schedule import Placement, Program, get, topology

N = SHARING_RANKS
X = np.arange(20000.0)
OWN = ("ring", "tree", "wheel", "halving_doubling", "star")


def replace_compiler(compiler: Callable[..., Any]) -> None:
    """In this process."""
    vars(planner)["schedule_for"] = vars(shared_tables)["schedule_for"] = compiler


def compilations(comm: Communicator, link: Connection) -> tuple[set[str], int, int]:
    compiled, original = [], planner.schedule_for

    def recording(key: planner.ScheduleKey) -> Any:
        compiled.append(type(key.topology).__name__)
        return original(key)

    replace_compiler(recording)
    for name in OWN:
        np.testing.assert_array_equal(comm.allreduce(X, topology=name), N * X)
    comm.barrier()
    np.testing.assert_array_equal(comm.allreduce(X[:5], topology="tree"), N * X[:5])  # its small variant
    found = [tables for tables in gc.get_objects() if isinstance(tables, shared_tables.HostTables)]
    return set(compiled), len(compiled), sum(len(tables._unread) for tables in found)


def test_one_rank_compiles_for_all_and_drops_the_tables_when_all_have_read_them() -> None:
    results = run(N, compilations)
    everything = {"Ring", "Tree", "Wheel", "HalvingDoubling", "Star", "Direct"}
    assert set().union(*(names for names, _, _ in results)) == everything
    distinct = len(OWN) + 2  # and the barrier's, and the small variant
    assert sum(calls for _, calls, _ in results) == 2 * distinct  # twice each: for all, and for the rank itself
    assert sum(unread for _, _, unread in results) <= 1


def call_when_told(comm: Communicator, link: Connection, victim: int) -> Any:
    if comm.rank == victim:

        def compiling(key: planner.ScheduleKey) -> Any:
            link.send("compiling")
            time.sleep(60)

        replace_compiler(compiling)
    else:
        link.recv()
    return comm.allreduce(X, topology="ring", timeout=1)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_ends_or_stops_while_it_compiles_for_the_others_is_named(end: signal.Signals) -> None:
    victim = 3
    with Job(N, call_when_told, victim) as job:
        assert job.hear(victim) == "compiling"
        others = [rank for rank in range(N) if rank != victim]
        for rank in others:
            job.link[rank].send("go")
        time.sleep(0.3)  # they wait for its tables
        at = job.kill(victim, end)
        if end == signal.SIGKILL:
            check(job.outcomes(), victim, at)
            return
        for rank in others:
            outcome = job.hear(rank, 10)
            assert isinstance(outcome.error, TimeoutError), outcome
            assert f"rank {victim} is stopped" in str(outcome.error)
            assert outcome.at - at < 3


def without_memfd() -> None:
    vars(segments)["KINDS"] = ("posix_shm",)


def directories(comm: Communicator, link: Connection) -> int:
    np.testing.assert_array_equal(comm.allreduce(X, topology="ring"), N * X)
    return len([tables for tables in gc.get_objects() if isinstance(tables, shared_tables.HostTables)])


def test_without_memfds_every_rank_compiles() -> None:
    assert run(N, directories) == [1] * N
    with Job(N, directories, first=without_memfd) as job:
        assert job.results() == [0] * N


def interrupted_once(comm: Communicator, link: Connection) -> Any:
    original = planner.schedule_for

    def interrupted(*key: Any) -> Any:
        link.send("compiling")
        time.sleep(0.3)  # the others wait for its tables
        raise KeyboardInterrupt

    if comm.rank == 0:
        replace_compiler(interrupted)
        with pytest.raises(KeyboardInterrupt):
            comm.allreduce(X, topology="ring")
        replace_compiler(original)
    else:
        link.recv()
    return comm.allreduce(X, topology="ring")


def test_if_the_compiling_rank_is_interrupted_the_others_compile_for_themselves() -> None:
    with Job(N, interrupted_once) as job:
        assert job.hear(0) == "compiling"
        for rank in range(1, N):
            job.link[rank].send("go")
        for result in job.results():
            np.testing.assert_array_equal(result, N * X)


def wrong_program(comm: Communicator, link: Connection | None = None) -> Any:
    @topology(f"forgetful_{comm.rank}")
    class Forgetful:
        def allreduce(self, p: Program) -> None:
            for c in p.chunks(1):
                p[p.ranks, c] = p.sum(p[q, c] for q in p.ranks[1:])

    for _ in range(2):
        with pytest.raises(VerificationError, match=r"rank 0.*chunk 0|chunk 0.*rank 0"):
            comm.allreduce(X, topology=Forgetful)
    return comm.allreduce(X, topology="ring")


def test_a_program_that_is_refused_is_refused_on_every_rank() -> None:
    for size, results in ((N, run(N, wrong_program)), (3, local_world(3).run(wrong_program))):
        np.testing.assert_array_equal(results, [size * X] * size)


def different_schedules(comm: Communicator, link: Connection) -> list[str]:
    @topology("edited")
    class Edited:
        def allreduce(self, p: Program) -> None:
            first = 1 if comm.rank == 2 else 0
            for c in p.chunks(1):
                p[first, c] = p.sum(p[q, c] for q in p.ranks)
                p[p.ranks, c] = p[first, c]

    found = []
    for used, chosen in ((comm.dup(), "ring" if comm.rank == 2 else "star"), (comm.dup(), Edited)):
        with pytest.raises(MismatchError) as caught:
            used.allreduce(X, topology=chosen)
            used.barrier()
        found.append(str(caught.value))
    return found


def test_ranks_that_need_different_schedules_do_not_wait_for_each_other() -> None:
    started = time.monotonic()
    for names, programs in run(N, different_schedules):
        assert "ring" in names and "star" in names
        assert "what differs: the topology's parameters or program" in programs
    assert time.monotonic() - started < 30  # less than the wait for a rank that never compiles


# -- the parts ---------------------------------------------------------------------------------------------------------


def key(name: str = "ring", size: int = 3) -> planner.ScheduleKey:
    return planner.ScheduleKey(get(name), "allreduce", size, None, Placement.STAGED, False)


def test_a_table_is_read_back_as_it_was_written() -> None:
    number = shared_tables.key_digest(key())
    segment = shared_tables.write_tables(number, key())
    for rank in range(3):
        loaded = shared_tables.read_table(segment.token(), segment.bytes, number, 3, rank)
        assert (loaded.schedule.rank, loaded.schedule.size, loaded.program) == (rank, 3, 0)
        assert loaded.schedule.steps == len(planner.schedule_for(key()).ranks[rank].steps)


@pytest.mark.parametrize("damage", ["another schedule", "another size", "another length", "ends", "table", "nothing"])
def test_damaged_tables_are_refused(damage: str) -> None:
    number = shared_tables.key_digest(key())
    segment = shared_tables.write_tables(number, key())
    words, size, nbytes, token = shared_tables.view(segment).cast("i"), 3, segment.bytes, segment.token()
    if damage == "another schedule":
        number = shared_tables.key_digest(key("tree"))
    elif damage == "another size":
        size = 2
    elif damage == "another length":
        nbytes -= 4
    elif damage == "ends":
        words[4:10] = array("i", [-1] * 6)
    elif damage == "table":
        words[11] = 1000  # the first table's number of ranks
    else:
        token = f"memfd:1:1:{nbytes}"
    with pytest.raises((OSError, ValueError)):
        shared_tables.read_table(token, nbytes, number, size, 0)


def test_keys_differ_in_every_part() -> None:
    keys = [key(), key("tree"), key(size=4), key()._replace(placement=Placement.WINDOW), key()._replace(small=True)]
    keys += [key("wheel"), key("wheel(hub=1)"), key()._replace(collective="broadcast", root=0)]
    keys += [key()._replace(collective="broadcast", root=1)]
    assert len({shared_tables.key_digest(each) for each in keys}) == len(keys)


def two_directories() -> list[_core.TableDirectory]:
    """Tables of two ranks."""
    scratch = 1 << 16
    offset = _core.Team.segment_bytes(2, scratch)
    segment = _core.Segment.create("local", offset + _core.TableDirectory.segment_bytes())
    made = []
    for rank in range(2):
        team = _core.Team(segment, rank, 2, scratch, [0, 1], "test", True, planner.Planner(rank, 2))
        made.append(_core.TableDirectory(team, offset))
    return made


def test_the_second_rank_waits_for_the_first() -> None:
    first, second = two_directories()
    assert first.acquire(7) == ("", 0)
    assert first.acquire(7) is None  # a call within the call that compiles it
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(second.acquire(7)))
    waiting.start()
    time.sleep(0.1)
    assert not found
    second.publish(7, "memfd:9:9:9", 9)  # not its own
    first.publish(7, "memfd:1:2:300", 300)
    waiting.join()
    assert found == [("memfd:1:2:300", 300)] == [first.acquire(7)]
    assert first.taken(7) == 0
    second.note_taken(7)
    assert first.taken(7) == 1


def test_a_failure_is_not_repeated_for_each_rank_in_turn() -> None:
    first, second = two_directories()
    assert first.acquire(8) == ("", 0)
    first.fail(8)
    assert second.acquire(8) is None
    assert first.acquire(8) is None


def test_a_full_directory_makes_every_rank_compile() -> None:
    first, second = two_directories()
    room = 0
    while first.acquire(room + 1) is not None:
        room += 1
        first.publish(room, "memfd:1:1:1", room)
    assert room == 1024
    assert [second.acquire(n + 1) for n in range(room)] == [("memfd:1:1:1", n + 1) for n in range(room)]
    assert second.acquire(room + 1) is None
    assert first.acquire(0) is None


def test_refused_arguments() -> None:
    first, _ = two_directories()
    assert first.acquire(1) == ("", 0)
    with pytest.raises(ValueError, match="token"):
        first.publish(1, "x" * 104, 1)
    segment = _core.Segment.create("local", _core.Team.segment_bytes(2, 1 << 16))
    team = _core.Team(segment, 0, 2, 1 << 16, [0, 1], "test", True, planner.Planner(0, 2))
    for offset in (8, segment.bytes, 1 << 63):
        with pytest.raises(ValueError, match="no room"):
            _core.TableDirectory(team, offset)
