"""Hosts without IPv4, not even its loopback: every way to start a job finds addresses and connects."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.namespaces import make_hosts
from hosts.simulated import Hosts
from hosts.test_launchers import finish
from launch import CLI, run_command
from pycollective.bench.namespaces import ENTER

SCRIPTS = {
    "comm": """
import numpy as np
import pycollective as pc
comm = pc.init()
print(f"comm {comm.size} {comm.allreduce(np.ones(1))[0]:g}\\n", end="", flush=True)
""",
    "c10d": """
import torch
import torch.distributed as dist
import pycollective.torch
dist.init_process_group("pycollective")
x = torch.ones(1)
dist.all_reduce(x)
print(f"c10d {dist.get_world_size()} {x.item():g}\\n", end="", flush=True)
dist.destroy_process_group()
""",
}
SCRIPTS["gloo"] = SCRIPTS["c10d"].replace('"pycollective"', '"gloo"').replace("c10d", "gloo")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with make_hosts(2) as made:
        names = ["::1 localhost"]
        for k, name in enumerate(made.names):
            names.append(f"fd77::{k + 1} {name}")
            change = f"""ip -4 addr flush dev eth0; ip addr del 127.0.0.1/8 dev lo
echo 0 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6; ip addr add fd77::{k + 1}/64 dev eth0 nodad"""
            done = subprocess.run(made.command(name, ["sh", "-ec", change]), capture_output=True, text=True)
            if done.returncode != 0:
                pytest.skip(f"needs IPv6: {done.stderr}")
        (made._root / "run/names").write_text("\n".join(names) + "\n")
        yield made


def run(hosts: Hosts, folder: Path, *words: str) -> list[str]:
    command = hosts.command("host0", ["env", "OMP_NUM_THREADS=1", "PYCOLLECTIVE_INIT_TIMEOUT=60", *words])
    return sorted(run_command(*command, timeout=150, cwd=folder).stdout.splitlines())


@pytest.fixture(params=["comm", "c10d"])
def script(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """What a script calls, and its path."""
    if request.param != "comm":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "script.py"
    path.write_text(SCRIPTS[request.param])
    return request.param, str(path)


@pytest.mark.parametrize("script", SCRIPTS, indirect=True)
def test_one_host(hosts: Hosts, script: tuple[str, str], tmp_path: Path) -> None:
    """Gloo gets an interface: by itself it takes 127.0.0.1."""
    what, path = script
    assert run(hosts, tmp_path, *CLI, "run", "-np", "2", path) == [f"{what} 2 2"] * 2


@pytest.mark.parametrize("listed", ["host0:2,host1:1", "host0:1,[fd77::2]:2"])
def test_several_hosts(hosts: Hosts, script: tuple[str, str], tmp_path: Path, listed: str) -> None:
    what, path = script
    shell = tmp_path / "shell"
    shell.write_text(f'#!/bin/sh\n[ "$1" = fd77::2 ] && shift && set -- host1 "$@"\nexec {ENTER} "$@"\n')
    shell.chmod(0o755)
    words = [*CLI, "run", "-H", listed, "--rsh", str(shell), path]
    assert run(hosts, tmp_path, *words) == [f"{what} 3 3"] * 3


@pytest.mark.parametrize("script", ["comm"], indirect=True)
def test_an_elastic_job(hosts: Hosts, script: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "discover").write_text("#!/bin/sh\necho host0:1\necho host1:1\n")
    (tmp_path / "discover").chmod(0o755)
    words = ["--host-discovery-script", str(tmp_path / "discover"), "--rsh", ENTER, script[1]]
    assert run(hosts, tmp_path, *CLI, "run", "-np", "2", *words) == ["comm 2 2"] * 2


@pytest.mark.parametrize("where", ["[fd77::1]:29511", "host0:29511"])
def test_torchrun(hosts: Hosts, script: tuple[str, str], tmp_path: Path, where: str) -> None:
    pytest.importorskip("torch")
    what, path = script
    words = [sys.executable, "-I", "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    words += ["--rdzv-backend", "static", "--rdzv-endpoint", where, "--node-rank"]
    jobs = [(hosts.command(host, [*words, str(rank), path]), {}) for rank, host in enumerate(hosts.names)]
    assert finish(jobs, tmp_path) == [f"{what} 2 2"] * 2
