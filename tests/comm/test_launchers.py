"""Ranks of each launcher connect: with the real launcher if installed, else with its variables."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from launch import find_mpirun, launch
from meeting import horovod_variables, on_threads, slurm_variables, torchrun_variables
from pycollective.comm.bootstrap.detection import detect
from pycollective.errors import BootstrapError

needs_mpi = pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")

CONNECT = """
    import sys
    from pycollective.comm.bootstrap.detection import detect
    from pycollective.comm.bootstrap.nodes import discover
    b = detect()
    first = b.allgather(str(b.rank).encode() * (b.rank + 1))
    assert first == [str(r).encode() * (r + 1) for r in range(b.size)], first
    assert b.allgather(b"") == [b""] * b.size
    big = b.allgather(bytes([b.rank]) * 1_000_000)
    assert all(big[r] == bytes([r]) * 1_000_000 for r in range(b.size))
    n = discover(b)
    words = (b.kind, b.rank, b.size, n.local_rank, n.local_size, n.cross_rank, n.cross_size, n.count)
    sys.stdout.write(" ".join(map(str, words)) + "\\n")  # at once: torchrun's ranks share a pipe
    b.close()
    b.close()
"""


@pytest.mark.parametrize("n", [1, 4])
def test_processes_connect_under_our_own_launcher(n: int) -> None:
    done = launch(n, CONNECT, check=True)
    assert [line.strip() for line in done] == [f"pycollective {r} {n} {r} {n} 0 1 1" for r in range(n)]


@needs_mpi
@pytest.mark.parametrize("n", [1, 4])
def test_processes_connect_under_mpirun(n: int) -> None:
    done = launch(n, CONNECT, launcher="mpirun", check=True)
    assert [line.strip() for line in done] == [f"mpi {r} {n} {r} {n} 0 1 1" for r in range(n)]


@needs_mpi
def test_mpi_names_missing_ranks() -> None:
    script = """
        import time
        from mpi4py import MPI
        from pycollective.comm.bootstrap.detection import detect
        from pycollective.errors import BootstrapError
        if MPI.COMM_WORLD.rank in (1, 2):
            time.sleep(1.5)
        else:
            try:
                detect(timeout=0.5)
            except BootstrapError as error:
                print(error)
        MPI.COMM_WORLD.Abort(0) if MPI.COMM_WORLD.rank == 1 else time.sleep(3)
    """
    done = launch(4, script, launcher="mpirun", timeout=30)
    for r in (0, 3):
        assert "ranks 1, 2 of 4 have not called" in done[r], done.report()


@needs_mpi
def test_mpi4py_initialised_without_variables_is_found() -> None:
    script = """
        from mpi4py import MPI
        from pycollective.comm.bootstrap.detection import detect, launcher
        assert launcher({}) == "mpi"
        found = detect({})
        assert (found.kind, found.rank, found.size) == ("mpi", MPI.COMM_WORLD.rank, 2)
    """
    launch(2, script, launcher="mpirun", check=True)


def test_torchrun_variables_connect_and_restarts_do_not_mix() -> None:
    def rank(r: int, restart: str) -> list[bytes]:
        env = torchrun_variables(r, 2, TORCHELASTIC_RUN_ID="job", TORCHELASTIC_RESTART_COUNT=restart)
        found = detect(env, timeout=10)
        assert found.kind == "torchrun"
        return found.allgather(f"{restart}.{r}".encode())

    actions = [lambda r=r, k=k: rank(r, k) for k in "01" for r in (1, 0)]  # type: ignore[misc]
    zero, one = [b"0.0", b"0.1"], [b"1.0", b"1.1"]
    assert on_threads(actions) == [zero, zero, one, one]


def test_ranks_of_horovods_launchers_connect_and_jobs_do_not_mix() -> None:
    def rank(r: int, port: str) -> tuple[str, list[bytes]]:
        found = detect(horovod_variables(r, 2, HOROVOD_GLOO_RENDEZVOUS_PORT=port), timeout=10)
        return found.kind, found.allgather(f"{port}.{r}".encode())

    ports = [f"{os.getpid()}{k}" for k in "01"]
    actions = [lambda r=r, port=port: rank(r, port) for port in ports for r in (1, 0)]  # type: ignore[misc]
    assert on_threads(actions) == [
        ("horovod", [f"{port}.{r}".encode() for r in (0, 1)]) for port in ports for _ in range(2)
    ]
    assert detect({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}).allgather(b"x") == [b"x"]


def test_tasks_of_srun_connect_and_steps_do_not_mix() -> None:
    def rank(r: int, step: str) -> tuple[str, list[bytes]]:
        found = detect(slurm_variables(r, 2, SLURM_STEP_ID=step), timeout=10)
        return found.kind, found.allgather(f"{step}.{r}".encode())

    actions = [lambda r=r, step=step: rank(r, step) for step in "01" for r in (1, 0)]  # type: ignore[misc]
    assert on_threads(actions) == [("slurm", [f"{step}.{r}".encode() for r in (0, 1)]) for step in "01" for _ in "ab"]


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_processes_connect_under_torchrun(tmp_path: Path) -> None:
    """The real agent, which itself listens on MASTER_PORT."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(CONNECT))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"torchrun {r} 2 {r} 2 0 1 1" for r in range(2)]


def test_torchrun_of_two_hosts_suggests_mpirun() -> None:
    with pytest.raises(BootstrapError, match=r"one host only.*mpirun"):
        detect(torchrun_variables(1, 2), timeout=0.2)
