"""A hostile host on the network of a job across hosts: it learns nothing and changes nothing, on every port."""

from __future__ import annotations

import ast
import contextlib
import ipaddress
import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hosts.namespaces import make_hosts

import pycollective
from pycollective.bench.ranks.namespaces import ENTER, Hosts

HERE = Path(__file__).parent
TOKEN = "0123456789abcdef" * 2
LISTENS = "0A"
JOB = """
import sys, time
from pathlib import Path
import numpy as np
import pycollective as pc
import os

folder, rank = Path(sys.argv[1]), os.environ["PYCOLLECTIVE_RANK"]
(folder / f"loaded{rank}").touch()
while rank != "0" and not (folder / "go").exists():  # meanwhile rank 0 listens
    time.sleep(0.01)
comm = pc.init()
steps, stop = 0, False
while not stop:
    x = np.arange(70_000.0) * (comm.rank + 1)
    assert (comm.allreduce(x) == np.arange(70_000.0) * sum(range(1, comm.size + 1))).all()
    part = comm.dup()  # new connections
    assert part.allgather(np.array([comm.rank])).tolist() == [*range(comm.size)]
    part.free()
    steps += 1
    (folder / f"new{rank}").write_text(str(steps))
    (folder / f"new{rank}").rename(folder / f"working{rank}")  # never seen empty
    stop = bool(comm.allreduce(np.array([(folder / "stop").exists()], "i4"), op="max")[0])
print("right after", steps, "steps", flush=True)
"""


TORCHS_PORT = 29400
TORCH_JOB = """
import os, sys
from pathlib import Path
import torch
import torch.distributed as dist

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
(folder / "store").write_text(os.environ["MASTER_PORT"])
dist.init_process_group("pycollective")
def make_group():  # new connections
    group = dist.new_group([1, 0])
    part = [torch.zeros(1), torch.zeros(1)]
    dist.all_gather(part, torch.full((1,), float(rank)), group=group)
    assert [float(each) for each in part] == [0, 1]
    return group

steps, stop, group = 0, False, make_group()
while not stop:
    x = torch.arange(70_000.0) * (dist.get_rank() + 1)
    dist.all_reduce(x)
    assert torch.equal(x, torch.arange(70_000.0) * 3)
    steps += 1
    (folder / f"new{rank}").write_text(str(steps))
    (folder / f"new{rank}").rename(folder / f"working{rank}")  # never seen empty
    ended = torch.tensor([float((folder / "stop").exists())])
    dist.all_reduce(ended, dist.ReduceOp.MAX)
    stop = bool(ended)
make_group()
dist.destroy_process_group()
print("right after", steps, "steps", flush=True)
"""


def listening(hosts: Hosts, host: str) -> set[tuple[str, int]]:
    """Addresses and ports of all listening sockets of all processes of a host, from the kernel's tables."""
    found = set()
    for family in ("tcp", "tcp6"):
        for line in hosts.network_table(host, family).splitlines()[1:]:
            row = line.split()
            if row[3] == LISTENS:
                digits, _, port = row[1].partition(":")
                words = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
                found.add((str(ipaddress.ip_address(b"".join(words))), int(port, 16)))
    return found


@contextmanager
def attacked(hosts: Hosts, ports: list[tuple[str, int]], trap: Path) -> Iterator[list[dict[str, object]]]:
    """What a hostile host reports of its attacks on these ports, while it holds its connections."""
    words = [sys.executable, str(HERE / "hostile.py"), TOKEN, str(trap), *(f"{a}:{p}" for a, p in ports)]
    with hosts.popen(hosts.names[-1], words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield [json.loads(process.stdout.readline()) for _ in ports]
        finally:
            process.kill()  # the attack ends with its standard input


def wait_for(job: subprocess.Popen[bytes], log: Path, *files: Path) -> None:
    until = time.monotonic() + 60
    while not all(file.exists() for file in files):
        assert job.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(0.02)


def test_a_hostile_host_learns_nothing_and_changes_nothing(tmp_path: Path) -> None:
    with make_hosts(3) as hosts:
        script, log, trap = tmp_path / "job.py", tmp_path / "log", tmp_path / "trap"
        script.write_text(JOB)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYCOLLECTIVE_", "OMPI_", "PMI"))}
        env |= {"PYCOLLECTIVE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-I", "-m", "pycollective", "run", "-H", "host0:2,host1:1", "--rsh", ENTER]
        with log.open("wb") as output:
            job = hosts.popen("host0", [*words, str(script), str(tmp_path)], env=env, stdout=output, stderr=output)
        wait_for(job, log, *(tmp_path / f"loaded{rank}" for rank in range(3)))
        tried = _attack_all(hosts, job, log, tmp_path, trap, 1, "go", "working2")  # the rendezvous
        before = int((tmp_path / "working2").read_text())
        tried |= _attack_all(hosts, job, log, tmp_path, trap, 3, "stop")  # each rank's listener
        assert job.wait(60) == 0, log.read_text()
        text = log.read_text()
        assert text.count("right after") == 3, text
        assert int((tmp_path / "working2").read_text()) > before
        assert not trap.exists()
        assert {address for address, _ in tried} == {"10.77.0.1", "10.77.0.2"}


ELASTIC_JOB = """
import sys
from pathlib import Path
import numpy as np
import pycollective as pc

folder = Path(sys.argv[1])
comm = pc.init()
steps, stop = 0, False
while not stop:
    assert (comm.allreduce(np.ones(70_000)) == comm.size).all()
    comm.dup().free()  # new connections
    steps += 1
    (folder / f"new{comm.rank}").write_text(str(steps))
    (folder / f"new{comm.rank}").rename(folder / f"working{comm.rank}")  # never seen empty
    stop = bool(comm.allreduce(np.array([(folder / "stop").exists()], "i4"), op="max")[0])
print("right after", steps, "steps of", comm.size, flush=True)
"""


def test_a_hostile_host_beside_an_elastic_job(tmp_path: Path) -> None:
    """The driver's port too, to which workers connect."""
    with make_hosts(3) as hosts:
        script, log, trap, found = (tmp_path / name for name in ("job.py", "log", "trap", "found"))
        script.write_text(ELASTIC_JOB)
        found.write_text("#!/bin/sh\necho host0:1\necho host1:1\n")
        found.chmod(0o755)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYCOLLECTIVE_", "OMPI_", "PMI"))}
        env |= {"PYCOLLECTIVE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-I", "-m", "pycollective", "run", "-np", "2", "--host-discovery-script", str(found)]
        with log.open("wb") as output:
            job = hosts.popen(
                "host0", [*words, "--rsh", ENTER, str(script), str(tmp_path)], env=env, stdout=output, stderr=output
            )
        wait_for(job, log, tmp_path / "working0", tmp_path / "working1")
        before = int((tmp_path / "working1").read_text())
        tried = _attack_all(hosts, job, log, tmp_path, trap, 3, "stop")
        assert job.wait(60) == 0, log.read_text()
        text = log.read_text()
        assert text.count("steps of 2") == 2 and "generation 2" not in text, text
        assert int((tmp_path / "working1").read_text()) > before
        assert not trap.exists()
        assert {address for address, _ in tried} == {"10.77.0.1", "10.77.0.2"}


@pytest.mark.torch
def test_a_hostile_host_beside_torchrun(tmp_path: Path) -> None:
    """The ports of a torch.distributed job that are ours; those of torch's stores have torch's own protection."""
    pytest.importorskip("torch")
    with make_hosts(3) as hosts:
        script, log, trap = tmp_path / "job.py", tmp_path / "log", tmp_path / "trap"
        script.write_text(TORCH_JOB)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYCOLLECTIVE_", "OMPI_", "PMI"))}
        env |= {"PYCOLLECTIVE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-I", "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts.address('host0')}:{TORCHS_PORT}"]
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(log.open("wb"))
            first, second = (
                hosts.popen(
                    name, [*words, "--local-addr", hosts.address(name), str(script), str(tmp_path)],
                    env=env, stdout=output, stderr=output,
                )
                for name in hosts.names[:2]
            )  # fmt: skip
            wait_for(first, log, tmp_path / "working0", tmp_path / "working1")
            before = int((tmp_path / "working1").read_text())
            theirs = {TORCHS_PORT, int((tmp_path / "store").read_text())}
            tried = _attack_all(hosts, first, log, tmp_path, trap, 4, "stop", theirs=theirs)
            assert (first.wait(60), second.wait(60)) == (0, 0), log.read_text()
        text = log.read_text()
        assert text.count("right after") == 2, text
        assert int((tmp_path / "working1").read_text()) > before
        assert not trap.exists()
        assert {address for address, _ in tried} == {"10.77.0.1", "10.77.0.2"}


def _attack_all(
    hosts: Hosts,
    job: subprocess.Popen[bytes],
    log: Path,
    folder: Path,
    trap: Path,
    least: int,
    then: str,
    *files: str,
    theirs: Collection[int] = (),
) -> set[tuple[str, int]]:
    """Attack all ports of the job but `theirs`, at least so many, then let it continue; the ports."""
    until = time.monotonic() + 60
    while len(ports := _reachable(hosts, theirs)) < least:
        assert job.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(0.02)
    with attacked(hosts, sorted(ports), trap) as reports:
        for report in reports:
            assert report["received"] == [], report
            assert report["connections"] == 1000, report
        (folder / then).touch()
        wait_for(job, log, *(folder / file for file in files))
        if not files:
            job.wait(60)
    return ports


def _reachable(hosts: Hosts, theirs: Collection[int]) -> set[tuple[str, int]]:
    """The ports of the job but `theirs` that another host can reach: only at the address that was chosen for it."""
    found = set()
    for host in hosts.names[:2]:
        for address, port in listening(hosts, host):
            if not ipaddress.ip_address(address).is_loopback and port not in theirs:
                assert address == hosts.address(host)
                found.add((address, port))
    return found


BEFORE_THE_TOKEN = [
    "comm/bootstrap", "comm/hosts", "cli/launch", "torch/distributed/bootstrap/across_hosts.py",
    "torch/distributed/point_to_point/hosts_mailbox.py",
]  # fmt: skip


def test_what_reads_connections_neither_unpickles_nor_decompresses() -> None:
    package = Path(pycollective.__file__).parent
    files = [file for name in BEFORE_THE_TOKEN for file in ([*(package / name).rglob("*.py")] or [package / name])]
    assert len(files) > 20
    for file in files:
        names = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in [*(alias.name for alias in node.names), getattr(node, "module", None) or ""]
        }
        bad = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "zlib", "gzip", "bz2", "lzma", "multiprocessing"}
        assert not names & bad - ({"zlib"} if file.name == "across_hosts.py" else set()), file  # its crc32
