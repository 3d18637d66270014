"""Which launcher started this process, from the environment variables that launchers set.

Several sets may be present: from nested launchers, or set by hand for some library. The first complete
set counts, in the order of SETTERS, and incomplete ones are skipped; a set with another rank or size than the one that
counts is an error, because one of the two is wrong, and so would be every result.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pycollective.errors import BootstrapError

ACROSS_HOSTS = "tcp://"
"""A PYCOLLECTIVE_RENDEZVOUS that begins so is `tcp://ADDRESS:PORT/JOB`, where rank 0 is to listen."""
ELASTIC_DRIVER = "PYCOLLECTIVE_ELASTIC_DRIVER"
"""Set for the workers of an elastic job: where its driver listens. It takes precedence over all others."""
MPI_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALNRANKS")
"""Any of these shows that an mpirun (Open MPI, MPICH, Intel MPI, Slurm) started the process."""
VARIABLES = {
    "pycollective": ("PYCOLLECTIVE_RANK", "PYCOLLECTIVE_SIZE", "PYCOLLECTIVE_RENDEZVOUS"),
    "horovod": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    "torchrun": ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    "slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID", "SLURM_STEP_ID"),
}
"""What each launcher sets and `init` needs: rank and size, then what identifies the job.

Horovod's: set by horovodrun and by its Ray and Spark launchers when they run without MPI
(https://github.com/horovod/horovod/blob/master/horovod/runner/gloo_run.py); the server at this address is asked for
addresses if the ranks are on several hosts. torchrun's: also set by others that follow torch's `env://` convention.
Slurm's: set by srun for the tasks of a step, with PMI or without.
"""

SETTERS = {
    "pycollective": "`pycollective run`",
    "mpi": "mpirun",
    "horovod": "Horovod's launcher",
    "torchrun": "torchrun",
    "slurm": "srun",
}
_MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


@dataclass
class _Claim:
    """The rank and size from one launcher's variables; None if not set."""

    kind: str
    complete: bool
    numbers: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By "rank" and "size": the variable and its value."""

    def contradicts(self, other: _Claim) -> bool:
        return any(self.numbers[what][1] != other.numbers[what][1] for what in self.numbers.keys() & other.numbers)

    def __str__(self) -> str:
        stated = " and ".join(f"{name}={number}" for name, number in self.numbers.values())
        return f"{stated} ({SETTERS[self.kind]})"


def choose(env: Mapping[str, str]) -> str:
    """The kind of launcher whose variables count: a key of SETTERS, or `alone`.

    If no set is complete, the kind of the first incomplete one.

    Raises:
        BootstrapError: a set with another rank or size than the one that counts (both shown).
    """
    claims = list(_claims(env))
    if not claims:
        return "alone"
    found = next((claim for claim in claims if claim.complete), claims[0])
    # srun starts other launchers, one task per node, and horovodrun passes on the PMI variables of its own process.
    outer = ("slurm", "mpi") if found.kind == "horovod" else ("slurm",)
    for claim in claims:
        if claim.kind not in outer and claim.contradicts(found):
            raise BootstrapError(
                f"the variables of two launchers contradict each other: {found}, but {claim}; unset those of the one "
                "that did not start this process"
            )
    return found.kind


def _claims(env: Mapping[str, str]) -> Iterator[_Claim]:
    """The sets that are present, in order of precedence."""
    if any(name in env for name in VARIABLES["pycollective"]):
        yield _claim(env, "pycollective")
    horovod = "HOROVOD_RANK" in env and "HOROVOD_SIZE" in env
    # horovodrun in a Slurm job passes its own PMI variables to its ranks, but also sets variables that identify it.
    first = horovod and env.get("HOROVOD_CONTROLLER", "").lower() == "gloo"
    if first:
        yield _horovod(env)
    mpi = _initialised_mpi()
    if mpi is not None:
        world = mpi.COMM_WORLD
        numbers = {"rank": ("MPI's rank", world.Get_rank()), "size": ("MPI's size", world.Get_size())}
        yield _Claim("mpi", True, numbers)
    elif any(name in env for name in MPI_VARIABLES):
        yield _Claim("mpi", True, _numbers(env, _MPI_RANKS, _MPI_SIZES))
    if horovod and not first:
        yield _horovod(env)
    # RANK alone is too common a name to be conclusive, and MASTER_ADDR is often exported by a site.
    if "RANK" in env and "WORLD_SIZE" in env:
        yield _claim(env, "torchrun")
    if "SLURM_PROCID" in env and env.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        yield _claim(env, "slurm")


def _claim(env: Mapping[str, str], kind: str) -> _Claim:
    names = VARIABLES[kind]
    return _Claim(kind, all(name in env for name in names), _numbers(env, names[:1], names[1:2]))


def _horovod(env: Mapping[str, str]) -> _Claim:
    claim = _claim(env, "horovod")
    claim.complete |= claim.numbers.get("size") == ("HOROVOD_SIZE", 1)  # no peers
    return claim


def _numbers(env: Mapping[str, str], ranks: tuple[str, ...], sizes: tuple[str, ...]) -> dict[str, tuple[str, int]]:
    """Values that are not integers are ignored here; they are errors if their launcher is chosen."""
    found: dict[str, tuple[str, int]] = {}
    for what, names in (("rank", ranks), ("size", sizes)):
        for name in names:
            try:
                found.setdefault(what, (name, int(env[name])))
            except (KeyError, ValueError):
                continue
    return found


def _initialised_mpi() -> Any | None:
    """mpi4py.MPI, if this process has imported and initialised it and is not alone in it."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if not hasattr(mpi, "Is_finalized"):  # not imported, or not completely
        return None
    if not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    return mpi if mpi.COMM_WORLD.Get_size() > 1 else None


def integer(env: Mapping[str, str], name: str, default: int) -> int:
    """A variable's number.

    Raises:
        BootstrapError: not an integer.
    """
    try:
        return int(env.get(name, default))
    except ValueError:
        raise BootstrapError(f"{name}={env[name]!r} is not an integer") from None
