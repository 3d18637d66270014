"""Storage of gradients in windows, for reductions without copies, and their form for communication."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from pycollective.comm.arguments import arrays
from pycollective.engine import Engine, Item, Work
from pycollective.hvd.basics import engine_of
from pycollective.hvd.handles import internal_errors
from pycollective.hvd.process_sets import ProcessSet
from pycollective.torch.compression import Compression
from pycollective.torch.hvd.tensors import is_plain

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

T = TypeVar("T")
_logger = logging.getLogger(__name__)
Kind = tuple[torch.dtype, int | None]
"""Element type, and the index of the GPU in whose memory it is; None: CPU memory."""


def _order(p: torch.Tensor) -> tuple[int, ...] | None:
    """The axes in memory order of a parameter in channels-last order; else None.

    Gradients are sent in the parameter's order, as their own may differ between ranks.
    """
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if p.is_contiguous() or p.dim() not in formats or not p.is_contiguous(memory_format=formats[p.dim()]):
        return None
    return (0, *range(2, p.dim()), 1)


def _unordered(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose axes are in the order of _order, with the axes in their usual order again."""
    return tensor.permute(0, tensor.dim() - 1, *range(1, tensor.dim() - 1))


def sending(
    p: torch.Tensor, gradient: torch.Tensor, compression: Any
) -> tuple[torch.Tensor, tuple[int, ...] | None, Callable[[], None] | None]:
    """What is sent for a parameter's gradient and reduced in place, and a function that stores the result in p.grad.

    Between them the axes of the gradient that is sent, in order, if they are permuted; else None. The function is None
    if what is sent is p.grad's own memory.
    """
    if compression is Compression.none and p.is_contiguous() and is_plain(gradient):
        return gradient.detach(), None, None  # keeps the memory, whatever becomes of p.grad
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    small, context = compression.compress(dense)
    order = _order(p)
    x = (small.detach() if order is None else small.detach().permute(order)).contiguous().resolve_conj().resolve_neg()
    is_small = x.data_ptr() == small.data_ptr()

    def take() -> None:
        if p.grad is None or (is_small and small is p.grad):
            return
        reduced = small if is_small else x if order is None else _unordered(x)
        store(p.grad, p, compression.decompress(reduced, context))

    return x, order, take


def store(gradient: torch.Tensor, p: torch.Tensor, result: torch.Tensor) -> None:
    """Make a result the gradient of a parameter that has one."""
    if gradient.is_sparse:
        p.grad = result.to_sparse(gradient.sparse_dim())
    else:
        gradient.detach().copy_(result)


def changes(x: torch.Tensor) -> int | None:
    """How often torch has changed a tensor; None for views, which share a counter, and where there is no counter."""
    return None if x._is_view() or x.is_inference() else x._version


def weak_hook(owner: T, note: Callable[[T, torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    """A hook of parameters that calls note(owner, p), but does not keep the owner alive."""
    reference = weakref.ref(owner)

    def accumulated(p: torch.Tensor) -> None:
        alive = reference()
        if alive is not None:
            note(alive, p)

    return accumulated


def nothing(p: torch.Tensor, sparse: bool) -> torch.Tensor:
    """A zero gradient for a parameter that this rank did not use; an empty one if sparse."""
    if not sparse:
        return torch.zeros_like(p, requires_grad=False)
    nowhere = torch.zeros((1, 0), dtype=torch.int64, device=p.device)
    rows = torch.zeros((0, *p.shape[1:]), dtype=p.dtype, device=p.device)
    return torch.sparse_coo_tensor(nowhere, rows, p.shape, is_coalesced=True, check_invariants=False)


class GradientWindows:
    """Storage for a model's gradients in windows that all ranks share, one for each element type and memory.

    Backward accumulates into an existing gradient; gradients that are kept from step to step (zeroed, not set to None)
    can be stored in windows. The engine creates the windows in the background, once all ranks have requested them.
    """

    def __init__(self, name: str, parameters: Sequence[torch.Tensor], process_set: ProcessSet) -> None:
        """`parameters`: those with dense gradients, in the order of the forward pass, the same on all ranks.

        Gradients that are adjacent in time are adjacent in memory.
        """
        self._name, self._process_set = name, process_set
        self._parameters = list(reversed(parameters))
        self._engine: Engine | None = None
        self._work: Work | None = None
        self._failed = False
        self._flat: list[torch.Tensor] = []
        self._views: dict[torch.Tensor, torch.Tensor] = {}

    def zero(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Zero the gradients of `parameters`, in windows; False if that is not possible (yet).

        Parameters without a gradient keep none.
        """
        engine = engine_of(self._process_set)
        if engine is not self._engine:  # the first engine, or a new one after a shutdown
            self._engine, self._work, self._failed, self._flat, self._views = engine, None, False, [], {}
        if not self._views and not self._make(engine):
            return False
        for flat in self._flat:
            flat.zero_()
        for p in parameters:
            gradient, view = p.grad, self._views.get(p)
            if gradient is None or gradient is view:
                continue
            if view is not None and (view.shape, view.dtype, view.device) == (p.shape, p.dtype, p.device):
                p.grad = view
            else:
                p.grad = gradient.detach().zero_()
        return True

    def _make(self, engine: Engine) -> bool:
        members: dict[Kind, list[torch.Tensor]] = {}  # in the same order on all ranks
        for p in self._parameters:
            members.setdefault(_kind(p), []).append(p)
        if self._failed or not members:
            return False
        if self._work is None:
            rows = [(sum(p.nbytes for p in part), memory) for (_, memory), part in members.items()]

            def make(comm: Communicator) -> list[Any]:
                return [comm.empty(nbytes, np.uint8, device=memory) for nbytes, memory in rows]

            with internal_errors():
                (self._work,) = engine.submit([Item("call", self._name, run=make)])
        if not self._work.test():
            return False
        try:
            windows = self._work.wait()
        except Exception as error:  # no memory (/dev/shm is small in many containers), or a rank has joined
            _logger.warning("gradients are packed to be reduced: no windows for them (%s)", error)
            self._failed = True
            return False
        for ((dtype, _), part), window in zip(members.items(), windows, strict=True):
            flat = torch.from_numpy(window) if isinstance(window, np.ndarray) else torch.from_dlpack(window)
            self._flat.append(flat.view(dtype))
            for p, piece in zip(part, self._flat[-1].split([p.numel() for p in part]), strict=True):
                self._views[p] = _like(p, piece).data  # .data: with its own version counter
        return True


def _kind(p: torch.Tensor) -> Kind:
    return p.dtype, (p.device.index or 0) if arrays.on_device(p) else None


def _like(p: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """A view of a flat tensor in a parameter's shape and memory order."""
    order = _order(p)
    return flat.view(p.shape) if order is None else _unordered(flat.view([p.shape[axis] for axis in order]))
