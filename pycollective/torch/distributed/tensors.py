"""Conversion between torch tensors and the core's arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from pycollective import _core
from pycollective.torch.distributed.cuda import cuda

Finish = Callable[[], None]

_TAKEN = frozenset(
    getattr(torch, name)
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16")
    + ("bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
)
"""Element types that the core supports."""


def plain(x: Any) -> bool:
    """Return whether a tensor's memory holds its elements in order: contiguous, no pending negation or conjugation."""
    return bool(x.is_contiguous()) and not x.is_neg() and not x.is_conj()


def straight(x: Any) -> Any:
    """x, or a contiguous copy if it is not `plain`; without gradient."""
    x = x.detach() if x.requires_grad else x
    return x if plain(x) else room(x.numel(), x).view(x.shape).copy_(x)


def room(count: int, like: Any) -> Any:
    """Uninitialized one-dimensional memory for `count` elements of a tensor's type, on its device."""
    device = cuda().device(like)
    return torch.empty(count, dtype=like.dtype) if device < 0 else cuda().empty(count, like.dtype, device)


def numbers(x: Any) -> Any:
    """The tensor that the core reduces: over x's memory (x must be `plain`), of real elements.

    Raises:
        TypeError: an element type that cannot be reduced.
    """
    if x.is_complex():
        x = torch.view_as_real(x)
    if x.dtype not in _TAKEN:
        raise TypeError(f"{x.dtype} cannot be reduced")
    return x.detach()


def moved(x: Any) -> Any:
    """The tensor that the core moves: over x's memory (x must be `plain`), as bytes if the core lacks the type."""
    return x.detach() if x.dtype in _TAKEN else as_bytes(x)


def buffers(data: Any, into: Any) -> tuple[Any, Any]:
    """Input and output of a call, tensors or None, in the form that the core takes."""
    # Through DLPack, not numpy(): after that torch could never resize the storage, which FSDP does.
    first = None if data is None else _core.HostBuffer(data)
    if into is data:
        return first, first
    return first, None if into is None else _core.HostBuffer(into)


def as_bytes(x: Any) -> Any:
    """x's memory (x must be `plain`) as a one-dimensional tensor of uint8."""
    x = x.detach() if x.requires_grad else x
    return x.as_strided((x.numel(),), (1,)).view(torch.uint8)  # strides of length 1 or 0 may be any


class JoinedOutputs:
    """Memory for the parts of a result, one after the other: that of the outputs if they are adjacent.

    Args:
        outputs: tensors of one type, in the order of their parts.

    Attributes:
        finish: copies the parts to the outputs; None if not needed.
    """

    __slots__ = ("_outputs", "_whole", "finish")

    def __init__(self, outputs: Sequence[Any]) -> None:
        self._outputs = [out.detach() for out in outputs]
        self._whole = adjacent(self._outputs)
        self.finish: Finish | None = self._copy if self._whole is None else None

    @property
    def whole(self) -> Any:
        """One-dimensional tensor over all parts; if not the outputs' memory, allocated on first use, uninitialized.

        On a device it belongs to the stream that is current then.
        """
        if self._whole is None:
            self._whole = room(sum(out.numel() for out in self._outputs), self._outputs[0])
        return self._whole

    def fill(self) -> JoinedOutputs:
        """Itself, with the outputs' elements already stored: for in-place calls."""
        if self.finish is not None:
            _put_together(self._outputs, self.whole)
        return self

    def _copy(self) -> None:
        parts = self.whole.split([out.numel() for out in self._outputs])
        for out, part in zip(self._outputs, parts, strict=True):
            out.copy_(part.view(out.shape))


def adjacent(tensors: Sequence[Any]) -> Any:
    """One flat tensor over the memory of all, if they are plain and adjacent in one storage; else None."""
    first = tensors[0]
    if len(tensors) == 1:
        return first.view(-1) if plain(first) else None
    place, storage, total = first.data_ptr(), first.untyped_storage().data_ptr(), 0
    for x in tensors:
        if not plain(x) or x.dtype != first.dtype or x.data_ptr() != place or not x.numel():
            return None
        if x.untyped_storage().data_ptr() != storage:
            return None
        place += x.numel() * x.element_size()
        total += x.numel()
    return first.as_strided((total,), (1,))


def joined(tensors: Sequence[Any]) -> Any:
    """One flat tensor with the elements of all; no copy if they are already adjacent."""
    tensors = [x.detach() for x in tensors]
    whole = adjacent(tensors)
    if whole is None:
        whole = room(sum(x.numel() for x in tensors), tensors[0])
        _put_together(tensors, whole)
    return whole


def _put_together(tensors: Sequence[Any], whole: Any) -> None:
    torch.cat([x.resolve_conj().resolve_neg().reshape(-1) for x in tensors], out=whole)


def check(tensors: Sequence[Any], what: str) -> None:
    """Reject tensors that no collective of this backend takes.

    Raises:
        TypeError: not tensors, or neither in CPU memory nor on a CUDA device. ValueError: no tensors, or types or
            devices differ.
    """
    if not tensors:
        raise ValueError(f"{what}: no tensors")
    for x in tensors:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{what} expects tensors, not {type(x).__name__}")
        if not (x.is_cpu or x.is_cuda):
            raise TypeError(f"{what}: a tensor on {x.device}; this process group moves CPU and CUDA tensors")
        if x.layout != torch.strided:
            raise TypeError(f"{what}: a tensor of layout {x.layout}; only allreduce takes sparse ones")
        if x.dtype != tensors[0].dtype:
            raise ValueError(f"{what}: tensors of different types, {tensors[0].dtype} and {x.dtype}")
    if len(tensors) > 1 and len(devices := {cuda().device(x) for x in tensors}) > 1:
        named = " and ".join("cpu" if device < 0 else f"cuda:{device}" for device in sorted(devices))
        raise ValueError(f"{what}: tensors on different devices, {named}")


def width(x: Any) -> int:
    """Elements of the array that `moved` returns, per element of x."""
    return 1 if x.dtype in _TAKEN else int(x.element_size())


Span = tuple[int, int]
"""Addresses of the first byte of memory and of the byte after its last."""


def span(x: Any) -> Span:
    """The memory of a tensor; the whole storage if it has gaps."""
    if x is None or x.layout != torch.strided or not x.numel():
        return 0, 0
    if x.is_contiguous():
        return x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()
    storage = x.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def overlap(some: Iterable[Span], others: Sequence[Span]) -> bool:
    """Return whether any memory is in both."""
    return any(start < last and first < end for start, end in some for first, last in others)
