"""The bootstraps of jobs on several hosts without MPI, by launcher: where rank 0 listens, and the token."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Mapping
from urllib.parse import urlsplit

from pycollective import settings
from pycollective.comm.bootstrap.launchers import SETTERS
from pycollective.comm.bootstrap.sockets.authentication import parse_token
from pycollective.comm.bootstrap.stores import HorovodStore, StoreExchange, TorchStore, meet_through, token_from
from pycollective.comm.bootstrap.tcp import TcpBootstrap, meet_at
from pycollective.errors import BootstrapError

_FIRST_PORT, _PORTS = 20000, 10000
"""The ports for rank 0 of Slurm's jobs: srun offers no store, so that the port follows from the job's number."""


_inits: Counter[str] = Counter()
"""How often this process has joined a job: as often as the others, since that is collective."""


def own(env: Mapping[str, str], rank: int, size: int, timeout: float) -> TcpBootstrap:
    """`pycollective run -H`: the launcher has chosen the address and made the token."""
    name = env["PYCOLLECTIVE_RENDEZVOUS"]
    try:
        parts = urlsplit(name)
        host, port = parts.hostname or "", parts.port or 0
    except ValueError:
        host, port = "", 0
    if not host or not port:
        raise BootstrapError(f"PYCOLLECTIVE_RENDEZVOUS={name!r} is not tcp://ADDRESS:PORT/JOB")
    token, meet = _required_token(env, "pycollective"), meet_at(rank, host, port)
    return TcpBootstrap(rank, size, kind="pycollective", job=name, token=token, meet=meet, timeout=timeout)


def torchrun(env: Mapping[str, str], rank: int, size: int, timeout: float, job: str) -> TcpBootstrap:
    """torchrun --nnodes: through its own store, which also distributes the token unless the user has set one."""
    store = TorchStore.of_torchrun(env, rank, timeout)
    exchange = StoreExchange(store, rank, size, "torchrun", _fresh(f"pycollective-{job}"), timeout)
    token, meet = token_from(exchange, env), meet_through(exchange, env)
    return TcpBootstrap(rank, size, kind="torchrun", job=job, token=token, meet=meet, timeout=timeout)


def horovod(env: Mapping[str, str], rank: int, size: int, timeout: float) -> TcpBootstrap:
    """Horovod's launchers: addresses through their server; the token is the user's."""
    token = _required_token(env, "horovod")
    store = HorovodStore(env)
    exchange = StoreExchange(store, rank, size, "horovod", _fresh("start"), timeout)
    meet = meet_through(exchange, env)
    return TcpBootstrap(rank, size, kind="horovod", job=store.where, token=token, meet=meet, timeout=timeout)


def slurm(env: Mapping[str, str], rank: int, size: int, timeout: float, job: str) -> TcpBootstrap:
    """srun on several nodes: rank 0 listens on the first of them, at a port made from the job's number."""
    token = _required_token(env, "slurm")
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "")
    host = first_node(nodes)
    if not host:
        raise BootstrapError(f"SLURM_STEP_NODELIST={nodes!r} names no node for rank 0")
    meet = meet_at(rank, host, _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS)
    return TcpBootstrap(rank, size, kind="slurm", job=job, token=token, meet=meet, timeout=timeout)


def first_node(nodes: str) -> str:
    """The first host of Slurm's list: `node[07-09,12],other` gives `node07`; "" if there is none."""
    found = re.match(r"([^,\[]*)(?:\[([0-9]+)[^\]]*\]([^,\[]*))?", nodes.strip())
    return "".join(part or "" for part in found.groups()) if found else ""


def _fresh(job: str) -> str:
    """A prefix of keys that this process has not used: stores keep the values of an earlier `init`."""
    _inits[job] += 1
    return f"{job}-{_inits[job]}"


def _required_token(env: Mapping[str, str], kind: str) -> bytes:
    text = settings.read("PYCOLLECTIVE_TOKEN", env)
    if not text:
        raise BootstrapError(
            f"{SETTERS[kind]} started ranks on several hosts, but PYCOLLECTIVE_TOKEN is not set: without it any host "
            "could join the job; set it on all hosts to one secret of 32 hexadecimal digits (`openssl rand -hex 16`)"
        )
    return parse_token(text)
