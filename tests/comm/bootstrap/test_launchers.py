"""Ranks of each launcher connect: with the real launcher if installed, else with its variables."""

from __future__ import annotations

import http.server
import importlib.util
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from launch import find_mpirun, launch
from meeting import horovod_variables, on_ranks, slurm_variables, torchrun_variables
from pycollective.comm.bootstrap import across_hosts, stores
from pycollective.comm.bootstrap.detection import detect
from pycollective.comm.hosts.network import job_token
from pycollective.errors import BootstrapError

needs_mpi = pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")

CONNECT = """
    from pycollective.comm.bootstrap.detection import detect
    from pycollective.comm.bootstrap.nodes import discover
    b = detect()
    first = b.allgather(str(b.rank).encode() * (b.rank + 1))
    assert first == [str(r).encode() * (r + 1) for r in range(b.size)], first
    assert b.allgather(b"") == [b""] * b.size
    big = b.allgather(bytes([b.rank]) * 1_000_000)
    assert all(big[r] == bytes([r]) * 1_000_000 for r in range(b.size))
    n, _ = discover(b)
    print(b.kind, b.rank, b.size, n.local_rank, n.local_size, n.cross_rank, n.cross_size, n.count)
    b.close()
    b.close()
"""


needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


@pytest.mark.parametrize(
    ("launcher", "kind"),
    [
        ("pycollective", "pycollective"),
        pytest.param("mpirun", "mpi", marks=needs_mpi),
        pytest.param("torchrun", "torchrun", marks=[pytest.mark.torch, needs_torch]),  # it listens on MASTER_PORT
    ],
)
@pytest.mark.parametrize("n", [1, 4])
def test_processes_connect_under(launcher: str, kind: str, n: int) -> None:
    done = launch(n, CONNECT, launcher=launcher, check=True)
    assert [line.strip() for line in done] == [f"{kind} {r} {n} {r} {n} 0 1 1" for r in range(n)]


@needs_mpi
def test_a_stopped_rank_does_not_hold_the_others_in_mpi_finalize() -> None:
    script = """
        import os, signal
        import pycollective
        comm = pycollective.init()
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        comm.barrier()
    """
    done = launch(2, script, launcher="mpirun", env={"PYCOLLECTIVE_TIMEOUT": "1"}, timeout=30)
    assert done.returncode and "TimeoutError" in done.report() and "the process of rank 1 is stopped" in done.report()


@needs_mpi
def test_an_error_ends_a_job_under_mpirun_while_other_ranks_compute() -> None:
    script = """
        import time
        import pycollective
        comm = pycollective.init()
        comm.barrier()
        if comm.rank == 1:
            raise ValueError("of rank 1")
        time.sleep(300)
    """
    done = launch(2, script, launcher="mpirun")
    assert done.returncode and "ValueError: of rank 1" in done.report()


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


@pytest.mark.parametrize(
    ("kind", "variables", "job"),
    [
        ("torchrun", torchrun_variables, "TORCHELASTIC_RESTART_COUNT"),
        ("horovod", horovod_variables, "HOROVOD_GLOO_RENDEZVOUS_PORT"),
        ("slurm", slurm_variables, "SLURM_STEP_ID"),
    ],
)
def test_ranks_connect_and_jobs_do_not_mix(kind: str, variables: Callable[..., dict[str, str]], job: str) -> None:
    jobs = [f"{os.getpid()}{k}" for k in "01"]

    def rank(number: int) -> tuple[str, list[bytes]]:
        r, which = number % 2, jobs[number // 2]
        found = detect(variables(r, 2, **{job: which}), timeout=10)
        return found.kind, found.allgather(f"{which}.{r}".encode())

    assert on_ranks(range(4), rank) == [(kind, [f"{job}.{r}".encode() for r in (0, 1)]) for job in jobs for _ in "01"]


def test_a_single_rank_of_horovod_needs_no_address() -> None:
    assert detect({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}).allgather(b"x") == [b"x"]


TOKEN = "0123456789abcdef" * 2


class KeyValueServer(http.server.BaseHTTPRequestHandler):
    """As Horovod's launchers serve: PUT and GET of /SCOPE/KEY, 404 while a key is missing."""

    values: ClassVar[dict[str, bytes]] = {}

    def do_PUT(self) -> None:
        self.values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        value = self.values.get(self.path)
        self.send_response(404 if value is None else 200)
        self.send_header("Content-Length", str(len(value or b"")))
        self.end_headers()
        self.wfile.write(value or b"")

    def log_message(self, *_: object) -> None:
        pass


def test_horovods_ranks_of_several_hosts_connect_through_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(across_hosts, "_fresh", lambda job: job)  # ranks are threads here
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), KeyValueServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = str(server.server_address[1])

        def rank(r: int) -> list[bytes]:
            more = {"HOROVOD_LOCAL_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_PORT": port, "PYCOLLECTIVE_TOKEN": TOKEN}
            found = detect(horovod_variables(r, 4) | more, timeout=10)
            assert (found.kind, job_token({}, found).hex()) == ("horovod", TOKEN)
            return found.allgather(b"%d" % r)

        assert on_ranks(range(4), rank) == [[b"0", b"1", b"2", b"3"]] * 4
        server.shutdown()
    with pytest.raises(BootstrapError, match=rf"cannot reach the server of Horovod's launcher at 127.0.0.1:{port}"):
        rank(1)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("", ""), ("a", "a"), ("a,b", "a"), ("n[07-09,12],x", "n07"), ("n[3,5]-ib,x", "n3-ib"), ("x,n[1-2]", "x")],
)
def test_the_first_node_of_slurms_lists(nodes: str, first: str) -> None:
    assert across_hosts.first_node(nodes) == first


def test_a_token_missing_on_one_host_is_named() -> None:
    values: dict[str, bytes] = {}
    store: Any = SimpleNamespace(where="a store", set=values.__setitem__, get=lambda key, deadline: values[key])
    exchange = [stores.StoreExchange(store, r, 2, "torchrun", "job", 0.0) for r in range(2)]
    assert stores.token_from(exchange[0], {"PYCOLLECTIVE_TOKEN": TOKEN}).hex() == TOKEN
    assert TOKEN.encode() not in values.values()
    with pytest.raises(BootstrapError, match="PYCOLLECTIVE_TOKEN is set for rank 0, but not for rank 1 on host"):
        stores.token_from(exchange[1], {})
    assert stores.token_from(exchange[0], {}) == stores.token_from(exchange[1], {})


def test_torchrun_without_its_local_size_is_taken_to_be_on_one_host() -> None:
    with pytest.raises(BootstrapError, match=r"rank 0 of 2 has not arrived.*without LOCAL_WORLD_SIZE"):
        detect(torchrun_variables(1, 2), timeout=0.2)
