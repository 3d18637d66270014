"""The world as users create it: init() under every launcher, and the functions of the module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from processes import IMPORTABLE

import pycollective
from launch import CLI, find_mpirun, launch

SCRIPT = """
    import numpy as np
    import pycollective as pc
    assert not pc.is_initialized()
    try:
        pc.rank()
    except pc.CommunicatorError:
        pass
    comm = pc.init()
    assert pc.init() is comm and pc.world() is comm and pc.is_initialized()
    assert (pc.rank(), pc.size()) == (comm.rank, comm.size) == (pc.local_rank(), pc.local_size())
    assert (pc.cross_rank(), pc.cross_size()) == (0, 1)
    n = pc.size()
    assert pc.allreduce(np.ones(5)).tolist() == [n] * 5
    assert pc.broadcast(np.full(3, pc.rank()), n - 1).tolist() == [n - 1] * 3
    assert pc.allgather(np.array([pc.rank()])).tolist() == list(range(n))
    w = pc.empty(10_000, "float32")
    w[:] = pc.rank()
    assert (pc.iallreduce(w, out=w).result() == n * (n - 1) / 2).all()
    assert pc.split(pc.rank() % 2).size == (n + 1 - pc.rank() % 2) // 2
    assert pc.allgather_object(pc.rank()) == list(range(n))
    pc.barrier()
    print("fine", pc.rank(), pc.size(), flush=True)
    pc.shutdown()
    pc.shutdown()
    assert not pc.is_initialized()
"""


MPI = (pytest.mark.mpi, pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun"))


@pytest.mark.parametrize(
    ("launcher", "n"),
    [("alone", 1), ("pycollective", 1), ("pycollective", 4), *(pytest.param("mpirun", n, marks=MPI) for n in (1, 3))],
)
def test_under_every_launcher(launcher: str, n: int) -> None:
    done = launch(n, SCRIPT, launcher=launcher, env=IMPORTABLE, check=True)
    assert list(done) == [f"fine {rank} {n}\n" for rank in range(n)]


@pytest.mark.parametrize("hosts", ["", "a:1,b:1"])
def test_nothing_is_left_open(hosts: str, tmp_path: Path) -> None:
    """Also by a program that frees nothing: Python's development mode reports what is."""
    (tmp_path / "rsh").write_text('export PYCOLLECTIVE_HOST=$1\nshift\nexec sh -c "$*"\n')
    code = "import pycollective as pc; comm = pc.init(); made = comm.dup(); print(made.allreduce(1), end=' ')"
    where = ["-H", hosts, "--rsh", "sh ./rsh"] if hosts else ["-np", "2"]
    command = [*CLI, "run", *where, sys.executable, "-X", "dev", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, ["2", "2"]), done.stderr
    assert "Warning" not in done.stderr


def test_every_public_name_exists() -> None:
    """And importing the module loads nothing: names are loaded on first use."""
    code = "import sys, pycollective; assert 'numpy' not in sys.modules; print(*pycollective.__all__)"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(names) == set(pycollective.__all__)
    for name in names:
        assert getattr(pycollective, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = pycollective.nothing  # type: ignore[attr-defined]
    with pytest.raises(pycollective.CommunicatorError, match="init"):
        pycollective.allreduce(1)
