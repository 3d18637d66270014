"""Calls in traces of torch.profiler, named like those of torch's backends: "pycollective:all_reduce".

The recorded time is that of the call; for an asynchronous one, of its start.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

_NAMES = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}

enabled = torch.autograd._profiler_enabled
"""Whether a profiler is active."""


def recorded(kind: str) -> AbstractContextManager[Any]:
    """Context manager that records its body."""
    drawn: AbstractContextManager[Any] = torch.autograd.profiler.record_function(
        f"pycollective:{_NAMES.get(kind, kind)}"
    )
    return drawn
