"""UCX as the link between hosts: what is special about it. The other tests across hosts run over it with
PYCOLLECTIVE_LINK=ucx (`make test-ucx`). Over TCP and shared memory: RDMA is untested."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pycollective as pc
from pycollective import _core
from pycollective.comm.hosts import ucx

LOOPBACK = "127.0.0.1"
HOSTS = ("red", "blue")


def _missing() -> str:
    try:
        ucx.devices(ucx.SOCKETS, LOOPBACK)
    except OSError as error:
        return str(error)
    return ""


needs_ucx = pytest.mark.skipif(bool(_missing()), reason=f"no UCX here: {_missing()}")


@pytest.fixture(params=["ucx", "ucx-shm"])
def chosen(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    monkeypatch.setenv(ucx.SETTING, request.param)
    return str(request.param)


def _offer(setting: str = "auto", over: tuple[str, ...] = (), version: str = "1.20.0", problem: str = "") -> Any:
    return {"setting": setting, "over": over, "version": version if over else "", "problem": problem}


UCX = _offer("ucx", (ucx.SOCKETS,))


@pytest.mark.parametrize(
    ("offers", "link"),
    [
        ((_offer(), _offer()), ""),
        ((_offer(over=(ucx.RDMA,)), _offer()), ""),
        ((_offer(over=(ucx.RDMA,)), _offer(over=(ucx.RDMA,))), ucx.RDMA),
        ((_offer(over=(ucx.RDMA,)), _offer(over=(ucx.RDMA,), version="1.21.0")), ""),
        ((_offer("tcp"), _offer("tcp")), ""),
        ((UCX, UCX), ucx.SOCKETS),
        ((_offer("ucx", (ucx.RDMA, ucx.SOCKETS)), UCX), ucx.SOCKETS),
        ((_offer("ucx", (ucx.RDMA, ucx.SOCKETS)),) * 2, ucx.RDMA),
        ((_offer("ucx-shm", (ucx.SHARED_MEMORY,)),) * 2, ucx.SHARED_MEMORY),
    ],
)
def test_all_ranks_choose_one_link(offers: Any, link: str) -> None:
    assert ucx.choose(offers, HOSTS) == link


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (_offer("tcp"),
         "rank 1 on host blue has PYCOLLECTIVE_LINK=tcp, rank 0 on host red has ucx: all ranks need the same value"),
        (_offer("ucx", problem="cannot load UCX: no such file"),
         "PYCOLLECTIVE_LINK=ucx, but rank 1 on host blue cannot use UCX: cannot load UCX: no such file"),
        (_offer("ucx", UCX["over"], "1.21.0"),
         "rank 1 on host blue has UCX 1.21.0, rank 0 on host red has 1.20.0: all ranks need the same version"),
    ],
)  # fmt: skip
def test_ranks_that_cannot_agree(other: Any, text: str) -> None:
    with pytest.raises(pc.BootstrapError, match=text):
        ucx.choose((UCX, other), HOSTS)


def test_without_an_rdma_device_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(ucx.SETTING, raising=False)
    monkeypatch.setattr(ucx, "_RDMA_DEVICES", tmp_path / "none")
    monkeypatch.setattr(ucx, "devices", None)
    assert ucx.offer(LOOPBACK) == {**_offer(), "over": []}


def test_a_missing_library(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    monkeypatch.setattr(ucx, "_files", lambda: ["/nowhere/libucp.so.0"])
    with pytest.raises(pc.BootstrapError, match=r"rank 0 on host .* cannot use UCX: .*/nowhere/libucp.so.0.*libucx0"):
        pc.local_world(2, hosts=(0, 1)).run(len)


@needs_ucx
def test_messages_with_a_wrong_secret_are_dropped() -> None:
    devices = ucx.devices(ucx.SOCKETS, LOOPBACK)
    right, wrong = b"r" * 16, b"r" * 15 + b"w"

    def answered(expected_by_1: bytes) -> bool:
        workers = [_core.UcxWorker(devices, rank) for rank in range(2)]
        workers[0].connect(1, workers[1].address, right, right)
        workers[1].connect(0, workers[0].address, right, expected_by_1)
        end = time.monotonic() + (20 if expected_by_1 == right else 1)
        missing = [[1], [0]]
        while any(missing) and time.monotonic() < end:
            missing = [worker.synchronize(0) for worker in workers]
        for worker in workers:
            worker.close()
        return not any(missing)

    assert answered(right)
    assert not answered(wrong)


@needs_ucx
@pytest.mark.parametrize("hosts", [(0, 1), (0, 0, 1, 1)], ids=str)
def test_a_huge_message(chosen: str, hosts: tuple[int, ...]) -> None:
    """And that UCX is what carried it."""
    count = 10_000_019

    def run(comm: pc.Communicator) -> tuple[bool, str]:
        total = comm.allreduce(np.arange(count, dtype="i8") * (comm.rank + 1))
        factor = comm.size * (comm.size + 1) // 2
        return np.array_equal(total, np.arange(count, dtype="i8") * factor), str(comm.explain("allreduce", 1))

    for right, text in pc.local_world(len(hosts), hosts=hosts).run(run):
        assert right
        assert re.search(r"over UCX 1\.[^)]*" + {"ucx": "tcp/", "ucx-shm": "posix/"}[chosen], text)


@needs_ucx
@pytest.mark.parametrize("nbytes", [0, 8, 8192, 300_000])
def test_a_rank_that_is_far_ahead_waits(chosen: str, nbytes: int) -> None:
    """The receiver stores a bounded number of bytes; all arrive in their order."""
    calls = 9000 if nbytes < 9000 else 40

    def run(comm: pc.Communicator) -> bool:
        data = np.empty(nbytes, "u1")
        for call in range(calls):
            if comm.rank == 1 and call in (0, 2000):
                time.sleep(0.3)
            data[:] = call % 251 if comm.rank == 0 else 255
            comm.broadcast(data, out=data)
            if not (data == call % 251).all():
                return False
        return True

    assert pc.local_world(2, hosts=(0, 1)).run(run) == [True, True]


@needs_ucx
def test_the_process_keeps_its_signal_handlers() -> None:
    script = (
        "from pathlib import Path\n"
        "from pycollective.comm.hosts import ucx\n"
        "def caught():\n"
        "    [line] = [x for x in Path('/proc/self/status').read_text().splitlines() if x.startswith('SigCgt')]\n"
        "    return int(line.split()[1], 16) & 0x7fffffff  # without those of the C library's threads\n"
        "before = caught()\n"
        "from pycollective import _core\n"
        "worker = _core.UcxWorker(ucx.devices(ucx.SOCKETS, '127.0.0.1'), 0)\n"
        "assert caught() == before, (before, caught())\n"
        "import os\n"
        "assert not [name for name in os.environ if name.startswith('UCX_')]\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
    subprocess.run([sys.executable, "-I", "-c", script], env=environment, check=True, timeout=60)


PEER = """
import os, signal, sys
import numpy as np
import pycollective as pc
comm = pc.init()
for call in range(1000):
    if comm.rank == 1 and call == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.allreduce(np.ones(int(sys.argv[1])))
    except pc.PeerLostError as error:
        print(call, error)
        break
comm.free()
"""


def shared_memory() -> set[str]:
    """What is in /dev/shm, but for that of other tests' mpiruns."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("sm_segment")}


@needs_ucx
@pytest.mark.parametrize("link", ["ucx", "ucx-shm"])
@pytest.mark.parametrize("count", [1, 3_000_000])
def test_a_killed_peer_is_named_and_leaves_nothing(tmp_path: Path, link: str, count: int) -> None:
    before = shared_memory()
    job = {"PYCOLLECTIVE_TOKEN": "0123456789abcdef" * 2, "PYCOLLECTIVE_LINK": link, "OMP_NUM_THREADS": "1"}
    job |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": f"{os.getpid()}{count}{link}", "SLURM_STEP_ID": "0"}
    job |= {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "127.0.0.[1-2]"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-I", "-c", PEER, str(count)],
            env={**os.environ, **job, "SLURM_PROCID": str(rank), "PYCOLLECTIVE_HOST": f"h{rank}"},
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        out, err = ranks[0].communicate(timeout=60)
        assert ranks[1].wait(10) == -signal.SIGKILL
    finally:
        for rank in ranks:
            rank.kill()
    assert (ranks[0].returncode, err) == (0, ""), err
    assert "rank 1 (host h1) is gone (its process has ended)" in out
    assert shared_memory() <= before
