"""The equivalent in torch: the sum over the ranks' stacked buffers, and a copy of it to every rank."""

from __future__ import annotations

from typing import Any

from ..clock import Candidate, Clock
from .buffers import Buffers


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
