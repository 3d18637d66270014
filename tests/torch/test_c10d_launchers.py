"""Scripts under torchrun, mpirun, `pycollective run` and a plain loop find each other with the same two lines."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from launch import find_mpirun, launch

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
needs_mpi = [pytest.mark.mpi, pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")]
LAUNCHERS = ["pycollective", pytest.param("mpirun", marks=needs_mpi)]

SCRIPT = """
import sys, torch, torch.distributed as dist
import pycollective.torch

dist.init_process_group("pycollective", **eval(sys.argv[1]) if len(sys.argv) > 1 else {})
x = torch.tensor([float(dist.get_rank()), 1.0])
dist.all_reduce(x)
even = dist.new_group(range(0, dist.get_world_size(), 2))
if dist.get_rank() % 2 == 0:
    dist.all_reduce(x, group=even)
print(dist.get_rank(), *x.tolist())
dist.all_reduce(x, async_op=True).get_future().then(lambda f: None)  # and ends without a word
"""


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("how", ["{}", "dict(init_method='pycollective://')"])
def test_under_other_launchers(launcher: str, how: str) -> None:
    ran = launch(3, SCRIPT, how, launcher=launcher).check()
    assert ran.outputs == ["0 6.0 6.0\n", "1 3.0 3.0\n", "2 6.0 6.0\n"], ran.report()
    assert "Error" not in ran.stderr and "terminate" not in ran.stderr


def test_alone() -> None:
    ran = launch(1, SCRIPT, "dict(init_method='pycollective://')", launcher="alone").check()
    assert ran[0] == "0 0.0 1.0\n"
    told = launch(1, SCRIPT, launcher="alone")
    assert told.returncode != 0 and "RANK" in told.stderr  # torch's own words


AGAIN = """
import os, sys, torch, torch.distributed as dist
import pycollective.torch
for i in range(3):
    dist.init_process_group("pycollective")
    x = torch.tensor([float(i)])
    child = os.fork()
    if child == 0:
        sys.exit(0)  # runs what is to be run at exit, but the group is its parent's
    os.waitpid(child, 0)
    dist.all_reduce(x)
    assert x == 2 * i
    dist.destroy_process_group()
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    dist.init_process_group("pycollective")
    os._exit(3)
dist.init_process_group("pycollective")
try:
    dist.all_reduce(x)
except RuntimeError as error:
    assert "rank 1 is gone" in str(error), error
    raise
open(os.path.join(sys.argv[1], os.environ["RANK"]), "w").write(os.environ["TORCHELASTIC_RESTART_COUNT"])
"""


def test_under_torchrun_again_and_again() -> None:
    """Three groups one after the other; then a rank dies, torchrun starts all of them anew, and they meet again."""
    with tempfile.TemporaryDirectory(prefix="pycollective-test-") as folder:
        ran = torchrun(2, AGAIN, folder, "--max-restarts", "1")
        assert ran.returncode == 0, ran.stderr
        assert [Path(folder, rank).read_text() for rank in "01"] == ["1", "1"]


def torchrun(n: int, source: str, folder: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = Path(folder, "script.py")
    script.write_text(source)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n), *options]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYCOLLECTIVE_")} | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, str(script), folder], cwd=folder, env=env, capture_output=True, text=True, timeout=100
    )
