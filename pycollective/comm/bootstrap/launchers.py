"""Which launcher started this process, from the variables that launchers leave in the environment.

Several sets may be there at once: of launchers that started one another, or set by hand for some library. Of the sets
that are complete the first counts, in the order of SETTERS, and incomplete ones are skipped; a set that states another
rank or size than the one that counts is an error, because one of the two is wrong, and with it every result.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pycollective.errors import BootstrapError

OWN_VARIABLES = ("PYCOLLECTIVE_RANK", "PYCOLLECTIVE_SIZE", "PYCOLLECTIVE_RENDEZVOUS")
"""What `pycollective run` sets and `init` needs."""
MPI_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALNRANKS")
"""Any of these means that an mpirun (Open MPI, MPICH, Intel MPI, Slurm) started the process."""
TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun, and anybody who follows torch's `env://` convention, sets."""
HOROVOD_VARIABLES = (
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
)
"""What horovodrun and Horovod's Ray and Spark launchers set where they do without MPI.

https://github.com/horovod/horovod/blob/master/horovod/runner/gloo_run.py. Address and port name the job; nothing is
asked of the server there.
"""
SLURM_VARIABLES = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID", "SLURM_STEP_ID")
"""What Slurm's srun sets for the tasks of a step, whether it speaks PMI to them or not."""

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
    """What one launcher's variables state: a rank and a size, None where they state none."""

    kind: str
    complete: bool
    numbers: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By "rank" and "size": the variable and its value."""

    def contradicts(self, other: _Claim) -> bool:
        return any(self.numbers[what][1] != other.numbers[what][1] for what in self.numbers.keys() & other.numbers)

    def __str__(self) -> str:
        said = " and ".join(f"{name}={number}" for name, number in self.numbers.values())
        return f"{said} ({SETTERS[self.kind]})"


def choose(env: Mapping[str, str]) -> str:
    """The kind of launcher whose variables count: a key of SETTERS, or `alone`.

    Where no set is complete, that of the first incomplete one.

    Raises:
        BootstrapError: a set with another rank or size than the one that counts; shows both.
    """
    claims = list(_claims(env))
    if not claims:
        return "alone"
    found = next((claim for claim in claims if claim.complete), claims[0])
    # srun starts other launchers, a task a node, and horovodrun passes on the PMI variables that it was given itself.
    outer = ("slurm", "mpi") if found.kind == "horovod" else ("slurm",)
    for claim in claims:
        if claim.kind not in outer and claim.contradicts(found):
            raise BootstrapError(
                f"the variables of two launchers contradict each other: {found}, but {claim}; unset those of the one "
                "that did not start this process"
            )
    return found.kind


def _claims(env: Mapping[str, str]) -> Iterator[_Claim]:
    """What is there, in the order in which it counts."""
    if any(name in env for name in OWN_VARIABLES):
        yield _claim(env, "pycollective", OWN_VARIABLES)
    horovod = "HOROVOD_RANK" in env and "HOROVOD_SIZE" in env
    # horovodrun in a job of Slurm hands its ranks the PMI variables that it was given itself, but says what it is.
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
    # RANK alone is too common a name to mean anything, and MASTER_ADDR is often exported by a site.
    if "RANK" in env and "WORLD_SIZE" in env:
        yield _claim(env, "torchrun", TORCHRUN_VARIABLES)
    if "SLURM_PROCID" in env and env.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        yield _claim(env, "slurm", SLURM_VARIABLES)


def _claim(env: Mapping[str, str], kind: str, names: tuple[str, ...]) -> _Claim:
    """`names`: all that the launcher sets, rank and size first."""
    return _Claim(kind, all(name in env for name in names), _numbers(env, names[:1], names[1:2]))


def _horovod(env: Mapping[str, str]) -> _Claim:
    claim = _claim(env, "horovod", HOROVOD_VARIABLES)
    claim.complete |= claim.numbers.get("size") == ("HOROVOD_SIZE", 1)  # nobody to meet
    return claim


def _numbers(env: Mapping[str, str], ranks: tuple[str, ...], sizes: tuple[str, ...]) -> dict[str, tuple[str, int]]:
    """What is no integer states nothing; it is an error once its launcher is the one that counts."""
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
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    return mpi if mpi.COMM_WORLD.Get_size() > 1 else None


def integer(env: Mapping[str, str], name: str, default: int) -> int:
    """A variable's number.

    Raises:
        BootstrapError: it is not an integer.
    """
    try:
        return int(env.get(name, default))
    except ValueError:
        raise BootstrapError(f"{name}={env[name]!r} is not an integer") from None
