"""`pycollective run`: n copies of a command on this host, as one job that starts and ends together.

job.py has their processes. Imports only the standard library, the settings and the list of cores.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence

from pycollective.cli.launch.job import Job, given_environment, log
from pycollective.comm.bootstrap.sockets.this_host import loopback
from pycollective.comm.host.cores import in_binding_order, ranges, usable_cores

_OTHERS = (
    *("TORCHELASTIC_", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK"),  # torchrun
    *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # mpirun
    *("PMI_RANK", "PMI_SIZE", "PMI_FD", "PMI_PORT", "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_"),
    *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_", "HOROVOD_CROSS_", "HOROVOD_CONTROLLER", "HOROVOD_GLOO_"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"),
)
"""Prefixes of the variables by which other launchers set the rank of a process; removed from our ranks' environment."""


def job_environment(size: int, port: int, env: Mapping[str, str], address: str = "") -> dict[str, str]:
    """The environment common to all ranks: `env` without the variables of other launchers, and OMP_NUM_THREADS.

    Args:
        port, address: where rank 0 may open the store of a torch.distributed job, as MASTER_PORT and MASTER_ADDR; 0:
            nowhere.
    """
    kept = without_launchers(env)
    if port:
        kept |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
        if ":" in address:  # Gloo would take 127.0.0.1
            kept.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if size > 1:
        kept.setdefault("OMP_NUM_THREADS", "1")
    return kept | {
        "PYCOLLECTIVE_SIZE": str(size),
        "PYCOLLECTIVE_LOCAL_SIZE": str(size),
        "PYCOLLECTIVE_RENDEZVOUS": f"{os.getuid()}-{secrets.token_hex(8)}",
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
    }


def without_launchers(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables by which launchers describe a rank and its job."""
    # PYCOLLECTIVE_: of a job across hosts, or an elastic one, within which this one is started.
    others = (*_OTHERS, "PYCOLLECTIVE_TOKEN", "PYCOLLECTIVE_ELASTIC_DRIVER", "PYCOLLECTIVE_ELASTIC_WORKER")
    return {name: value for name, value in env.items() if not name.startswith(others)}


@contextlib.contextmanager
def held_port(address: str) -> Iterator[int]:
    """A TCP port, "" of all interfaces, that is reserved while the job runs.

    The socket does not listen: with SO_REUSEADDR on both sides, which torch's TCPStore sets, rank 0 can. Yields 0 if
    there is no loopback: torch then reports what is missing.
    """
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            holder.bind((address, 0))
        yield int(holder.getsockname()[1])


def run(
    size: int,
    command: Sequence[str],
    *,
    tag: bool = False,
    grace: float = 0.0,
    env: Mapping[str, str] | None = None,
    cores: Sequence[int] = (),
) -> int:
    """Start `size` ranks of `command`, wait for all, and return the exit code of the one that led to the end, or 0.

    Args:
        size: number of ranks, at least 1.
        command: program and arguments; a first word ending in `.py` is run by this Python.
        tag: write `[rank] ` before each line of output.
        grace: seconds that the other ranks may continue after the first failure before they get SIGTERM
            (SIGKILL follows KILL_AFTER seconds later).
        env: the environment of the ranks, `os.environ` by default; variables of other launchers are removed, and
            OMP_NUM_THREADS becomes 1, as with torchrun, if it is not set and there are several ranks.
        cores: for each rank, the core that it is bound to; empty: ranks inherit the launcher's affinity.

    A rank ended by signal s counts as exit code 128 + s. SIGINT, SIGTERM and SIGHUP are forwarded to all
    ranks; a second one kills them. 127 means that the command could not be started.
    """
    given = given_environment(env)
    address = loopback()
    with held_port(address) as port:
        common = job_environment(size, port, given, address)
        if "OMP_NUM_THREADS" in common.keys() - given.keys():
            log(f"OMP_NUM_THREADS=1 for each of {size} ranks; set it yourself for another number of threads")
        return Job(size, tag, grace, cores).run([*command], common)


def cores_for(size: int) -> list[int]:
    """The core of each of so many ranks, all different: of those that this process may use, physical cores first.

    Raises:
        ValueError: there are fewer cores.
    """
    usable = usable_cores()
    if size > len(usable):
        few = f"this process may use {len(usable)} ({ranges(usable)})"
        raise ValueError(f"--bind: {size} ranks need {size} cores, and {few}; omit --bind, or start fewer ranks")
    return in_binding_order(usable)[:size]
