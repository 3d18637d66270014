"""oneCCL as a peer: how its C functions are called, and why it is missing where it is."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launch import run_module
from pycollective.bench.peers import oneccl, prepare
from pycollective.bench.peers.oneccl import OneCclPeer
from pycollective.bench.ranks.launch import find_launcher
from pycollective.bench.workload.cases import MEASURED, sweep_cases


class Library:
    """oneCCL's functions on one rank, where every collective copies its input."""

    def __init__(self, code: int = 0) -> None:
        self.calls: list[tuple[str, list[Any]]] = []
        self._code = code

    def onecclGetVersion(self, version: Any) -> int:
        version._obj.value = 20220103
        return 0

    def __getattr__(self, name: str) -> Any:
        def collective(send: Any, recv: Any, count: Any, kind: int, *others: Any) -> int:
            self.calls.append((name, [count.value, kind, *others]))
            ctypes.memmove(recv, send, 4 * count.value)
            return self._code

        def text(code: int) -> bytes:
            return b"Invalid argument"

        return text if name == "onecclGetErrorString" else collective


def test_calls_pass_counts_types_operators_and_roots_in_the_order_of_the_c_functions() -> None:
    library = Library()
    peer = OneCclPeer(library, "communicator", 2)
    assert peer.version == "oneCCL 2022.1.3"
    expected = {
        "allreduce": ["onecclAllReduce", 8, 7, 2],
        "broadcast": ["onecclBroadcast", 8, 7, 1],
        "reduce": ["onecclReduce", 8, 7, 2, 1],
        "reduce_scatter": ["onecclReduceScatter", 4, 7, 2],
        "allgather": ["onecclAllGather", 4, 7],
        "alltoall": ["onecclAllToAll", 4, 7],
    }
    for collective in MEASURED:
        [case] = sweep_cases(collective, "float32", "max", [32], 2, root=1)
        assert peer.supports(case) == (collective in expected)
        if collective not in expected:
            continue
        send, recv = np.arange(case.send_count, dtype=np.float32), np.zeros(case.recv_count, np.float32)
        call = prepare(peer, case, send, recv)
        send += 1
        call()
        name, *arguments = expected[collective]
        assert library.calls[-1] == (name, [*arguments, "communicator", None])
        if collective == "allreduce":
            assert recv.tolist() == send.tolist()
    assert not peer.supports(sweep_cases("allreduce", "float32", "band", [32], 2)[0])
    assert not peer.supports(sweep_cases("allgather", "bool", "sum", [32], 2)[0])


def test_an_error_code_is_an_error() -> None:
    x = np.zeros(2, np.float32)
    with pytest.raises(RuntimeError, match="onecclAllReduce failed: Invalid argument"):
        OneCclPeer(Library(code=4), None, 2).allreduce(x, x, "sum")


def test_the_library_is_looked_for_beside_mpi_and_in_ccl_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CCL_ATL_TRANSPORT", "CCL_PLUGIN", "CCL_YIELD"):
        monkeypatch.setenv(name, "")  # restores what was there before
        monkeypatch.delenv(name)
    monkeypatch.setenv("CCL_ROOT", str(tmp_path))
    monkeypatch.setenv("CCL_WORKER_OFFLOAD", "1")
    with pytest.raises(OSError, match=r"libccl\.so\.2 is neither beside Intel MPI's library nor in \$CCL_ROOT/lib"):
        oneccl._load_library(shares_cores=False)
    (tmp_path / "lib").mkdir()
    for name in ("libccl.so.2", "libccl_legacy_cpu.so"):
        (tmp_path / "lib" / name).write_text("no library")
    with pytest.raises(OSError, match=r"libccl_legacy_cpu\.so: file too short"):
        oneccl._load_library(shares_cores=False)
    assert os.environ["CCL_PLUGIN"] == str(tmp_path / "lib" / "libccl_legacy_cpu.so")
    assert os.environ["CCL_ATL_TRANSPORT"] == "mpi" and "CCL_YIELD" not in os.environ
    assert os.environ["CCL_WORKER_OFFLOAD"] == "1"  # the user's choice stays
    with pytest.raises(OSError, match="file too short"):
        oneccl._load_library(shares_cores=True)
    assert os.environ["CCL_YIELD"] == "sched_yield"


@pytest.mark.mpi
def test_a_run(tmp_path: Path) -> None:
    """Correct results with oneCCL, and the reason without it."""
    words = ["--collective", "allreduce,alltoall", "--sizes", "8,64K", "--ranks", "2", "--peers", "oneccl", "--quick"]
    done = run_module("pycollective.bench.calls", *words, cwd=tmp_path)
    assert "without oneccl: " in done.stdout or "ours / oneCCL, microseconds" in done.stdout
    assert find_launcher("impi").program or "no mpirun of Intel MPI is on the PATH" in done.stdout
