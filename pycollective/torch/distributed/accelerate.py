"""Lets accelerate use the backend by name for CPU tensors: `InitProcessGroupKwargs(backend="pycollective")`.

By itself it does so for GPUs only. For CPUs it knows "gloo" and "mpi", and replaces or rejects every other name; unless
configured for CPU tensors, it creates the process group but lets each rank train alone.
https://github.com/huggingface/accelerate/blob/main/src/accelerate/state.py, PartialState._prepare_backend
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

BACKEND = "pycollective"
_MODULE = "accelerate.state"


def adapt() -> None:
    """Adapt accelerate once it is imported, or now if it already is."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        _adapt(module)
    else:
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported:
    """A finder that waits for one import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_adapt(module: ModuleType) -> None:
                load(module)
                _adapt(module)

            spec.loader.exec_module = load_and_adapt  # type: ignore[method-assign]
        return spec


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
