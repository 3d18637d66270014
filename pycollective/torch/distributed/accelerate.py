"""Lets accelerate use the backend by name for CPU tensors: `InitProcessGroupKwargs(backend="pycollective")`.

By itself it does so for GPUs only. For CPUs it knows "gloo" and "mpi", and replaces or rejects every other name; unless
configured for CPU tensors, it creates the process group but lets each rank train alone.
https://github.com/huggingface/accelerate/blob/main/src/accelerate/state.py, PartialState._prepare_backend
"""

from __future__ import annotations

import functools
import os
from typing import Any

from pycollective.torch.when_imported import when_imported

BACKEND = "pycollective"


def adapt() -> None:
    """Adapt accelerate once it is imported, or now if it already is."""
    when_imported("accelerate.state", _adapt)


def _adapt(module: Any) -> None:
    """Does nothing if accelerate has changed: it then decides itself which backends it supports."""
    state: Any = getattr(module, "PartialState", None)
    kinds: Any = getattr(module, "DistributedType", None)
    prepare = getattr(state, "_prepare_backend", None)
    if prepare is None or not hasattr(kinds, "MULTI_CPU"):
        return

    @functools.wraps(prepare)
    def prepare_ours(self: Any, *args: Any, **kwargs: Any) -> Any:
        backend, kind = prepare(self, *args, **kwargs)
        if BACKEND not in (*args, *kwargs.values()):
            return backend, kind
        if kind == kinds.NO and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            kind = kinds.MULTI_CPU
        return BACKEND, kind

    state._prepare_backend = prepare_ours
