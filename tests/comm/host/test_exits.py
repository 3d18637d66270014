"""How ranks end: normal exits, Ctrl-C, signals to all; and that nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest
from calls import call, place
from processes import IMPORTABLE, Job, all_say, run

from launch import launch
from pycollective import Communicator, CommunicatorError, MismatchError, local_world


def leave_in_turn(comm: Communicator, link: Connection, collective: str, count: int, root: int) -> None:
    """Each rank ends as soon as its part of the last collective is done; the slowest is delayed."""
    x = np.ones(count)
    comm.barrier()
    if comm.rank == comm.size - 1:
        time.sleep(0.1)
    call(comm, collective, x, root)


@pytest.mark.parametrize("root", [0, 3])
@pytest.mark.parametrize("count", [4, 100_000])
@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scatter", "allreduce", "allgather"])
def test_a_normal_exit_right_after_the_last_collective_is_no_error(collective: str, count: int, root: int) -> None:
    run(4, leave_in_turn, collective, count, root)


def test_scripts_that_end_at_once() -> None:
    """Like user scripts, with nothing after the last call; several times, since it is a race."""
    script = """
        import numpy as np, pycollective as pc
        comm = pc.init()
        comm.broadcast(np.ones(1 << 15))
        comm.reduce(np.ones(10), 1)
        if comm.rank % 2:
            comm.send(np.ones(10), comm.rank - 1)
        else:
            comm.recv(np.ones(10), comm.rank + 1)
    """
    for _ in range(4):
        assert launch(4, script, env=IMPORTABLE, check=True).stderr == ""


def test_scripts_that_end_with_calls_in_flight() -> None:
    """Handles without a wait: the calls are completed at exit, since the other ranks need them."""
    script = """
        import numpy as np, pycollective as pc
        comm = pc.init()
        for i in range(30):
            comm.iallreduce(np.ones(20000))
        if comm.rank == 0:
            print(comm.iallreduce(np.ones(3)).result())
        else:
            comm.iallreduce(np.ones(3))
    """
    for _ in range(6):
        done = launch(3, script, env=IMPORTABLE, check=True)
        assert done[0] == "[3. 3. 3.]\n"
        assert done.stderr == ""


def test_a_script_that_ends_with_daemon_threads_in_calls() -> None:
    """Python ends a thread that requests its lock by then; inside the core that would be an abort."""
    script = """
        import threading, time
        import numpy as np, pycollective as pc
        from pycollective.engine import Engine, Item
        comm = pc.init()
        engine = Engine(comm.dup())
        own = comm.dup(), comm.dup()
        x = np.ones(3)
        blocked = (
            lambda: own[0].recv(x, 1 - comm.rank), lambda: own[1].irecv(x, 1 - comm.rank, timeout=0.3).wait(),
            lambda: engine.run([Item("allreduce", str(comm.rank), x)]),
        )
        for call in blocked:
            threading.Thread(target=call, daemon=True).start()
        time.sleep(0.3)
        comm.barrier()
    """
    assert "terminate" not in launch(2, script, env=IMPORTABLE, check=True).stderr


def fork_a_child(comm: Communicator, link: Connection) -> float:
    """The child ends like a script, with all registered exit handlers."""
    import atexit

    comm.barrier()
    if comm.rank == 0:
        child = os.fork()
        if child == 0:
            atexit._run_exitfuncs()
            os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.2)
    return float(comm.allreduce(np.ones(1))[0])


def test_a_forked_child_does_not_end_its_parents_rank() -> None:
    assert run(3, fork_a_child) == [3.0] * 3


def use_in_a_child(comm: Communicator, link: Connection) -> tuple[float, int]:
    """The child tries the parent's calls, and creates its own world, which needs its own progress thread."""
    from pycollective.engine import Engine, Item

    comm.iallreduce(np.ones(1)).wait(20)  # the thread of this call does not exist in the child
    engine, order, code = Engine(comm), comm.dup(), 0
    if comm.rank == 0:
        handle, work = comm.iallreduce(np.ones(1)), engine.submit([Item("allreduce", "b", np.ones(1))])[0]
        child = os.fork()
        if child == 0:
            attempts = (
                lambda: comm.allreduce(np.ones(1)), lambda: comm.iallreduce(np.ones(1)), lambda: comm.dup(),
                lambda: comm.send(np.ones(1), 1), lambda: comm.shrink(1),
                lambda: engine.submit([Item("allreduce", "a", np.ones(1))]),
                lambda: handle.wait(5), lambda: work.wait(5),
            )  # fmt: skip
            try:
                for attempt in attempts:
                    with pytest.raises(CommunicatorError, match="forked"):
                        attempt()
                comm.free()
                local_world(2).run(lambda own: own.iallreduce(np.ones(1)).wait(5))
            except BaseException:
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        order.barrier()
        handle.wait(20)
    else:
        order.barrier()  # until then rank 0's calls make no progress
        comm.allreduce(np.ones(1))
        work = engine.submit([Item("allreduce", "b", np.ones(1))])[0]
    total = float(work.wait(20)[0])
    engine.close()
    return total, code


def test_a_forked_child_cannot_call_for_its_parent() -> None:
    assert run(2, use_in_a_child) == [(2.0, 0)] * 2


# -- Ctrl-C --------------------------------------------------------------------------------------------------------


def block(comm: Communicator, link: Connection, how: str) -> float:
    """Rank 0 blocks in a call that rank 1 does not make; returns the time of KeyboardInterrupt."""
    link.send("ready")
    if comm.rank == 1:
        link.recv()
        with pytest.raises(MismatchError if how == "wait" else CommunicatorError, match=r"differs|interrupted"):
            comm.barrier()  # only the wait has ended, or the call
        return 0.0
    x = np.ones(1 << 17)
    calls = {
        "small": lambda: comm.allreduce(x[:1]),
        "large": lambda: comm.allreduce(x),
        "recv": lambda: comm.recv(x, 1),
        "send": lambda: comm.send(x, 1),
        "empty": lambda: comm.empty(1000),
        "wait": lambda: comm.iallreduce(x).wait(),
        "behind others": lambda: (comm.iallreduce(x), comm.allreduce(x)),
        "free": lambda: (comm.iallreduce(x), comm.free()),
    }
    with pytest.raises(KeyboardInterrupt):
        calls[how]()
    return time.monotonic()


@pytest.mark.parametrize("how", ["small", "large", "recv", "send", "empty", "wait", "behind others", "free"])
def test_ctrl_c_ends_a_blocked_call(how: str) -> None:
    with Job(2, block, how) as job:
        all_say(job, "ready")
        time.sleep(0.2)
        at = job.kill(0, signal.SIGINT)
        assert job.link[0].poll(10), "it waits for rank 1"
        job.link[1].send("go")
        assert job.results()[0] - at < (0.5 if how == "wait" else 10)


def test_a_signal_handler_that_returns_ends_nothing() -> None:
    with Job(2, count_signals) as job:
        all_say(job, "ready")
        for _ in range(3):
            time.sleep(0.15)
            job.kill(0, signal.SIGUSR1)
        time.sleep(0.15)
        job.link[1].send("go")
        assert job.results() == [(3, 2.0), (0, 2.0)]


def count_signals(comm: Communicator, link: Connection) -> tuple[int, float]:
    heard: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    link.send("ready")
    if comm.rank == 1:
        link.recv()
    total = comm.allreduce(np.ones(1))[0]
    return len(heard), float(total)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_nothing_is_left_after_any_signal_to_all_ranks(number: int) -> None:
    """Also with named shared memory, after all have attached: the name exists only until then. Job checks /dev/shm."""
    for kinds in ("memfd", "posix_shm"):
        with Job(3, use_windows_forever, kinds) as job:
            all_say(job, "ready")
            # All at the same moment: a rank that detects another's end would raise before its own signal.
            for each in (signal.SIGSTOP, number, signal.SIGCONT):
                for rank in range(3):
                    with contextlib.suppress(ProcessLookupError):  # killed, and collected, before it continues
                        os.kill(job.pid[rank], each)
            assert {outcome.exitcode for outcome in job.outcomes().values()} == {-number}


def use_windows_forever(comm: Communicator, link: Connection, kind: str) -> None:
    use_only(kind)
    part = comm.split(0)
    windows = [part.empty(100_000) for _ in range(3)]
    link.send("ready")
    while True:
        part.allreduce(windows[0], windows[1])
        if kind == "memfd":
            windows.append(part.empty(10_000))
            del windows[2]


def use_only(kind: str) -> None:
    """One kind of shared memory, as on a machine without the others."""
    from pycollective.comm.host import segments

    segments.KINDS = (kind,)


def fill_shared_memory(comm: Communicator, link: Connection) -> float:
    """Exceeding /dev/shm is an error on allocation, not a bus error later; and the next call works."""
    use_only("posix_shm")
    room = os.statvfs("/dev/shm")
    for _ in range(2):
        with pytest.raises(CommunicatorError, match="/dev/shm has no room"):
            comm.empty(room.f_frsize * room.f_blocks + (1 << 20), np.uint8)
    return float(comm.allreduce(place(comm, np.ones(10_000), "window"))[0])


def test_too_small_a_dev_shm() -> None:
    room = os.statvfs("/dev/shm")
    if room.f_frsize * room.f_blocks > 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        pytest.skip("/dev/shm is not limited")
    assert run(2, fill_shared_memory) == [2.0, 2.0]
