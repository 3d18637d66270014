"""Where gradients lie: in windows, for reductions that copy nothing; and as what they are sent."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pycollective.engine import Engine, Item, Work
from pycollective.torch.basics import engine_of
from pycollective.torch.handles import internal_errors
from pycollective.torch.process_sets import ProcessSet

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


def contiguous_view(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements contiguously: of a tensor in channels-last order a view, else a copy where one is needed."""
    if tensor.is_contiguous():
        return tensor.detach()
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor.detach().permute(0, 2, 3, 1)
    if tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        return tensor.detach().permute(0, 2, 3, 4, 1)
    return tensor.detach().contiguous()


class GradientWindows:
    """Room for the gradients of a model in windows that all ranks share, one for each element type.

    Backward adds into a gradient that exists; where gradients are kept from step to step (zeroed, not forgotten) they
    can lie there. The windows are made by the engine, behind the caller's back, once all ranks have asked for them.
    """

    def __init__(self, name: str, parameters: Sequence[torch.Tensor], process_set: ProcessSet) -> None:
        """`parameters`: in the order of the forward pass; neighbours in time become neighbours in memory."""
        self._name, self._process_set = name, process_set
        self._parameters = [p for p in reversed(parameters) if p.device.type == "cpu"]
        self._engine: Engine | None = None
        self._work: Work | None = None
        self._flat: list[torch.Tensor] = []
        self._views: dict[torch.Tensor, torch.Tensor] = {}

    def zero(self) -> bool:
        """Make all gradients zeros in windows; False where that cannot be done (yet): nothing has changed then."""
        engine = engine_of(self._process_set)
        if engine is not self._engine:  # the first one, or one after a shutdown
            self._engine, self._work, self._flat, self._views = engine, None, [], {}
        if not self._views and not self._make(engine):
            return False
        for flat in self._flat:
            flat.zero_()
        for p, view in self._views.items():
            p.grad = view
        return True

    def _make(self, engine: Engine) -> bool:
        kinds = list(dict.fromkeys(p.dtype for p in self._parameters))  # no set: its order may differ between ranks
        if any(p.grad is not None and p.grad.is_sparse for p in self._parameters) or not kinds:
            return False
        if self._work is None:
            sizes = [sum(p.numel() * p.element_size() for p in self._parameters if p.dtype == kind) for kind in kinds]

            def make(comm: Communicator) -> list[Any]:
                return [comm.empty(nbytes, np.uint8) for nbytes in sizes]

            with internal_errors():
                (self._work,) = engine.submit([Item("call", self._name, run=make)])
        if not self._work.done():
            return False
        with internal_errors():
            windows = self._work.wait()
        for kind, window in zip(kinds, windows, strict=True):
            flat = torch.from_numpy(window).view(kind)
            self._flat.append(flat)
            members = [p for p in self._parameters if p.dtype == kind]
            ends = itertools.accumulate(p.numel() for p in members)
            for p, end in zip(members, ends, strict=True):
                self._views[p] = _like(p, flat[end - p.numel() : end])
        return True


def _like(p: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """A view of a flat tensor in a parameter's shape and order of elements."""
    if p.dim() == 4 and not p.is_contiguous() and p.is_contiguous(memory_format=torch.channels_last):
        n, c, h, w = p.shape
        return flat.view(n, h, w, c).permute(0, 3, 1, 2)
    return flat.view(p.shape)
