"""A late rank: stalls are reported after a while, on a signal, and end the job if requested."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from processes import IMPORTABLE
from speed import until

from engine.operations import SECONDS, on_engines, ones
from engine.two_hosts import on_two_hosts
from launch import launch
from pycollective.engine import Engine, Item

WAITING = """
    import os, signal, sys, time
    import numpy as np
    import pycollective
    from pycollective.engine import Engine, Item
    comm = pycollective.init()
    engine = Engine(comm)
    engine.run([Item("allreduce", "all", np.ones(3))])
    pids = comm.allgather_object(os.getpid())
    if engine.rank == 2:
        time.sleep(float(sys.argv[1]))
        if "signal" in sys.argv:
            os.kill(pids[0], signal.SIGUSR1)
            time.sleep(1)
    try:
        got = engine.run([Item("allreduce", name, np.ones(3)) for name in ("grad.weight", "grad.bias")])
        print("got", got[0].sum())
    except Exception as error:
        print(type(error).__name__, str(error).replace(chr(10), " "))
    engine.close()
"""


def test_ranks_and_tensors_are_named() -> None:
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.3"}
    done = launch(3, WAITING, 1.5, env=IMPORTABLE | env).check()
    assert list(done) == ["got 9.0\n"] * 3  # only a warning
    for name in ("grad.weight", "grad.bias"):
        lines = [line for line in done.stderr.splitlines() if name in line]
        assert lines, done.report()
        assert all("2" in line for line in lines), lines
    assert " all" not in done.stderr.replace("at all", ""), "what has completed is no stall"


def test_it_can_be_turned_off() -> None:
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.2", "HOROVOD_STALL_CHECK_DISABLE": "1"}
    done = launch(3, WAITING, 1.0, env=IMPORTABLE | env).check()
    assert "grad" not in done.stderr


@pytest.mark.parametrize("variable", ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "PYCOLLECTIVE_TIMEOUT"])
def test_a_stall_ends_the_job_at_the_deadline(variable: str) -> None:
    """An error on the waiting ranks that names the missing ones; and on the late rank, once it comes."""
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.2", variable: "0.8"}
    done = launch(3, WAITING, 2.5, env=IMPORTABLE | env)
    for rank in (0, 1):
        assert "Error" in done[rank], done.report()
        assert "got" not in done[rank].split(), done.report()
        assert "2" in done[rank] and "grad." in done[rank], done.report()
    assert "Error" in done[2], done.report()


def test_ranks_that_wait_for_each_other() -> None:
    """A report at any time names what each of them has submitted, and nothing that has completed."""
    met = threading.Barrier(3)

    def body(engine: Engine) -> str:
        works = engine.submit([ones(f"of {engine.rank}")])
        met.wait(SECONDS)
        lines = engine.report()
        met.wait(SECONDS)
        others = [other for other in range(3) if other != engine.rank]
        for other in others:  # not as a group: they are none elsewhere
            works += engine.submit([ones(f"of {other}")])
        for work in works:
            work.wait(SECONDS)
        assert engine.report() == ""
        return lines

    for lines in on_engines(3, body):
        (line,) = (line for line in lines.splitlines() if line.startswith("  'of 1'"))
        assert line.partition(" s for ")[2] == (
            "ranks 0, 2; rank 0 has submitted 'of 0', which waits for rank 1; "
            "rank 2 has submitted 'of 2', which waits for rank 1"
        )


def test_the_same_at_sigusr1() -> None:
    """A signal ends nothing; the waiting rank reports for which rank."""
    done = launch(3, WAITING, 0.5, "signal", env=IMPORTABLE).check()
    assert list(done) == ["got 9.0\n"] * 3
    lines = [line for line in done.stderr.splitlines() if "grad.weight" in line]
    assert lines, done.report()
    assert all("2" in line for line in lines)


def test_another_handler_stays() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    try:
        on_engines(2, lambda engine: engine.run([Item("barrier", "b")]))
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: got)
        assert got == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


ON_TWO_HOSTS = """
import atexit
folder = sys.argv[1]
def until(condition):
    while not condition(): time.sleep(0.01)
def signal_turn(turn): open(f"{folder}{turn}{comm.rank}", "w").close()
def wait_for(turn, *ranks): until(lambda: all(os.path.exists(f"{folder}{turn}{rank}") for rank in ranks))
errors, stderr = open(folder + f"errors{comm.rank}", "w"), os.dup(2)
os.dup2(errors.fileno(), 2)
atexit.register(lambda: os.write(stderr, open(errors.name, "rb").read()))
def reports(): return os.path.getsize(errors.name)

engine = Engine(comm, Settings(stall_check_disable=True, stall_check_time=0.1))
if comm.rank == 3: wait_for("signalled", 2)
work = engine.submit([Item("allreduce", "grad.signalled", np.ones(3))])[0]
if comm.rank == 2:
    until(lambda: "rank 3" in engine.report())
    before = reports()
    os.kill(os.getpid(), signal.SIGUSR1)
    until(lambda: reports() != before)
    signal_turn("signalled")
assert work.wait(SECONDS).sum() == 12
engine.close()

engine = Engine(comm, Settings(stall_check_time=0.3))
engine.run([Item("barrier", "punctual")])
before = reports()
if comm.rank == 3: wait_for("late", 0, 1)
works = engine.submit([Item("allreduce", "grad.late", np.ones(3))])
if comm.rank == 0: wait_for("late", 1)
works += engine.submit([Item("broadcast", "weights", np.ones(3), root=0)])
if comm.rank < 2:
    until(lambda: reports() != before)
    signal_turn("late")
for work in works: assert work.wait(SECONDS) is not None
engine.close()

engine = Engine(comm, Settings(stall_check_time=0, stall_shutdown_time=0.5))
if comm.rank == 3: wait_for("ended", 0, 1, 2)
try:
    engine.run([Item("allreduce", "grad.never", np.ones(3))])
except pc.TimeoutError as error:
    print("late" if comm.rank == 3 else "raised", "'grad.never'" in str(error) and "rank 3" in str(error))
signal_turn("ended")
engine.close()
assert comm.allreduce(np.ones(1))[0] == 4  # only the engine has ended
"""


@pytest.mark.mpi
def test_two_hosts(tmp_path: Path) -> None:
    """Reports of ranks that agree by messages: on a signal, after a while, and in the end."""
    done = on_two_hosts(tmp_path, ON_TWO_HOSTS, f"{tmp_path}/").check()
    assert list(done) == ["raised True\n"] * 3 + ["late True\n"], done.report()
    lines = [line for line in done.stderr.splitlines() if "has waited" in line or "pycollective:" in line]
    reported: dict[str, set[int]] = {}  # by the first that waits, alone
    for line in lines:
        if "pycollective:" in line:
            signalled = "operations that wait" in line
            assert signalled or "some ranks have not submitted" in line
            reporter = int(line.split("rank ")[1].split(":")[0])
        elif signalled:
            assert reporter == 2 and "'grad.signalled'" in line and line.endswith("for rank 3"), done.report()
        else:
            reported.setdefault(line.split("'")[1] + line.split(" s for ")[1], set()).add(reporter)
    assert "grad.signalled" in done.stderr
    assert reported.pop("grad.laterank 3") == {0}, done.report()
    assert reported.pop("weightsranks 0, 3") == {1}, done.report()
    assert reported in ({}, {"weightsrank 3": {0}}), done.report()
    assert "punctual" not in done.stderr
    assert "grad.never" not in done.stderr, "no warning was asked for"
