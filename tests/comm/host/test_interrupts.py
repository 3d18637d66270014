"""An interrupted run of a local world, as by Ctrl-C or a notebook's stop button."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pycollective import Communicator, local_world

BODIES = {
    "waits": "comm.barrier() if comm.rank else stay()",
    "computes": "started.release(); spin()",
    "in_a_part": "part = comm.split(comm.rank % 2); started.release(); [part.allreduce(1.0) for _ in iter(int, 1)]",
    "some_have_ended": "None if comm.rank == 1 else stay()",
    "nonblocking": "comm.iallreduce(np.ones(1000)).result() if comm.rank else stay()",
    "receives": "comm.recv(np.empty(1), 0) if comm.rank else stay()",
}
SCRIPT = """
import os, signal, sys, threading, time
import numpy as np
import pycollective as pc

started = threading.Semaphore(0)

def spin():
    while True:
        pass

def stay():
    started.release()
    while True:
        time.sleep(0.001)

def body(comm):
    {body}

def interrupt():
    started.acquire()
    time.sleep(0.05)  # so that the others wait by then
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    pc.local_world(3).run(body)
except KeyboardInterrupt:
    print("interrupted")
left = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
assert all(thread.daemon for thread in left), left
for thread in left:
    thread.join(20)
assert not any(thread.is_alive() for thread in left), left
print(*pc.local_world(4).run(lambda comm: int(comm.allreduce(comm.rank))))
"""


def run_interrupted(code: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n6 6 6 6\n", "")


def test_an_interrupt_leaves_no_module_locked(tmp_path: Path) -> None:
    """Ranks that wait for another one's import are interrupted after it."""
    (tmp_path / "slow.py").write_text("import time\nwhile True: time.sleep(0.001)\n")
    code = SCRIPT.format(body="started.release(); import slow")
    run_interrupted(f"{code}open('slow.py', 'w').close()\nimport slow\n", tmp_path)


@pytest.mark.parametrize("name", BODIES)
def test_an_interrupt_ends_all_ranks_and_the_next_run_works(name: str, tmp_path: Path) -> None:
    run_interrupted(SCRIPT.format(body=BODIES[name]), tmp_path)


def test_a_rank_in_native_code_is_left_behind_as_a_daemon(tmp_path: Path) -> None:
    """time.sleep() simulates it: no exception can reach a thread before it returns."""
    code = SCRIPT.format(body="started.release(); comm.barrier() if comm.rank else time.sleep(600)")
    run_interrupted(code.replace("for thread in left:\n    thread.join(20)\nassert not any", "assert any"), tmp_path)


def test_a_rank_that_is_being_started_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt arrives in Thread.start(), before the new thread has a number."""
    ran: list[int] = []
    late: list[threading.Timer] = []
    start = threading.Thread.start

    def slow_start(thread: threading.Thread) -> None:
        if thread.name != "rank-2":
            return start(thread)
        late.append(threading.Timer(0.2, start, [thread]))
        start(late[0])
        raise KeyboardInterrupt

    def body(comm: Communicator) -> None:
        ran.append(comm.rank)

    monkeypatch.setattr(threading.Thread, "start", slow_start)
    with pytest.raises(KeyboardInterrupt):
        local_world(3).run(body)
    late[0].join()
    time.sleep(0.1)
    assert 2 not in ran
