"""Digests of what the layers above the communicator compute: the engine, pycollective.torch and torch.distributed."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

TYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int16", "uint8", "bool", "complex64")
FLOATS = TYPES[:4]
COUNTS = (1, 7, 4097)
STEPS = 2


def digests(hvd: Any, store: str = "") -> dict[str, str]:
    """This rank's results by what was called, equal on any number of hosts.

    Args:
        hvd: initialized.
        store: a file through which torch's process group finds its ranks; "": they find each other.
    """
    import torch.distributed as dist

    found = dict(_engine(hvd)) | dict(_hvd(hvd)) | dict(_optimizer(hvd))
    where = {"init_method": f"file://{store}", "rank": hvd.rank(), "world_size": hvd.size()} if store else {}
    dist.init_process_group("pycollective", **where)
    found |= dict(_dist(hvd.rank())) | dict(_ddp(hvd.rank()))
    dist.destroy_process_group()
    return {name: hashlib.sha256(data).hexdigest()[:16] for name, data in found.items()}


def _engine(hvd: Any) -> Iterator[tuple[str, bytes]]:
    from pycollective.dtypes import DTYPES
    from pycollective.engine import Item
    from pycollective.hvd.basics import engine_of

    engine = engine_of(hvd.global_process_set)
    for dtype, op in itertools.product(DTYPES, ("sum", "avg", "prod", "max")):
        x = [_random(hvd.rank(), count).astype(_numpy_type(dtype)) for count in COUNTS]
        try:
            works = engine.submit([Item("allreduce", f"{dtype}.{op}.{len(each)}", each, op=op) for each in x])
        except TypeError:
            continue  # the operator does not take it
        yield f"engine {dtype} {op}", b"".join(work.wait().tobytes() for work in works)


def _hvd(hvd: Any) -> Iterator[tuple[str, bytes]]:
    for dtype, op in itertools.product(TYPES, ("Sum", "Average", "Min", "Max", "Product", "Adasum")):
        x = [_tensor(hvd.rank(), count, dtype) for count in COUNTS]
        try:
            group = hvd.grouped_allreduce(x, op=getattr(hvd, op), name=f"{dtype}{op}")
        except (TypeError, ValueError):
            continue
        yield f"hvd {dtype} {op}", b"".join(map(_bytes, group))
        assert _bytes(hvd.allreduce(x[-1], op=getattr(hvd, op))) == _bytes(group[-1]) or op == "Adasum"


def _dist(rank: int) -> Iterator[tuple[str, bytes]]:
    import torch.distributed as dist

    for dtype, op in itertools.product(TYPES, ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BXOR")):
        x = [_tensor(rank, count, dtype) for count in COUNTS]
        try:
            for each in x:
                dist.all_reduce(each, op=getattr(dist.ReduceOp, op))
        except (TypeError, ValueError):
            continue
        yield f"dist {dtype} {op}", b"".join(map(_bytes, x))


def _optimizer(hvd: Any) -> Iterator[tuple[str, bytes]]:
    import torch

    ways: list[dict[str, Any]] = [{}, {"compression": hvd.Compression.fp16}, {"gradient_predivide_factor": 2.0}]
    for dtype, options in itertools.product(FLOATS, [*ways, {"groups": 2}, {"op": hvd.Adasum}]):
        model = _model(dtype)
        sgd = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), **options)
        yield f"DistributedOptimizer {dtype} {list(options)}", _trained(hvd.rank(), model, model, optimizer)


def _ddp(rank: int) -> Iterator[tuple[str, bytes]]:
    import torch

    for dtype, options in itertools.product(FLOATS, ({}, {"bucket_cap_mb": 0.05}, {"gradient_as_bucket_view": True})):
        model = _model(dtype)
        parallel = torch.nn.parallel.DistributedDataParallel(model, **options)
        sgd = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        yield f"DDP {dtype} {list(options)}", _trained(rank, model, parallel, sgd)


def _model(dtype: str) -> Any:
    import torch

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(20, 200), torch.nn.ReLU(), torch.nn.Linear(200, 3))
    return model.to(getattr(torch, dtype))


def _trained(rank: int, model: Any, forward: Callable[[Any], Any], optimizer: Any) -> bytes:
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    for step in range(STEPS):
        optimizer.zero_grad()
        forward(_tensor(rank, 8 * 20 + step, dtype)[: 8 * 20].reshape(8, 20)).square().mean().backward()
        optimizer.step()
    return b"".join(_bytes(parameter.detach()) for parameter in model.parameters())


def _random(rank: int, count: int) -> Any:
    return np.random.default_rng([rank, count]).standard_normal(count) * 4


def _numpy_type(name: str) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, name))


def _tensor(rank: int, count: int, dtype: str) -> Any:
    import torch

    x = torch.from_numpy(_random(rank, count))
    return (x.abs() if dtype == "uint8" else x).to(getattr(torch, dtype))


def _bytes(tensor: Any) -> bytes:
    import torch

    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
