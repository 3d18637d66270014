"""The collectives that reduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from pycollective.comm.request import CallRequest
from pycollective.torch.distributed import tensors
from pycollective.torch.distributed.collectives import multi_step
from pycollective.torch.distributed.collectives.arguments import many, one, operator, options, same_size
from pycollective.torch.distributed.collectives.calls import Calls, profiler_enabled

_OPTIONS = c10d.AllreduceOptions


def allreduce(group: Calls, inputs: Any, opts: Any = None, *more: Any) -> Any:
    """Replace every rank's tensor by the reduction of all, in place. Sparse tensors are summed or averaged."""
    # The latency path, written out, as each frame would cost a tenth of a call of 8 bytes: sums and averages of a
    # tensor that the core can reduce as it is.
    if type(opts) is _OPTIONS and group.direct and not profiler_enabled():
        jobs, order = group.jobs, group.order
        if not (jobs.started and jobs.inside()) and (not order.pending or order.admits_direct()):
            call = group.reduce_plain(inputs, opts)
            if call is not NotImplemented:
                group.calls_made += 1
                if call is None:  # it has completed; torch allows None
                    return None
                return order.note_plain(call, inputs[0], jobs)
    opts = options(c10d.AllreduceOptions, opts, *more)
    x = one(inputs, "allreduce")
    if isinstance(x, torch.Tensor) and x.layout == torch.sparse_coo:
        return group.run_steps(multi_step.sparse_allreduce(x, opts.reduceOp, group.seconds(opts)), [x], [x], opts)
    tensors.check([x], "allreduce")
    return allreduce_as_one(group, [x], opts)


def allreduce_as_one(group: Calls, inputs: Sequence[Any], opts: Any) -> Any:
    """allreduce of tensors of one type, as one call."""
    op, scale = operator(opts.reduceOp, inputs[0])
    joined = tensors.JoinedOutputs(inputs)
    group.settle("allreduce", inputs, joined.finish is not None)
    data = tensors.numbers(joined.fill().whole)
    return group.call(CallRequest("allreduce", data, data, op=op, scale=scale), opts, inputs, joined.finish)


def reduce(group: Calls, inputs: Any, opts: Any = None, *more: Any) -> Any:
    """Replace the root's tensor by the reduction of all; the other tensors are unchanged."""
    opts = options(c10d.ReduceOptions, opts, *more)
    x = one(inputs, "reduce")
    tensors.check([x], "reduce")
    op, scale = operator(opts.reduceOp, x)
    root, out, finish = opts.rootRank, None, None
    if group.comm.rank == root:
        joined = tensors.JoinedOutputs([x])
        out, finish = tensors.numbers(joined.whole), joined.finish
    group.settle("reduce", [x], not tensors.plain(x))
    data = tensors.numbers(tensors.straight(x))
    return group.call(CallRequest("reduce", data, out, root=root, op=op, scale=scale), opts, [x], finish)


def reduce_scatter(group: Calls, outputs: Any, inputs: Any, opts: Any = None, *more: Any) -> Any:
    """Reduce all ranks' lists of tensors elementwise; rank r gets the r-th result."""
    opts = options(c10d.ReduceScatterOptions, opts, *more)
    out, parts = one(outputs, "reduce_scatter"), many(inputs, group.comm.size, "reduce_scatter")
    same_size(parts[group.comm.rank], out, "reduce_scatter")
    return _reduce_scatter(group, out, parts, [part.numel() for part in parts], opts)


def reduce_scatter_single(group: Calls, output: Any, input: Any, opts: Any = None) -> Any:
    """Reduce and scatter equal parts of one tensor."""
    opts = options(c10d.ReduceScatterOptions, opts)
    if input.numel() != output.numel() * group.comm.size:
        raise ValueError(f"reduce_scatter: {group.comm.size} parts of {output.numel()} elements in {input.numel()}")
    return _reduce_scatter(group, output, [input], [output.numel()] * group.comm.size, opts)


def _reduce_scatter(group: Calls, out: Any, parts: Sequence[Any], sizes: Sequence[int], opts: Any) -> Any:
    tensors.check([out, *parts], "reduce_scatter")
    op, scale = operator(opts.reduceOp, out)
    joined = tensors.JoinedOutputs([out])
    group.settle("reduce_scatter", [out, *parts], tensors.adjacent(parts) is None)
    data, into = tensors.numbers(tensors.joined(parts)), tensors.numbers(joined.whole)
    width = 2 if out.is_complex() else 1
    counts = tuple(width * size for size in sizes)
    request = CallRequest("reduce_scatter", data, into, counts=counts, op=op, scale=scale)
    return group.call(request, opts, [out], joined.finish)
