"""A hostile host on the network of a job across hosts: it learns nothing and changes nothing, on every port."""

from __future__ import annotations

import ast
import ipaddress
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hosts.namespaces import make_hosts
from hosts.simulated import Hosts

import pycollective
from pycollective.bench.namespaces import ENTER

HERE = Path(__file__).parent
TOKEN = "0123456789abcdef" * 2
LISTENS = "0A"
TOUCH = """
import os, sys, time
from pathlib import Path
folder = Path(sys.argv[1])

def note(rank, steps):
    (folder / f"new{rank}").write_text(str(steps))
    (folder / f"new{rank}").rename(folder / f"working{rank}")  # never seen empty
"""
CALLS = """
import numpy as np
import pycollective as pc

comm = pc.init()
steps, stop = 0, False
while not stop:
    x = np.arange(70_000.0) * (comm.rank + 1)
    assert (comm.allreduce(x) == np.arange(70_000.0) * sum(range(1, comm.size + 1))).all()
    part = comm.dup()  # new connections
    assert part.allgather(np.array([comm.rank])).tolist() == [*range(comm.size)]
    part.free()
    steps += 1
    note(comm.rank, steps)
    stop = bool(comm.allreduce(np.array([(folder / "stop").exists()], "i4"), op="max")[0])
print("right after", steps, "steps of", comm.size, flush=True)
"""
LATE = """
rank = os.environ["PYCOLLECTIVE_RANK"]
(folder / f"loaded{rank}").touch()
while rank != "0" and not (folder / "go").exists():  # meanwhile rank 0 listens
    time.sleep(0.01)
"""
TORCHS_PORT = 29400
TORCH_CALLS = """
import torch
import torch.distributed as dist

rank = os.environ["RANK"]
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
    note(rank, steps)
    ended = torch.tensor([float((folder / "stop").exists())])
    dist.all_reduce(ended, dist.ReduceOp.MAX)
    stop = bool(ended)
make_group()
dist.destroy_process_group()
print("right after", steps, "steps of", 2, flush=True)
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


class Job:
    """A job of hosts 0 and 1 that a third one attacks."""

    def __init__(self, hosts: Hosts, folder: Path, script: str) -> None:
        self.hosts, self.folder, self.log = hosts, folder, folder / "log"
        (folder / "job.py").write_text(TOUCH + script)
        self.running: list[subprocess.Popen[bytes]] = []
        self.theirs: set[int] = set()
        """Ports that are not ours."""
        self.tried: set[tuple[str, int]] = set()

    def start(self, host: str, *words: str) -> None:
        """Start the script by a launcher on a host."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYCOLLECTIVE_", "OMPI_", "PMI"))}
        env |= {"PYCOLLECTIVE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-I", "-m", *words, str(self.folder / "job.py"), str(self.folder)]
        with self.log.open("ab") as output:
            self.running.append(self.hosts.popen(host, command, env=env, stdout=output, stderr=output))

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert self.running[0].poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)

    def wait_for(self, *files: str) -> None:
        self.until(lambda: all((self.folder / file).exists() for file in files))

    def attack(self, least: int, then: str, *files: str) -> None:
        """Attack all ports of the job, at least so many; then let it continue until it has made the files, or ends."""
        self.until(lambda: len(self.reachable()) >= least)
        ports = self.reachable()
        with attacked(self.hosts, sorted(ports), self.folder / "trap") as reports:
            for report in reports:
                assert report["received"] == [], report
                assert report["connections"] == 1000, report
            (self.folder / then).touch()
            self.wait_for(*files) if files else self.running[0].wait(60)
        self.tried |= ports

    def reachable(self) -> set[tuple[str, int]]:
        """Our ports that another host can reach: only at the address that was chosen for the host."""
        found = set()
        for host in self.hosts.names[:2]:
            for address, port in listening(self.hosts, host):
                if not ipaddress.ip_address(address).is_loopback and port not in self.theirs:
                    assert address == self.hosts.address(host)
                    found.add((address, port))
        return found

    def steps(self) -> int:
        """The steps of the last rank that has reported."""
        return int(max(self.folder.glob("working?")).read_text())

    def attack_until_it_ends(self, least: int, ranks: int) -> None:
        """It must have gone on, and its ranks' results must be right."""
        before = self.steps()
        self.attack(least, "stop")
        assert [each.wait(60) for each in self.running] == [0] * len(self.running), self.log.read_text()
        text = self.log.read_text()
        assert text.count("right after") == text.count(f"steps of {ranks}") == ranks, text
        assert "generation 2" not in text, text
        assert self.steps() > before
        assert not (self.folder / "trap").exists()
        assert {address for address, _ in self.tried} == {"10.77.0.1", "10.77.0.2"}


def test_a_hostile_host_learns_nothing_and_changes_nothing(tmp_path: Path) -> None:
    with make_hosts(3) as hosts:
        job = Job(hosts, tmp_path, LATE + CALLS)
        job.start("host0", "pycollective", "run", "-H", "host0:2,host1:1", "--rsh", ENTER)
        job.wait_for("loaded0", "loaded1", "loaded2")
        job.attack(1, "go", "working2")  # the rendezvous
        job.attack_until_it_ends(3, ranks=3)  # each rank's listener


def test_a_hostile_host_beside_an_elastic_job(tmp_path: Path) -> None:
    """The driver's port too, to which workers connect."""
    found = tmp_path / "found"
    found.write_text("#!/bin/sh\necho host0:1\necho host1:1\n")
    found.chmod(0o755)
    with make_hosts(3) as hosts:
        job = Job(hosts, tmp_path, CALLS)
        words = ["pycollective", "run", "-np", "2", "--host-discovery-script", str(found), "--rsh", ENTER]
        job.start("host0", *words)
        job.wait_for("working0", "working1")
        job.attack_until_it_ends(3, ranks=2)


@pytest.mark.torch
def test_a_hostile_host_beside_torchrun(tmp_path: Path) -> None:
    """The ports of a torch.distributed job that are ours; those of torch's stores have torch's own protection."""
    pytest.importorskip("torch")
    with make_hosts(3) as hosts:
        job = Job(hosts, tmp_path, TORCH_CALLS)
        words = ["torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
        words += ["--rdzv-endpoint", f"{hosts.address('host0')}:{TORCHS_PORT}"]
        for name in hosts.names[:2]:
            job.start(name, *words, "--local-addr", hosts.address(name))
        job.wait_for("working0", "working1")
        job.theirs = {TORCHS_PORT, int((tmp_path / "store").read_text())}
        job.attack_until_it_ends(4, ranks=2)


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
