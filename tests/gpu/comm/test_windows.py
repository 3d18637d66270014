"""Device memory shared by processes: both methods, choosing one that works, failing together, freeing in order."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import struct
import warnings
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gpu import emulation
from gpu.device import get, put, same
from gpu.ranks import on_processes
from pycollective import Communicator, CommunicatorError, _core
from pycollective.comm.cuda import deferred_free, paths, runtime, windows
from pycollective.comm.cuda.team import _agree_on_channels

pytestmark = pytest.mark.usefixtures("cuda")

WORDS = 300_000
"""8-byte words of a window: more than the allocation unit of either method."""


def seed(writer: int, owner: int) -> int:
    return 1000 + 10 * writer + owner


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# -- sharing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", windows.KINDS)
@on_processes(3)
def test_every_rank_reaches_every_part(comm: Communicator, kind: str) -> None:
    cuda: Any = runtime.load()
    rank, size = comm.rank, comm.size
    before = open_files()
    for _ in range(2):
        window = windows.share(comm.backend.exchange, rank, size, 8 * WORDS * size, 0, kind)
        assert (window.device, len(set(window.bases))) == (0, size)
        part = cuda.DeviceArray(None, window.bases[rank], (8 * WORDS * size,), "uint8", 0)
        assert not get(part).any(), "a part begins as zeros"
        comm.barrier()
        for owner, base in enumerate(window.bases):
            cuda.probe_write(0, base + 8 * WORDS * rank, WORDS, seed(rank, owner))
        comm.barrier()
        for owner, base in enumerate(window.bases):
            for writer in range(size):
                assert cuda.probe_read(0, base + 8 * WORDS * writer, WORDS, seed(writer, owner)) == 0
                assert cuda.probe_read(0, base + 8 * WORDS * writer, WORDS, 1) == WORDS, "the probe detects wrong words"
        windows.give_up(comm.backend.exchange, rank, window)
    assert open_files() == before or emulation.on_device()


@pytest.mark.parametrize(
    ("kind", "function", "what"),
    [
        (windows.IPC, "allocate_plain", "export device memory by CUDA IPC"),
        (windows.IPC, "open_ipc", "open a peer's CUDA IPC handle"),
        (windows.VMM, "allocate_vmm", "export device memory as a file descriptor"),
    ],
)
@on_processes(3)
def test_all_fail_together(comm: Communicator, kind: str, function: str, what: str) -> None:
    where = comm.backend.exchange, comm.rank, comm.size
    before = open_files()
    with pytest.MonkeyPatch.context() as patch:
        if comm.rank == 1:
            patch.setattr(runtime.load(), function, lambda *_: 1 / 0)  # of an unexpected type
        with pytest.raises(CommunicatorError, match=f"rank 1 could not {what}: division by zero"):
            windows.share(*where, 4096, 0, kind)
    gc.collect()
    assert open_files() == before or emulation.on_device(), "resources created before the failure are released"
    windows.give_up(*where[:2], windows.share(*where, 4096, 0, kind))


# -- descriptors over a socket -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "foreign",
    [False, pytest.param(True, marks=pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user"))],
)
@on_processes(2)
def test_strangers_at_the_socket_are_sent_away(comm: Communicator, foreign: bool) -> None:
    """While ranks 0 and 1 share memory, another process connects to rank 1 first, with other memory."""
    cuda: Any = runtime.load()
    turn = 0

    def exchange(data: bytes) -> list[bytes]:
        nonlocal turn
        received = comm.backend.exchange(data)
        turn += 1
        if turn == 1 and comm.rank == 0:
            (disturb_as_another_user if foreign else disturb)(received[1][1:])
        return comm.backend.exchange(b"") and received if turn == 1 else received

    window = windows.share(exchange, comm.rank, comm.size, 4096, 0, windows.VMM)
    cuda.probe_write(0, window.bases[1 - comm.rank], 8, 7 + comm.rank)
    comm.barrier()
    assert cuda.probe_read(0, window.bases[comm.rank], 8, 7 + (1 - comm.rank)) == 0
    windows.give_up(comm.backend.exchange, comm.rank, window)


def disturb(name: bytes) -> None:
    """From the same user, but invalid: no frame, and a frame without a descriptor."""
    for text in (b"x", struct.pack("!I", 0)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.connect(name)
            stranger.send(text)


def disturb_as_another_user(name: bytes) -> None:
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setuid(65534)
            memory = os.memfd_create("not the peer's")
            os.ftruncate(memory, 1 << 20)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
                stranger.connect(name)
                socket.send_fds(stranger, [struct.pack("!I", 0)], [memory])
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- which path --------------------------------------------------------------------------------------------------------


NO_IPC, NO_VMM, BROKEN = "PC_EMULATED_NO_IPC", "PC_EMULATED_NO_VMM", "PC_EMULATED_BROKEN_PEER"


@pytest.mark.emulated
@pytest.mark.parametrize(
    ("knobs", "kind", "reasons"),
    [
        ({}, "cuda-ipc", ["every pair of ranks has written and read through it"]),
        ({1: NO_IPC}, "cuda-vmm", ["cuda-ipc: rank 1 could not export device memory by CUDA IPC"]),
        ({0: NO_IPC, 2: NO_VMM}, "host", ["cuda-ipc: rank 0 could not export", "cuda-vmm: rank 2 could not export"]),
        ({1: BROKEN}, "host", ["cuda-ipc: memory is mapped, but does not carry data", "cuda-vmm: memory is mapped"]),
    ],
)
@on_processes(3)
def test_ranks_agree_on_a_path(comm: Communicator, knobs: dict[int, str], kind: str, reasons: list[str]) -> None:
    """One rank that fails is enough for all; each of them warns once, with that rank and the reason."""
    if comm.rank in knobs:
        os.environ[knobs[comm.rank]] = "1"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = paths.agree(comm.backend.exchange, comm.rank, comm.size, 0)
    assert path.kind == kind
    assert len(set(comm.backend.exchange(path.reason.encode()))) == 1
    assert all(part in path.reason for part in reasons), path.reason
    warned = [str(warning.message) for warning in caught]
    assert len(warned) == (1 if knobs else 0) and all(path.reason in text for text in warned), warned


@on_processes(2)
def test_whatever_goes_wrong_in_a_probe_is_everybodys(comm: Communicator) -> None:
    if comm.rank == 1:
        runtime.load().probe_read = lambda *_: 1 / 0  # of an unexpected type
    with warnings.catch_warnings(record=True):
        path = paths.agree(comm.backend.exchange, comm.rank, comm.size, 0)
    assert path.kind == paths.HOST and "division by zero" in path.reason


# -- the end of a window -----------------------------------------------------------------------------------------------


class Part:
    """Stands for mapped memory: only the time of its destruction matters."""


def test_a_part_is_freed_after_all_have_unmapped_it() -> None:
    own, peers = Part(), Part()
    alive = weakref.ref(own), weakref.ref(peers)
    window = windows.DeviceWindow((1, 2), 8, 0, [own, peers])
    del own, peers
    seen: list[tuple[bool, bool]] = []

    def exchange(data: bytes) -> list[bytes]:
        seen.append((alive[0]() is not None, alive[1]() is not None))
        return [data, data]

    windows.give_up(exchange, 0, window)
    assert seen == [(True, False)] and alive[0]() is None


def test_graves_wait_for_every_rank() -> None:
    segment = _core.Segment.create("local", deferred_free.table_bytes(2))
    first, second = deferred_free.ClosedWindows(segment, 0, 2), deferred_free.ClosedWindows(segment, 1, 2)
    own, other, again = Part(), Part(), Part()
    alive = weakref.ref(own), weakref.ref(other), weakref.ref(again)
    first.close(5, own)
    del own
    deferred_free.free_closed()
    assert alive[0]() is not None, "rank 1 has it mapped"
    second.close(5, other)
    del other
    assert alive[0]() is None and alive[1]() is None
    first.close(5 + deferred_free.MOST_WINDOWS, again)  # reuses the row for a later window
    del again
    deferred_free.free_closed()
    assert alive[2]() is not None, "rank 1's report about the earlier window does not count"
    second.close(5 + deferred_free.MOST_WINDOWS, None)
    assert alive[2]() is None


def test_graves_within_graves() -> None:
    """A part's destructor, or garbage collection, may close another window while one is being freed."""
    segment = _core.Segment.create("local", deferred_free.table_bytes(1))
    table = deferred_free.ClosedWindows(segment, 0, 1)
    closed: list[int] = []

    class Nested:
        def __init__(self, number: int) -> None:
            self.number = number

        def __del__(self) -> None:
            closed.append(self.number)
            if self.number > 0:
                table.close(self.number - 1, Nested(self.number - 1))

    table.close(20, Nested(20))
    deferred_free.free_closed()
    assert closed == list(range(20, -1, -1))


def test_ranks_that_share_a_gpu_share_its_blocks() -> None:
    most = [64, 32, 21, 16]
    assert _agree_on_channels(["a", "b"], [most, most]) == 64
    assert _agree_on_channels(["a", "b", "a", "a"], [most] * 4) == 21
    assert _agree_on_channels(["a"] * 4, [[2, 1, 0, 0]] * 4) == 1, "they take turns"
    assert _agree_on_channels(["a", "b"], [most, [0, 0]]) == 0, "no cooperative launch"


@pytest.mark.emulated
@pytest.mark.parametrize("devices", [1, 2])
@on_processes(2, env={"PC_EMULATED_DEVICES": "2", "PC_EMULATED_NO_COOPERATIVE": "1"})
def test_only_ranks_that_share_a_gpu_need_a_cooperative_launch(comm: Communicator, devices: int) -> None:
    x = np.arange(9000, dtype=np.float32)
    if devices == 2:
        same(comm.allreduce(put(x, comm.rank)), 2 * x)
        return
    with pytest.raises(CommunicatorError, match="cannot run the blocks of this communicator's ranks at the same time"):
        comm.allreduce(put(x))


@pytest.mark.emulated
def test_why_there_is_no_gpu_path(cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime.why_not() is None and runtime.load() is cuda
    monkeypatch.setattr(runtime, "_usable", [None])
    monkeypatch.setenv("PC_EMULATED_DEVICES", "0")
    with pytest.raises(CommunicatorError, match="no GPU path: the CUDA driver sees no GPU"):
        runtime.load()
