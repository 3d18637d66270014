"""The engine among ranks that share no memory: half of them believe that they live on another machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from core.processes import IMPORTABLE

from launch import OPEN_MPI_SETTINGS, find_mpirun

CASE = """
import sys
from dataclasses import replace
import numpy as np, pycollective as pc
from engine.operations import SECONDS, play, random_phases
from engine.test_join import uneven
from pycollective.engine import Engine, Item
comm = pc.init()
assert comm.cross_size == 2, comm
engine = Engine(comm)
n, me = engine.size, engine.rank

phases = random_phases(3, phases=8, most=25)
phases = [[[replace(one, window=False) for one in group] for group in groups] for groups in phases]
play(engine, phases, 3)

for turn in range(3):
    works = engine.submit([Item("allreduce", "before", np.ones(5))])
    works += engine.submit([Item("allreduce", "odd", np.ones(3 + (me == n - 1)))])
    works += engine.submit([Item("allreduce", "after", np.ones(5))])
    try:
        works[1].wait(SECONDS)
    except pc.MismatchError as error:
        assert "odd" in str(error) and "(3,)" in str(error) and "(4,)" in str(error), error
    else:
        raise AssertionError("not told")
    assert works[0].wait(SECONDS).sum() == works[2].wait(SECONDS).sum() == 5 * n

engine.submit([Item("allreduce", "twice", np.ones(2))])
try:
    engine.submit([Item("allreduce", "twice", np.ones(2))])
except ValueError:
    pass
engine.run([Item("barrier", "all are here")])

assert uneven(engine, me + 1) == n - 1
assert uneven(engine, me + 1) == n - 1
got = engine.run([Item("adasum", "adasum", np.eye(n)[me])])[0]
assert np.allclose(got, 1), got

if me == 1:  # nobody else has this
    left = engine.submit([Item("allreduce", "lonely", np.ones(2))])[0]
engine.close()
try:
    engine.submit([Item("allreduce", "late", np.ones(2))])
except pc.CommunicatorError:
    print("fine", flush=True)
if me == 1:
    try:
        left.wait(SECONDS)
    except pc.CommunicatorError:
        pass
"""


@pytest.mark.mpi
@pytest.mark.parametrize("threshold", ["", "1000"])
def test_two_hosts(tmp_path: Path, threshold: str) -> None:
    """`unshare -u` gives two of four ranks a host name of their own."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-u", "true"], capture_output=True).returncode:
        pytest.skip("needs unshare -u (root, or user namespaces)")
    mpirun = find_mpirun()
    assert mpirun is not None
    script = tmp_path / "case.py"
    script.write_text(CASE)
    here = ["-np", "2", sys.executable, str(script)]
    there = ["-np", "2", "unshare", "-u", "sh", "-c", f"hostname elsewhere && exec {sys.executable} {script}"]
    command = [mpirun, "--bind-to", "none", *here, ":", *there]
    environment = {**os.environ, **OPEN_MPI_SETTINGS, **IMPORTABLE, "HOROVOD_FUSION_THRESHOLD": threshold}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("fine") == 4
