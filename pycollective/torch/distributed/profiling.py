"""Calls in the traces of torch.profiler, named as torch names those of its own backends: "pycollective:all_reduce".

What is drawn is the time in the call; of an asynchronous one that is its start.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

_NAMES = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}

enabled = torch.autograd._profiler_enabled
"""Whether a profiler is at work."""


def recorded(kind: str) -> AbstractContextManager[Any]:
    """Draws what is done in it."""
    drawn: AbstractContextManager[Any] = torch.autograd.profiler.record_function(
        f"pycollective:{_NAMES.get(kind, kind)}"
    )
    return drawn
