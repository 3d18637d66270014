"""What was built and what is in use, for scripts that choose their configuration accordingly."""

from __future__ import annotations

import importlib.util
import os

from pycollective.comm.bootstrap.detection import launcher
from pycollective.hvd.basics import world


def mpi_built() -> bool:
    """Return whether mpi4py is installed: MPI is found at run time."""
    return importlib.util.find_spec("mpi4py") is not None


def mpi_enabled() -> bool:
    """Return whether the ranks connected through MPI."""
    return launcher(os.environ) == "mpi"


def mpi_threads_supported() -> bool:
    """Return whether MPI may be called from several threads.

    Raises:
        ValueError: init() was not called, or MPI is not in use.
    """
    world()
    if not mpi_enabled():
        raise ValueError("MPI is not in use: the job was not started by mpirun")
    from mpi4py import MPI

    return bool(MPI.Query_thread() >= MPI.THREAD_MULTIPLE)


def gloo_built() -> bool:
    """False: pycollective has its own transport instead of Gloo, which does not need MPI either."""
    return False


def gloo_enabled() -> bool:
    """False, see gloo_built."""
    return False


def nccl_built() -> int:
    """NCCL's version in the format of NCCL_VERSION_CODE if a GPU and NCCL can be used; else 0."""
    from pycollective.comm.cuda import runtime

    if not cuda_built() or runtime.why_not() is not None:
        return 0
    from pycollective.comm.cuda.nccl import library as nccl

    return 0 if nccl.why_not() is not None else int(nccl.library().version)


def cuda_built() -> bool:
    """Return whether the package includes its GPU part."""
    return importlib.util.find_spec("pycollective._cuda") is not None


def ddl_built() -> bool:
    """False: IBM's DDL is not used."""
    return False


def ccl_built() -> bool:
    """False: Intel's oneCCL is not used."""
    return False


def rocm_built() -> bool:
    """False: there is no ROCm build."""
    return False


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether a number of ranks is a power of two. Horovod's Adasum needs one; here it takes any number."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0
