"""reducescatter, single and grouped. See mpi_ops for the arguments."""

from __future__ import annotations

from typing import Any

import torch

from pycollective import checks
from pycollective.engine import Item
from pycollective.hvd import handles
from pycollective.hvd.arguments import OPS, Average, Sum, compressor, factor
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.torch.compression import Compression
from pycollective.torch.hvd.data_movement import Allgather
from pycollective.torch.hvd.tensors import Tensors, require_dense, sendable, several


def _reducescatters(
    tensors: Tensors, name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> list[Item]:
    with handles.Naming("reducescatter", name, process_set) as base:
        if type(op) is not int:
            op = checks.integer(op, "op")
        prescale, postscale = factor(prescale, "prescale_factor"), factor(postscale, "postscale_factor")
        if op not in (Average, Sum):
            raise NotImplementedError(f"reducescatter takes op=Average and op=Sum, not {op!r}")  # a RuntimeError
        items = []
        for number, tensor in enumerate(tensors):
            if not isinstance(tensor, torch.Tensor):
                require_dense(tensor)
            if tensor.dim() == 0:
                raise ValueError("reducescatter needs a tensor with an axis to cut")
            label = base if len(tensors) == 1 else f"{base}.{number}"
            x = sendable(tensor)
            items.append(Item("reducescatter", label, x, op=OPS[op], prescale=prescale, postscale=postscale))
        return items


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reduction of which each rank gets its rows; the first ranks get one more if they do not divide evenly."""
    items = _reducescatters([tensor], name, op, prescale_factor, postscale_factor, process_set)
    return handles.start(items, process_set)


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """reducescatter_async of several tensors; the result is a list."""
    items = _reducescatters(several(tensors), name, op, prescale_factor, postscale_factor, process_set)
    return handles.start(items, process_set, list)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet,
                *tensors: torch.Tensor) -> Any:  # fmt: skip
        items = _reducescatters(tensors, name, op, prescale, postscale, process_set)
        results = handles.run(items, process_set, list)
        ctx.process_set = process_set
        ctx.factor = prescale * postscale * (process_set.size() or 1 if op == Sum else 1)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """All ranks' gradients concatenated, times the number of ranks for Sum, as Horovod defines it."""
        scaled = [gradient * ctx.factor for gradient in gradients]
        joined = Allgather.apply(None, ctx.process_set, *scaled)
        return (None, None, None, None, None, *joined)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's rows of the reduction over all ranks. Differentiable."""
    return grouped_reducescatter([tensor], name, compression, op, process_set, prescale_factor, postscale_factor)[0]


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """reducescatter of several tensors."""
    tensors = several(tensors)
    small, contexts = zip(*map(compressor(compression).compress, tensors), strict=True) if tensors else ((), ())
    reduced = _Reducescatter.apply(name, op, prescale_factor, postscale_factor, process_set, *small)
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts, strict=True)]
