"""The equivalent in torch: the sum over the ranks' stacked buffers, and a copy of it to every rank."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..clock import Candidate, Clock

if TYPE_CHECKING:
    from .buffers import Buffers


@functools.cache
def why_not() -> str | None:
    """Why torch cannot be measured here; None if it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "this torch cannot use the GPU"


def candidate(clock: Clock, buffers: Buffers) -> Candidate:
    """Sum and copies on every set, in the clock's stream."""
    import torch

    side: Any = torch.cuda.ExternalStream(clock.stream, device=clock.device)
    stacked = [_stacked(torch, inputs, buffers, clock) for inputs in buffers.inputs]
    outputs = [[torch.from_dlpack(out) for out in outs] for outs in buffers.outputs]

    def call(i: int) -> None:
        outs = outputs[i % len(outputs)]
        with torch.cuda.stream(side):
            torch.sum(stacked[i % len(stacked)], 0, out=outs[0])
            for out in outs[1:]:
                out.copy_(outs[0])

    return Candidate("torch sum and copies", call)


def _stacked(torch: Any, inputs: list[Any], buffers: Buffers, clock: Clock) -> Any:
    """The ranks' inputs, which are adjacent in memory, as one tensor (ranks, count)."""
    apart = (inputs[1].address - inputs[0].address) // (buffers.nbytes // buffers.count)
    flat = clock.cuda.DeviceArray(
        buffers.memory, inputs[0].address, [apart * (len(inputs) - 1) + buffers.count], buffers.dtype, clock.device
    )
    return torch.from_dlpack(flat).as_strided((len(inputs), buffers.count), (apart, 1))


def differ(inputs: Sequence[Any], results: Sequence[Any], collective: str, tolerance: float) -> int:
    """Elements of all results that differ from the expected ones, by more than `tolerance` or, if 0, in any bit."""
    import torch

    tensors: list[Any] = [torch.from_dlpack(x) for x in inputs]
    total = tensors[0].float()
    if collective != "broadcast":
        total = total.clone()
        for x in tensors[1:]:
            total += x  # in rank order, in float32, rounded once below
    right = total.to(tensors[0].dtype)
    found = 0
    for result in results:
        got: Any = torch.from_dlpack(result)
        if tolerance == 0:
            bits = torch.int32 if got.element_size() == 4 else torch.int16
            found += int((got.view(bits) != right.view(bits)).sum())
        else:
            found += int(((got.float() - right.float()).abs() <= tolerance).logical_not().sum())
    torch.cuda.synchronize()
    return found
