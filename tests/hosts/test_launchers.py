"""One training script under every way to start a job on two hosts: the weights of one host, bit by bit."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from comm.bootstrap.test_launchers import KeyValueServer

from launch import CLI, needs, on_two_host_names
from pycollective.cli.launch.one_host import held_port

TRAINING = """
import hashlib
import numpy as np
import pycollective as pc
comm = pc.init()
rng = np.random.default_rng(comm.rank)
x, w = rng.standard_normal((64, 500)).astype("f4"), np.zeros(500, "f4")
y = x @ np.linspace(-1, 1, 500, dtype="f4")
for step in range(20):
    w -= np.float32(0.01) * comm.allreduce(x.T @ (x @ w - y) / np.float32(64), op="avg")
pc.shutdown()
again = pc.init().allgather(np.array([comm.rank])).tolist()  # in the launcher's store too, if it has one
print(f"{again} {hashlib.sha256(w.tobytes()).hexdigest()}\\n", end="", flush=True)  # in one piece
"""
WITH_AN_INTERFACE = ("unshare", "-n", "-m", "sh", "-c", """
mount -t sysfs none /sys && ip link set lo up && ip link add local type veth peer other &&
ip addr add 10.77.0.1/24 dev local && ip link set local up && ip link set other up &&
exec "$@\"""", "-")  # fmt: skip
TOKEN = "0123456789abcdef" * 2


def finish(jobs: Sequence[tuple[Sequence[object], Mapping[str, str]]], folder: Path) -> list[str]:
    """Run commands at the same time, each with more variables; their lines."""
    ended = {"cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen([*map(str, command)], env=os.environ | {"OMP_NUM_THREADS": "1"} | env, **ended)  # type: ignore[call-overload]
        for command, env in jobs
    ]
    end = threading.Timer(100, lambda: [process.kill() for process in processes])  # and show what each has printed
    end.start()
    heard = [process.communicate() for process in processes]
    end.cancel()
    assert [process.returncode for process in processes] == [0] * len(jobs), heard
    return [line for out, _ in heard for line in out.splitlines()]


def each_rank(folder: Path, variables: Callable[[int], Mapping[str, str]]) -> list[str]:
    """The script on four ranks, which their launcher's variables and PYCOLLECTIVE_HOST tell where they are."""
    command = [sys.executable, "-I", "script.py"]
    shared = {"PYCOLLECTIVE_TOKEN": TOKEN}
    return finish([(command, {**shared, "PYCOLLECTIVE_HOST": f"h{r // 2}", **variables(r)}) for r in range(4)], folder)


def ours(folder: Path) -> list[str]:
    (folder / "rsh").write_text('export PYCOLLECTIVE_HOST=$1\nshift\nexec sh -c "$*"\n')
    return finish([([*CLI, "run", "-H", "a:2,b:2", "--rsh", "sh ./rsh", "script.py"], {})], folder)


def mpirun(folder: Path) -> list[str]:
    words, env = [sys.executable, "-I", folder / "script.py"], {}
    if os.environ.get("PYCOLLECTIVE_LINK") == "ucx":  # Open MPI's, 1.20, takes the loopback's peers for unreachable
        env["PYCOLLECTIVE_INTERFACE"] = "local"
    done = on_two_host_names(words, folder, env, prefix=WITH_AN_INTERFACE if env else ())
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def torchrun(folder: Path, *options: str) -> list[str]:
    needs("torch")
    command = [sys.executable, "-I", "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    with held_port("127.0.0.1") as port:
        where = [option.replace("PORT", str(port)) for option in options]
        jobs = [([*command, "--node-rank", k, *where, "script.py"], {"PYCOLLECTIVE_HOST": f"h{k}"}) for k in (0, 1)]
        return finish(jobs, folder)


def torchrun_c10d(folder: Path) -> list[str]:
    return torchrun(folder, "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:PORT")


def torchrun_static(folder: Path) -> list[str]:
    return torchrun(folder, "--master-addr", "127.0.0.1", "--master-port", "PORT")


def srun(folder: Path) -> list[str]:
    """The variables that srun of Slurm 22.05 sets for `srun -N2 -n4` on nodes of four cores: three ranks on one."""
    job = {"SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2", "SLURM_NPROCS": "4", "SLURM_NTASKS": "4"}
    job |= {"SLURM_TASKS_PER_NODE": "3,1", "SLURM_JOB_NODELIST": "127.0.0.[1-2]", "SLURM_NODELIST": "127.0.0.[1-2]"}
    job |= {"SLURM_JOBID": str(os.getpid()), "SLURM_JOB_ID": str(os.getpid()), "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}
    job |= {"SLURM_STEPID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "127.0.0.[1-2]"}
    job |= {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "3,1"}

    def of(rank: int) -> dict[str, str]:
        node = rank // 3
        mine = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % 3), "SLURM_NODEID": str(node)}
        return {**job, **mine, "SLURM_GTIDS": ("0,1,2", "3")[node], "PYCOLLECTIVE_HOST": f"h{node}"}

    return each_rank(folder, of)


def horovod(folder: Path) -> list[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), KeyValueServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        job = {"HOROVOD_SIZE": "4", "HOROVOD_LOCAL_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1"}
        job |= {"HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_address[1])}
        found = each_rank(folder, lambda rank: {**job, "HOROVOD_RANK": str(rank)})
        server.shutdown()
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the ranks of one host print."""
    folder = tmp_path_factory.mktemp("one_host")
    (folder / "script.py").write_text(TRAINING)
    lines = finish([([*CLI, "run", "-np", "4", "script.py"], {})], folder)
    assert len(set(lines)) == 1 and lines[0].startswith("[0, 1, 2, 3] ")
    return lines


@pytest.mark.mpi
@pytest.mark.parametrize("way", [ours, mpirun, torchrun_c10d, torchrun_static, srun, horovod])
def test_training_gives_the_bits_of_one_host(
    tmp_path: Path, way: Callable[[Path], list[str]], expected: list[str]
) -> None:
    (tmp_path / "script.py").write_text(TRAINING)
    assert way(tmp_path) == expected
