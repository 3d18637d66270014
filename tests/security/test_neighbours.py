"""A job next to strangers: another user on its host, and another machine on its network (both by network namespaces).

Ranks connect while strangers connect to all that listens, and continue while these hold their connections: Horovod's
API, torch.distributed with new groups through torch's store, and an elastic state with its commits. The results must
be right.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from speed import until

from labs import needs_mpi
from launch import OPEN_MPI_SETTINGS, _launcher, end_job

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
HERE = Path(__file__).parent
NOBODY = "65534"
HOST, NETWORK = "10.231.7.1", "10.231.7.2"

JOB = """
import os, sys, time
from datetime import timedelta
from pathlib import Path

folder = Path(sys.argv[1])
rank = next(os.environ[n] for n in ("PYCOLLECTIVE_RANK", "OMPI_COMM_WORLD_RANK", "RANK") if n in os.environ)

def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.02)

import torch, torch.distributed as dist
import pycollective.torch as hvd

(folder / f"loaded{rank}").touch()
if rank == "1":
    wait_for("go")  # meanwhile rank 0 waits for rank 1 to connect
hvd.init()
dist.init_process_group("pycollective", timeout=timedelta(seconds=60))
me, n = hvd.rank(), hvd.size()
state = hvd.elastic.TorchState(step=0)
store = dist.distributed_c10d._get_default_store()
while hasattr(store, "underlying_store"):
    store = store.underlying_store
(folder / "store").write_text(str(store.port))
(folder / f"ready{rank}").touch()

@hvd.elastic.run
def train(state):
    while True:
        stop = hvd.broadcast(torch.tensor(int((folder / "stop").exists())), 0, name="stop")
        x = torch.arange(1000.0) * (me + 1)
        right = torch.arange(1000.0) * sum(range(1, n + 1))
        assert torch.equal(hvd.allreduce(x, op=hvd.Sum, name="x"), right)
        dist.all_reduce(x)
        assert torch.equal(x, right)
        group = dist.new_group()
        back = torch.empty(3)
        works = [dist.isend(torch.full((3,), float(me)), (me + 1) % n, group=group, tag=state.step)]
        dist.recv(back, (me - 1) % n, group=group, tag=state.step)
        works[0].wait()
        assert back.tolist() == [(me - 1) % n] * 3
        dist.destroy_process_group(group)
        state.step += 1
        state.commit()
        (folder / f"stepped{rank}").touch()
        if stop:
            return state.step

steps = train(state)
assert steps > 1
print("right after", steps, "steps", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def spaces() -> Iterator[tuple[str, str]]:
    """Names of two namespaces with a cable between them: of the job, and of the network next to it."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root, to be another user, and ip (iproute2), to make network namespaces")
    job, network = found = f"pc-job-{os.getpid()}", f"pc-net-{os.getpid()}"
    try:
        for name in found:
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
            if made.returncode != 0:
                pytest.skip(f"network namespaces are not permitted here: {made.stderr.strip()}")
            _ip("-n", name, "link", "set", "lo", "up")
        cable = ["veth0", "netns", job, "type", "veth", "peer", "name", "veth0", "netns", network]
        _ip("link", "add", *cable)
        for name, address in ((job, HOST), (network, NETWORK)):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "veth0")
            _ip("-n", name, "link", "set", "veth0", "up")
        yield found
    finally:
        for name in found:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextmanager
def stranger(space: str, pid: int, addresses: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """A neighbor; calling the yielded object makes it look for new targets, and returns all that it has reached."""
    command = ["ip", "netns", "exec", space, sys.executable, str(HERE / "neighbour.py"), NOBODY, str(pid), addresses]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def look() -> dict[str, Any]:
            process.stdin.write("\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        try:
            yield look
        finally:
            process.kill()


def wait_for(job: subprocess.Popen[bytes], *files: Path) -> None:
    until(lambda: all(file.exists() for file in files) or job.poll() is not None, 60)


@pytest.mark.parametrize("launcher", ["pycollective", "torchrun", pytest.param("mpirun", marks=needs_mpi)])
def test_a_job_beside_strangers(spaces: tuple[str, str], tmp_path: Path, launcher: str) -> None:
    script, log = tmp_path / "job.py", tmp_path / "log"
    script.write_text(JOB)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYCOLLECTIVE_", "OMPI_", "PMI", "PRTE_"))}
    env |= {**OPEN_MPI_SETTINGS, "OMP_NUM_THREADS": "1", "PYCOLLECTIVE_ELASTIC_FILE": str(tmp_path / "commits")}
    program = [sys.executable, str(script), str(tmp_path)]
    command = ["ip", "netns", "exec", spaces[0], *_launcher(launcher, 2, 0), *program]
    with log.open("wb") as output:
        job = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=output, stderr=output, start_new_session=True)
    try:
        wait_for(job, tmp_path / "loaded0", tmp_path / "loaded1")
        if launcher == "mpirun":  # a silent connection to a PMIx port keeps MPI from starting and from ending
            (tmp_path / "go").touch()
            wait_for(job, tmp_path / "ready0", tmp_path / "ready1")
        with (
            stranger(spaces[0], job.pid, f"127.0.0.1,{HOST}") as user,
            stranger(spaces[1], job.pid, HOST) as network,
        ):
            if launcher != "mpirun":  # where ranks connect
                until(lambda: "pycollective/" in str(user()["reached"]) or job.poll() is not None, 30)
            assert job.poll() is None, log.read_text()
            network()
            (tmp_path / "go").touch()
            wait_for(job, tmp_path / "ready0", tmp_path / "ready1")
            user()
            wait_for(job, tmp_path / "stepped0", tmp_path / "stepped1")
            reached, from_network = user(), network()  # also what was opened since, and new groups
            if launcher != "mpirun":
                (tmp_path / "stop").touch()
                job.wait(60)
        (tmp_path / "stop").touch()
        code = job.wait(60)
    finally:
        end_job(job)
    text = log.read_text()
    assert reached["opened"] == from_network["opened"] == [], "a stranger has opened our memory"
    if code != 0 and launcher != "pycollective":  # torch's port or MPI's has failed: then ranks report it
        assert "Error" in text, text
        return
    assert code == 0 and text.count("right after") == 2, text
    assert (tmp_path / "commits").stat().st_mode & 0o777 == 0o600
    if launcher != "torchrun":  # whose agent serves the store
        port = (tmp_path / "store").read_text()
        assert f"127.0.0.1 {port}" in reached["reached"]
        assert f"{HOST} {port}" not in {*reached["reached"], *from_network["reached"]}
    if launcher == "pycollective":
        assert from_network["reached"] == {}, "a port of ours is open to the network"
