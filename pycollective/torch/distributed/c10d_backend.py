"""Backends of torch's C++ class, from torch 2.15 on: for groups that have several, and for torch's hooks.

A ProcessGroup written in Python executes its calls itself, and returns complete Works. In a group with different
backends for its devices, such as "cpu:pycollective,cuda:nccl", torch's own ProcessGroup calls a backend for each; it
passes on only `wait` and `get_future` of the Works that a backend written in Python returns (read in torch 2.15.0).
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

_AVAILABLE = hasattr(_distributed_c10d, "FlightRecorderHook")
"""Whether Python classes can be backends: torch 2.13 does not let them be constructed."""


class _Backend(_distributed_c10d.Backend):
    def getBackendName(self) -> str:
        return "pycollective"


class DeviceBackend(_Backend):
    """Passes the calls for one type of device on to a process group, which it owns."""

    # Each has to be defined: torch 2.15.0 asks a Python class for what it lacks without end.
    supports_splitting = supports_coalescing = supports_shrinking = supports_reconfigure = supports_window = False

    def __init__(self, group: Any) -> None:
        super().__init__(group.rank(), group.size())
        self.group = group

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """See ProcessGroup."""
        self.group.monitored_barrier(opts.timeout, wait_all_ranks)


def _forward(name: str, method: str) -> None:
    def call(self: DeviceBackend, *arguments: Any) -> Any:
        return getattr(self.group, method)(*arguments)

    setattr(DeviceBackend, name, call)


for _name in (
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast", "gather", "scatter", "alltoall", "all_to_all_single"),
    *("allgather", "allgather_coalesced", "all_gather_single", "all_gather_single_coalesced"),
    *("reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("send", "recv", "recv_anysource", "barrier", "shutdown", "abort", "set_timeout"),
    *("_set_sequence_number_for_group", "_get_sequence_number_for_group"),
):
    _forward(_name, _name)
_forward("allreduce_sparse", "allreduce")


def add_default(group: Any) -> Any:
    """Give a process group a default backend, because torch's hooks ask it for its name; the group keeps it."""
    if not _AVAILABLE:
        return None
    backend, kind = _Backend(group.rank(), group.size()), dist.ProcessGroup.BackendType.CUSTOM
    group._register_backend(torch.device("cpu"), kind, backend)  # noqa: SLF001
    group._set_default_backend(kind)  # noqa: SLF001
    return backend


def is_one_of_several() -> bool:
    """Return whether the group that torch is making has other backends for other devices.

    torch tells a creator nothing of them: this looks at the configuration in the frame of the function that calls it.
    """
    frame = inspect.currentframe() if _AVAILABLE else None
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    config = None if frame is None else frame.f_locals.get("backend_config")
    return config is not None and len(set(config.get_device_backend_map().values())) > 1
