"""Ranks on hosts of this machine, forked from a server that has loaded everything: they start within milliseconds.

The server enters the namespaces of a host between two forks. It never starts a thread or a communicator.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from processes import IMPORTABLE

from hosts.simulated import Hosts

RENDEZVOUS_PORT, STORE_PORT = 29000, 29001
CLOCK_AHEAD = "TEST_CLOCK_AHEAD"
"""A variable: seconds by which the process's clock (that of time.monotonic) is ahead of the machine's."""
_CLONE_NEWTIME = 0x80
_LOADED = ("hosts.survivor", "hosts.reporting", "pycollective.comm.world", "pycollective.comm.bootstrap.across_hosts")
_TORCH = ("pycollective.torch.distributed", "torch.distributed")
_asking = threading.Lock()


def start_ranks(
    hosts: Hosts,
    layout: Sequence[int],
    module: str,
    arguments: Sequence[str],
    log: Path,
    env: Callable[[int], Mapping[str, str]],
) -> None:
    """Start MODULE.main(*arguments) with so many ranks on each host, with the variables of `pycollective run -H`.

    Args:
        log: their standard output and errors. env: variables to add for a rank.
    """
    size, first = sum(layout), 0
    common = {
        "PYCOLLECTIVE_SIZE": str(size), "WORLD_SIZE": str(size),
        "PYCOLLECTIVE_RENDEZVOUS": f"tcp://{hosts.address(hosts.names[0])}:{RENDEZVOUS_PORT}/trial",
        "PYCOLLECTIVE_TOKEN": os.urandom(16).hex(),
        "MASTER_ADDR": hosts.address(hosts.names[0]), "MASTER_PORT": str(STORE_PORT),
    }  # fmt: skip
    for host, count in zip(hosts.names, layout, strict=False):
        for local in range(count):
            rank = str(first + local)
            own = dict.fromkeys(("TEST_RANK", "PYCOLLECTIVE_RANK", "RANK"), rank)
            own |= {"PYCOLLECTIVE_LOCAL_RANK": str(local), "PYCOLLECTIVE_LOCAL_SIZE": str(count)}
            own["PYCOLLECTIVE_INTERFACE"] = hosts.address(host)
            _ask({
                "module": module, "arguments": list(arguments), "namespaces": hosts.namespaces(host),
                "environment": {**common, **own, **env(int(rank))}, "log": str(log),
            })  # fmt: skip
        first += count


def _ask(request: dict[str, Any]) -> None:
    with _asking:
        pipe = _server().stdin
        pipe.write(json.dumps(request) + "\n")
        pipe.flush()


@functools.cache
def _server() -> subprocess.Popen[str]:
    """It ends when this process does."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYCOLLECTIVE_", "OMPI_", "PMI"))}
    return subprocess.Popen(
        [sys.executable, str(Path(__file__))], stdin=subprocess.PIPE, text=True, cwd=tempfile.gettempdir(),
        env=env | IMPORTABLE | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
    )  # fmt: skip


def serve() -> None:
    """Fork a rank for each line of standard input."""
    for name in _LOADED:
        importlib.import_module(name)
    with contextlib.suppress(ImportError):
        for name in _TORCH:
            importlib.import_module(name)
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            _enter(json.loads(line))
        os.waitpid(child, 0)


def _enter(request: dict[str, Any]) -> None:
    """Does not return. A process joins a PID namespace with its children only."""
    code = 1
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        clock = open("/proc/self/timens_offsets", "w")  # noqa: SIM115  before /proc shows other processes
        for namespace in [os.open(path, os.O_RDONLY) for path in request["namespaces"]]:
            _require(libc.setns(namespace, 0), "setns")
        if ahead := request["environment"].get(CLOCK_AHEAD):
            _require(libc.unshare(_CLONE_NEWTIME), "unshare")  # of the child
            clock.write(f"monotonic {ahead} 0\n")
            clock.flush()
        if os.fork() == 0:
            os.setsid()
            os.environ.update(request["environment"])
            importlib.import_module(request["module"]).main(*request["arguments"])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _require(code: int, what: str) -> None:
    if code != 0:
        raise OSError(ctypes.get_errno(), what)


if __name__ == "__main__":
    serve()
