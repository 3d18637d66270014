"""How this process finds its rank, its size and its peers.

`detect` checks, in order: our own launcher's variables, an MPI launcher's, Horovod's, torchrun's, Slurm's; else the
process is alone. If several launchers have set variables (see launchers.py), the first complete set counts, provided
the others agree. Every bootstrap offers one operation, an allgather of bytes; everything else is built on it.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping

from pycollective import checks, settings
from pycollective.comm.bootstrap import places
from pycollective.comm.bootstrap.launchers import ACROSS_HOSTS, ELASTIC_DRIVER, SETTERS, VARIABLES, choose, integer
from pycollective.comm.bootstrap.one_host import SocketBootstrap
from pycollective.comm.bootstrap.protocol import Alone, Bootstrap
from pycollective.errors import BootstrapError

MOST_GENERATIONS = 5
"""How many generations of an elastic job may fail to start in succession until init() raises the error."""
_NO_LOCAL_SIZE = (
    "without LOCAL_WORLD_SIZE, which torchrun sets, all ranks are taken to be on one host: a launcher across hosts has "
    "to set it"
)
_ONE_USER = "all ranks are on this host, and those of another user cannot join"


def detect(env: Mapping[str, str] | None = None, timeout: float | None = None) -> Bootstrap:
    """The bootstrap selected by the environment; collective unless alone.

    Args:
        env: environment variables, `os.environ` by default.
        timeout: seconds to wait for the other ranks; by default PYCOLLECTIVE_INIT_TIMEOUT, else 120.

    Raises:
        BootstrapError: incomplete or contradictory variables, an mpirun without a usable mpi4py, an mpirun of
            another MPI than mpi4py's, ranks missing at the deadline.
    """
    env = os.environ if env is None else env
    seconds = init_timeout(env) if timeout is None else timeout
    if is_elastic(env):
        from pycollective.comm.bootstrap import elastic

        return elastic.join(env, seconds)
    kind = choose(env)
    joins = {"pycollective": _own, "mpi": _mpi, "horovod": _horovod, "torchrun": _torchrun, "slurm": _slurm}
    return joins[kind](env, seconds) if kind in joins else Alone()


def launcher(env: Mapping[str, str]) -> str:
    """The launcher of this process, from its environment only: the `kind` that `detect` will return.

    Raises:
        BootstrapError: variables of two launchers that contradict each other (both shown).
    """
    return "pycollective" if is_elastic(env) else choose(env)


def is_elastic(env: Mapping[str, str] | None = None) -> bool:
    """Return whether the driver of an elastic job has started this process."""
    return bool((os.environ if env is None else env).get(ELASTIC_DRIVER))


def _own(env: Mapping[str, str], timeout: float) -> Bootstrap:
    _require(env, "pycollective")
    rank, size = _rank_and_size(env, "pycollective")
    name = env["PYCOLLECTIVE_RENDEZVOUS"]
    _take_place(env, "pycollective", name, rank)
    if name.startswith(ACROSS_HOSTS):
        from pycollective.comm.bootstrap import across_hosts

        return across_hosts.own(env, rank, size, timeout)
    return SocketBootstrap(f"run/{name}", rank, size, kind="pycollective", timeout=timeout)


def _horovod(env: Mapping[str, str], timeout: float) -> Bootstrap:
    rank, size = _rank_and_size(env, "horovod")
    if size > 1:
        _require(env, "horovod")
        _take_place(env, "horovod", "horovod", rank)
    if integer(env, "HOROVOD_LOCAL_SIZE", size) < size:
        from pycollective.comm.bootstrap import across_hosts

        return across_hosts.horovod(env, rank, size, timeout)
    job = "\0".join(env.get(name, "") for name in VARIABLES["horovod"][2:])
    name = f"horovod/{os.getuid()}/{_name_of(job)}"
    return SocketBootstrap(name, rank, size, kind="horovod", timeout=timeout)


def _torchrun(env: Mapping[str, str], timeout: float) -> Bootstrap:
    _require(env, "torchrun")
    rank, size = _rank_and_size(env, "torchrun")
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    job = _name_of("\0".join(env.get(name, "") for name in names))
    _take_place(env, "torchrun", job, rank)
    if integer(env, "LOCAL_WORLD_SIZE", size) < size:
        from pycollective.comm.bootstrap import across_hosts

        return across_hosts.torchrun(env, rank, size, timeout, job)
    hint = _ONE_USER if "LOCAL_WORLD_SIZE" in env else _NO_LOCAL_SIZE
    return SocketBootstrap(f"torchrun/{os.getuid()}/{job}", rank, size, kind="torchrun", timeout=timeout, hint=hint)


def _slurm(env: Mapping[str, str], timeout: float) -> Bootstrap:
    _require(env, "slurm")
    rank, size = _rank_and_size(env, "slurm")
    name = ".".join(env.get(name, "") for name in (*VARIABLES["slurm"][2:], "SLURM_RESTART_COUNT"))
    _take_place(env, "slurm", name, rank)
    if integer(env, "SLURM_STEP_NUM_NODES", 1) > 1:
        from pycollective.comm.bootstrap import across_hosts

        return across_hosts.slurm(env, rank, size, timeout, name)
    return SocketBootstrap(f"slurm/{os.getuid()}/{name}", rank, size, kind="slurm", timeout=timeout)


def _mpi(env: Mapping[str, str], timeout: float) -> Bootstrap:
    from pycollective.comm.bootstrap.mpi import MpiBootstrap, import_mpi

    mpi = import_mpi()
    if not mpi.Is_initialized():
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
        atexit.register(lambda: mpi.Is_finalized() or mpi.Finalize())
    if mpi.Is_finalized():
        raise BootstrapError("MPI is already finalized in this process")
    world = mpi.COMM_WORLD
    started = max(integer(env, "OMPI_COMM_WORLD_SIZE", 1), integer(env, "PMI_SIZE", 1))
    if started > 1 and world.Get_size() == 1:
        library = mpi.Get_library_version().split("\n")[0].split(",")[0]
        raise BootstrapError(
            f"mpirun started {started} ranks, but mpi4py's MPI library ({library}) sees only this one: "
            "mpirun and mpi4py belong to different MPI installations; use the mpirun of that library, or "
            "reinstall mpi4py against yours (`pip install --force-reinstall --no-binary mpi4py mpi4py`)"
        )
    return MpiBootstrap(world, timeout)


def _take_place(env: Mapping[str, str], kind: str, job: str, rank: int) -> None:
    variables = {name: env[name] for name in VARIABLES[kind]}
    places.take("\0".join([job, *variables.values()]), f"rank {rank}", variables)


def _name_of(job: str) -> str:
    import hashlib  # slow to load, and not needed under the other launchers

    return hashlib.sha256(job.encode()).hexdigest()[:32]


def _require(env: Mapping[str, str], kind: str) -> None:
    names = VARIABLES[kind]
    missing = [name for name in names if name not in env]
    if missing:
        found = ", ".join(name for name in names if name in env)
        raise BootstrapError(
            f"{found} set, but {', '.join(missing)} not: {SETTERS[kind]} sets all of {', '.join(names)}"
        )


def _rank_and_size(env: Mapping[str, str], kind: str) -> tuple[int, int]:
    rank_name, size_name, *_ = VARIABLES[kind]
    rank, size = integer(env, rank_name, 0), integer(env, size_name, 1)
    if size < 1 or not 0 <= rank < size:
        raise BootstrapError(f"{rank_name}={rank} and {size_name}={size} do not fit: a rank is 0 <= rank < size")
    return rank, size


def init_timeout(env: Mapping[str, str] | None = None) -> float:
    """Seconds to wait for the other ranks (PYCOLLECTIVE_INIT_TIMEOUT).

    Raises:
        BootstrapError: not a number of seconds.
    """
    env = os.environ if env is None else env
    try:
        seconds = float(settings.read("PYCOLLECTIVE_INIT_TIMEOUT", env))
    except ValueError as error:
        raise BootstrapError(str(error)) from None
    return min(seconds, checks.LONGEST)
