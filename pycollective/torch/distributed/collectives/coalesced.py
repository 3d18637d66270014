"""Collectives of several tensors at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch.distributed.distributed_c10d as c10d

from pycollective.comm.request import CallRequest
from pycollective.torch.distributed import tensors
from pycollective.torch.distributed.collectives import data_movement, reductions
from pycollective.torch.distributed.collectives.arguments import operator, options
from pycollective.torch.distributed.collectives.calls import Calls, recorded
from pycollective.torch.distributed.cuda import cuda
from pycollective.torch.distributed.execution.streams import DeviceWork
from pycollective.torch.distributed.execution.work import PlainWork, Several, Work

PACKED = 1 << 20
"""Size in bytes from which a tensor of a coalesced allreduce is sent separately: copying would cost more."""


def allreduce_coalesced(group: Calls, inputs: Sequence[Any], opts: Any = None) -> Any:
    """allreduce of several tensors; small ones of one type are packed into one call."""
    opts = options(c10d.AllreduceCoalescedOptions, opts)
    if group.options.engine and inputs and not group.jobs.inside() and cuda().device(inputs[0]) < 0:
        return _fused(group, inputs, opts)
    packs: dict[Any, list[Any]] = {}
    for i, x in enumerate(inputs):
        tensors.check([x], "allreduce")
        packs.setdefault(x.dtype if x.numel() * x.element_size() < PACKED else i, []).append(x)
    return _together(group, reductions.allreduce_as_one, zip(packs.values()), opts)


def _fused(group: Calls, inputs: Sequence[Any], opts: Any) -> Any:
    """Reduce several tensors through the engine, which does the packing and unpacking."""
    for x in inputs:
        tensors.check([x], "allreduce")
    named = [operator(opts.reduceOp, x) for x in inputs]
    joins = [tensors.JoinedOutputs([x]) for x in inputs]
    group.settle("allreduce", inputs, True)
    data = [tensors.numbers(joined.fill().whole) for joined in joins]
    finishes = [joined.finish for joined in joins if joined.finish is not None]

    def finish() -> None:
        for each in finishes:
            each()

    group.calls_made += 1
    op, scale = named[0]
    request, arrays = CallRequest("allreduce", None, None, op=op, scale=scale), [(x, x) for x in data]
    with recorded("allreduce"):
        return group.fuse(request, arrays, opts, inputs, finish if finishes else None)


def allgather_coalesced(group: Calls, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None) -> Any:
    """allgather of several tensors: outputs[rank][i] is inputs[i] of that rank."""
    opts = options(c10d.AllgatherOptions, opts)
    columns = [[row[i] for row in outputs] for i in range(len(inputs))]
    return _together(group, data_movement.allgather, zip(columns, inputs, strict=True), opts)


def all_gather_single_coalesced(group: Calls, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None) -> Any:
    """all_gather_single of several tensors."""
    opts = options(c10d.AllgatherOptions, opts)
    return _together(group, data_movement.all_gather_single, zip(outputs, inputs, strict=True), opts)


def reduce_scatter_single_coalesced(
    group: Calls, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
) -> Any:
    """reduce_scatter_single of several tensors."""
    opts = options(c10d.ReduceScatterOptions, opts)
    return _together(group, reductions.reduce_scatter_single, zip(outputs, inputs, strict=True), opts)


def _together(group: Calls, call: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], opts: Any) -> Any:
    works = [call(group, *some, opts) for some in arguments]
    outputs = [x for work in works for x in work.outputs]
    if works and isinstance(works[-1], DeviceWork):
        return works[-1].together(outputs)
    if getattr(opts, "asyncOp", True):
        return Work(Several(works), outputs, None, group.jobs)
    return PlainWork.completed(outputs, group.jobs)
