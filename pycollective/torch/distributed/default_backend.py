"""The default backend of a process group, which torch asks for the group's name from 2.14 on.

A ProcessGroup written in Python executes calls itself and has no backends. torch's hooks (the flight recorder, which
2.15 attaches to every group) read a group's name in C++, from its default backend.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

_NEEDED = hasattr(_distributed_c10d, "FlightRecorderHook")


class _DefaultBackend(_distributed_c10d.Backend):
    """A backend that executes nothing; torch 2.13 does not let it be constructed."""

    def getBackendName(self) -> str:
        return "pycollective"


def add(group: Any, rank: int, size: int) -> Any:
    """Give a process group a default backend where torch needs one; returns it, for the group to keep, or None."""
    if not _NEEDED:
        return None
    backend, kind = _DefaultBackend(rank, size), dist.ProcessGroup.BackendType.CUSTOM
    group._register_backend(torch.device("cpu"), kind, backend)  # noqa: SLF001
    group._set_default_backend(kind)  # noqa: SLF001
    return backend
