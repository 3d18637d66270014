"""The basics as methods of one object, as in Horovod."""

from __future__ import annotations

from typing import Any

from pycollective.hvd import arguments, basics, interface

__all__ = ["HorovodBasics"]


class HorovodBasics:
    """init(), shutdown(), rank() etc. and the operators: those of pycollective.torch."""

    Average, Sum, Adasum = arguments.Average, arguments.Sum, arguments.Adasum
    Min, Max, Product = arguments.Min, arguments.Max, arguments.Product

    def __init__(self, pkg_path: Any = None, *args: Any) -> None:
        """The arguments are ignored; in Horovod they specify a C++ library."""

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        """Number -> ranks, for all registered process sets."""
        return basics.process_set_ranks()

    def _process_set_size(self, process_set_id: int) -> int:
        """The number of ranks in a process set; ValueError: there is no such set."""
        return len(_ranks_of(process_set_id))

    def _process_set_rank(self, process_set_id: int) -> int:
        """This process's rank in a process set; ValueError: there is no such set, or this process is not in it."""
        ranks, me = _ranks_of(process_set_id), basics.rank()
        if me not in ranks:
            raise ValueError(f"rank {me} is not part of process set {process_set_id} of the ranks {ranks}")
        return ranks.index(me)


def _ranks_of(process_set_id: int) -> list[int]:
    registered = basics.process_set_ranks()
    if process_set_id not in registered:
        raise ValueError(f"there is no process set {process_set_id!r}; registered are {sorted(registered)}")
    return registered[process_set_id]


for _name in (
    *("init", "shutdown", "is_initialized", "start_timeline", "stop_timeline", "is_homogeneous"),
    *("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"),
    *("mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built"),
    *("nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built"),
):
    setattr(HorovodBasics, _name, staticmethod(getattr(interface, _name)))
