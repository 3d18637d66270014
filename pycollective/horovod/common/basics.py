"""`horovod.common.basics`: the basics as methods of an object."""

from __future__ import annotations

from typing import Any

from pycollective.torch import mpi_ops


class HorovodBasics:
    """init(), shutdown(), rank() and so on, and the operators: those of pycollective.torch."""

    Average, Sum, Adasum = mpi_ops.Average, mpi_ops.Sum, mpi_ops.Adasum
    Min, Max, Product = mpi_ops.Min, mpi_ops.Max, mpi_ops.Product

    def __init__(self, pkg_path: Any = None, *args: Any) -> None:
        """The arguments named a C++ library; there is none to name here."""

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            return getattr(mpi_ops, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


_METHODS = {
    *("init", "shutdown", "is_initialized", "start_timeline", "stop_timeline", "is_homogeneous"),
    *("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"),
    *("mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built"),
    *("nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built"),
}
