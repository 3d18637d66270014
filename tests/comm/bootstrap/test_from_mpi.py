"""from_mpi: communicators from those of mpi4py, on one host and on several."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import pycollective as pc
from launch import find_mpirun, launch, on_two_host_names

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")]

CASE = """
import numpy as np, pycollective as pc, pytest
from mpi4py import MPI
world = MPI.COMM_WORLD
me, n = world.rank, world.size
everyone = pc.from_mpi(world)
assert (everyone.rank, everyone.size, everyone.world_ranks) == (me, n, tuple(range(n)))
assert everyone.allreduce(np.ones(3)).tolist() == [n] * 3

part = world.Split(0 if me in (1, n - 1) else MPI.UNDEFINED, -me)  # the last rank first
if part != MPI.COMM_NULL:
    comm = pc.from_mpi(part)
    assert (comm.rank, comm.world_ranks) == (part.rank, (n - 1, 1)), comm.world_ranks
    part.Free()  # the communicator has a duplicate
    assert comm.allgather(np.array([me])).tolist() == [n - 1, 1]
    assert comm.dup().allgather_object({"rank": me}) == [{"rank": n - 1}, {"rank": 1}]
    comm.free()
    comm.free()
    with pytest.raises(pc.CommunicatorError):
        comm.barrier()
world.Barrier()
assert not pc.is_initialized()
for wrong, error in ((3, TypeError), (MPI.COMM_NULL, ValueError)):
    with pytest.raises(error, match="comm"):
        pc.from_mpi(wrong)
inter = MPI.COMM_WORLD.Split(me % 2).Create_intercomm(0, MPI.COMM_WORLD, 1 - me % 2)
with pytest.raises(ValueError):
    pc.from_mpi(inter)
single = pc.from_mpi(MPI.COMM_SELF)
assert single.size == 1 and single.world_ranks == (me,) and single.allreduce(2.0) == 2
assert pc.init().size == n and everyone.broadcast_object(me, 2) == 2  # independent of each other
everyone.free()
print("fine", flush=True)
"""


@pytest.mark.parametrize("n", [3, 4])
def test_on_one_host(n: int) -> None:
    assert list(launch(n, CASE, launcher="mpirun", check=True)) == ["fine\n"] * n


def test_between_hosts(tmp_path: Path) -> None:
    script = tmp_path / "case.py"
    script.write_text(CASE)
    done = on_two_host_names([sys.executable, script], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("fine") == 4


@pytest.mark.parametrize(
    ("call", "name"), [("pc.from_mpi(world, timeout=0.5)", "from_mpi"), ("basics.init(world)", "init")]
)
def test_ranks_that_do_not_call_are_named(call: str, name: str) -> None:
    script = f"""
        from mpi4py import MPI
        import pycollective as pc
        from pycollective.hvd import basics
        world = MPI.COMM_WORLD
        try:
            if world.rank not in (1, 2):
                {call}
        except pc.BootstrapError as error:
            assert "ranks 1, 2 of 4 have not called pycollective.{name}()" in str(error), error
            print("named", flush=True)
        world.Barrier()
    """
    env = {"PYCOLLECTIVE_INIT_TIMEOUT": "0.5" if name == "init" else "60"}
    assert [*launch(4, script, launcher="mpirun", env=env, check=True)] == ["named\n", "", "", "named\n"]


def test_after_mpi_was_finalized() -> None:
    script = """
        from mpi4py import MPI
        import pycollective
        MPI.Finalize()
        try:
            pycollective.from_mpi(MPI.COMM_WORLD)
        except pycollective.BootstrapError as error:
            assert "MPI is not running in this process" in str(error)
            print("refused", flush=True)
    """
    assert list(launch(1, script, launcher="mpirun", check=True)) == ["refused\n"]


def test_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)  # as if it were not installed
    with pytest.raises(pc.BootstrapError, match="mpi4py"):
        pc.from_mpi(object())
