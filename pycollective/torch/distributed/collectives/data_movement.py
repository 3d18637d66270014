"""The collectives that move data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed.distributed_c10d as c10d

from pycollective.comm.request import CallRequest
from pycollective.torch.distributed import tensors
from pycollective.torch.distributed.collectives import multi_step
from pycollective.torch.distributed.collectives.arguments import many, one, options, same_size
from pycollective.torch.distributed.collectives.calls import Calls


def broadcast(group: Calls, inputs: Any, opts: Any = None, *more: Any) -> Any:
    """Overwrite every rank's tensor with the root's."""
    opts = options(c10d.BroadcastOptions, opts, *more)
    x = one(inputs, "broadcast")
    tensors.check([x], "broadcast")
    root = opts.rootRank
    joined = tensors.JoinedOutputs([x])
    finish = None if group.comm.rank == root else joined.finish
    group.settle("broadcast", [x], joined.finish is not None)
    if group.comm.rank == root:
        joined.fill()
    data = tensors.moved(joined.whole)
    return group.call(CallRequest("broadcast", data, data, root=root), opts, [x], finish)


def allgather(group: Calls, outputs: Any, inputs: Any, opts: Any = None, *more: Any) -> Any:
    """Every rank gets all ranks' tensors; their sizes may differ if every rank's outputs have these sizes."""
    opts = options(c10d.AllgatherOptions, opts, *more)
    outs, x = many(outputs, group.comm.size, "allgather"), one(inputs, "allgather")
    tensors.check([*outs, x], "allgather")
    same_size(x, outs[group.comm.rank], "allgather")
    sizes = [out.numel() for out in outs]
    return _gather_into(group, "allgather", tensors.JoinedOutputs(outs), x, sizes, opts, outs)


def all_gather_single(group: Calls, output: Any, input: Any, opts: Any = None) -> Any:
    """Gather into one tensor, from tensors of equal size."""
    opts = options(c10d.AllgatherOptions, opts)
    tensors.check([output, input], "allgather")
    if output.numel() != input.numel() * group.comm.size:
        raise ValueError(f"allgather: {group.comm.size} x {input.numel()} elements for an output of {output.numel()}")
    joined = tensors.JoinedOutputs([output])
    return _gather_into(group, "allgather", joined, input, [input.numel()] * group.comm.size, opts, [output])


def gather(group: Calls, outputs: Any, inputs: Any, opts: Any = None, *more: Any) -> Any:
    """The root gets all ranks' tensors, which are of equal size."""
    opts = options(c10d.GatherOptions, opts, *more)
    x = one(inputs, "gather")
    joined = None
    outs: Sequence[Any] = []
    if group.comm.rank == opts.rootRank:
        outs = many(outputs, group.comm.size, "gather")
        for out in outs:
            same_size(x, out, "gather")
        tensors.check([x, *outs], "gather")
        joined = tensors.JoinedOutputs(outs)
    tensors.check([x], "gather")
    sizes = [x.numel()] * group.comm.size
    return _gather_into(group, "gather", joined, x, sizes, opts, outs, opts.rootRank)


def _gather_into(
    group: Calls,
    kind: str,
    joined: tensors.JoinedOutputs | None,
    x: Any,
    sizes: Sequence[int],
    opts: Any,
    outputs: Sequence[Any],
    root: int = -1,
) -> Any:
    group.settle(kind, [x, *outputs], not tensors.plain(x))
    data = tensors.moved(tensors.straight(x))
    into = None if joined is None else tensors.moved(joined.whole)
    finish = None if joined is None else joined.finish
    width = tensors.width(x)
    counts = tuple(width * size for size in sizes)
    return group.call(CallRequest(kind, data, into, root=root, counts=counts), opts, outputs, finish)


def scatter(group: Calls, outputs: Any, inputs: Any, opts: Any = None, *more: Any) -> Any:
    """Each rank gets its tensor of the root's list; all are of equal size."""
    opts = options(c10d.ScatterOptions, opts, *more)
    out, data = one(outputs, "scatter"), None
    tensors.check([out], "scatter")
    if group.comm.rank == opts.rootRank:
        parts = many(inputs, group.comm.size, "scatter")
        for part in parts:
            same_size(part, out, "scatter")
        tensors.check([out, *parts], "scatter")
        group.settle("scatter", [out, *parts], tensors.adjacent(parts) is None)
        data = tensors.moved(tensors.joined(parts))
    group.settle("scatter", [out])
    joined = tensors.JoinedOutputs([out])
    into = tensors.moved(joined.whole)
    counts = (tensors.width(out) * out.numel(),) * group.comm.size
    request = CallRequest("scatter", data, into, root=opts.rootRank, counts=counts)
    return group.call(request, opts, [out], joined.finish)


def all_to_all_single(
    group: Calls, output: Any, input: Any, output_splits: Any = None, input_splits: Any = None, opts: Any = None
) -> Any:
    """Rank r gets the r-th part of every rank's tensor; parts have equally many rows, or those of the splits."""
    opts = options(c10d.AllToAllOptions, opts)
    tensors.check([output, input], "alltoall")
    sending = multi_step.part_sizes(input, input_splits, group.comm.size, "input")
    receiving = multi_step.part_sizes(output, output_splits, group.comm.size, "output")
    steps = multi_step.alltoall([input], [output], sending, receiving, group.seconds(opts))
    return group.run_steps(steps, [output, input], [output], opts)


def alltoall(group: Calls, outputs: Any, inputs: Any, opts: Any = None) -> Any:
    """Rank r gets the r-th tensor of every rank's list; they may be of any size."""
    opts = options(c10d.AllToAllOptions, opts)
    outputs, inputs = many(outputs, group.comm.size, "alltoall"), many(inputs, group.comm.size, "alltoall")
    tensors.check([*outputs, *inputs], "alltoall")
    sending, receiving = ([x.numel() for x in side] for side in (inputs, outputs))
    steps = multi_step.alltoall(inputs, outputs, sending, receiving, group.seconds(opts))
    return group.run_steps(steps, [*inputs, *outputs], outputs, opts)
