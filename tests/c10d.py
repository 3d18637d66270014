"""Ranks with torch.distributed process groups: one of the backend under test, one of Gloo for comparison.

A body is a module-level function of a test file: `body(world, *arguments)` on every rank; `run` returns its results
in rank order.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import processes
from bodies import run_by
from speed import deadline

SECONDS = deadline(20.0)
"""Default timeout of a process group in tests."""
_LOADED = ("checkpoint", "fsdp", "nn.functional", "optim", "tensor.parallel", "algorithms.ddp_comm_hooks.powerSGD_hook")
"""Parts of torch.distributed that take long to load."""
_server: subprocess.Popen[str] | None = None


class World:
    """Argument of a body.

    Attributes:
        rank, size: in both groups.
        link: to the test (a multiprocessing connection).
        ours: the process group under test, which is torch's default group.
        gloo: a process group of the same ranks; None if not requested.
    """

    def __init__(self, link: Any, rank: int, size: int, gloo: bool) -> None:
        import torch.distributed as dist

        self.link, self.rank, self.size = link, rank, size
        self.ours = dist.group.WORLD
        self.gloo = dist.new_group(backend="gloo") if gloo else None


def run(
    n: int,
    body: Callable[..., Any],
    *arguments: Any,
    gloo: bool = True,
    seconds: float = SECONDS,
    on_device: bool = False,
    reuse: bool = True,
) -> list[Any]:
    """Runs body(world, *arguments) on n processes; returns the results in rank order."""
    with _described(body, arguments, gloo, seconds, on_device) as call:
        return processes.run(n, _enter, *call, reuse=reuse)


@contextmanager
def job(
    n: int,
    body: Callable[..., Any],
    *arguments: Any,
    gloo: bool = False,
    seconds: float = SECONDS,
    leave: str = "free",
    on_device: bool = False,
) -> Iterator[processes.Job]:
    """Ranks that still run: for tests that communicate with ranks or kill them.

    `on_device`: the backend treats every tensor as one on a GPU; see gpu.torch.standin.
    """
    described = _described(body, arguments, gloo, seconds, on_device)
    with described as call, processes.Job(n, _enter, *call, leave=leave) as started:
        yield started


@contextmanager
def _described(
    body: Callable[..., Any], arguments: Any, gloo: bool, seconds: float, on_device: bool
) -> Iterator[tuple[Any, ...]]:
    """The arguments of _enter."""
    with tempfile.TemporaryDirectory(prefix="pycollective-test-") as folder, torch_loaded():
        yield processes._place(body), folder, gloo, seconds, on_device, arguments


def _enter(
    comm: Any,
    link: Any,
    place: tuple[str, str],
    folder: str,
    gloo: bool,
    seconds: float,
    on_device: bool,
    arguments: Any,
) -> Any:
    import torch.distributed as dist

    import pycollective.torch.distributed  # noqa: F401  registers the backend

    if on_device:
        from gpu.torch import standin

        standin.install(everything=True, eager=True)
    begin_anew()
    body = inspect.unwrap(processes._load(*place))
    dist.init_process_group(
        "pycollective",
        init_method=f"file://{Path(folder, 'store')}",
        rank=comm.rank,
        world_size=comm.size,
        timeout=timedelta(seconds=seconds),
    )
    value = body(World(link, comm.rank, comm.size, gloo), *arguments)
    if dist.is_initialized():
        dist.destroy_process_group()
    return value


@contextmanager
def torch_loaded() -> Iterator[None]:
    """Jobs fork from a server that has loaded torch."""
    global _server
    if _server is None or _server.poll() is not None:
        names = ("pycollective.torch", *(f"torch.distributed.{name}" for name in _LOADED), "torch._dynamo")
        modules = ", ".join(names)
        _server = subprocess.Popen(
            [sys.executable, "-c", f"import {modules}; from processes import serve; serve()"],
            stdin=subprocess.PIPE,
            text=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("PYCOLLECTIVE_")} | processes.IMPORTABLE,
            cwd=tempfile.gettempdir(),
        )
    before, processes._server = processes._server, _server
    try:
        yield
    finally:
        processes._server = before


def begin_anew() -> None:
    """Restore the settings of torch that bodies change."""
    import torch

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)


def values(world: World, dtype: str, *shape: int, rank: int | None = None) -> Any:
    """A rank's tensor: small integers, so that sums are exact in every type and order."""
    rank = world.rank if rank is None else rank
    import torch

    raw = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(rank))
    if dtype.startswith("complex"):
        return torch.complex(raw.double(), raw.flip(0).double()).to(getattr(torch, dtype))
    return (raw.abs() if dtype.startswith(("uint", "bool")) else raw).to(getattr(torch, dtype))


def everybodys(world: World, dtype: str, *shape: int) -> list[Any]:
    """The `values` of all ranks."""
    return [values(world, dtype, *shape, rank=rank) for rank in range(world.size)]


def same(got: Any, right: Any, *label: object) -> None:
    """Equal type, shape and bits."""
    import torch

    assert got.dtype == right.dtype and got.shape == right.shape, label
    raw = [x.contiguous().reshape(-1).view(torch.uint8) for x in (got, right)]
    assert torch.equal(*raw), f"{label}: {got} and not {right}"


def all_gather_single(out: Any, x: Any, **options: Any) -> Any:
    """torch's; it was renamed in 2.13."""
    import torch.distributed as dist

    return getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(out, x, **options)


def reduce_scatter_single(out: Any, x: Any, **options: Any) -> Any:
    """torch's; it was renamed in 2.13."""
    import torch.distributed as dist

    return getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(out, x, **options)


def on_ranks(*sizes: int, gloo: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Makes a function of a World a test, run on so many processes: see bodies.run_by; options: as for `run`."""
    return run_by(lambda n, body, given: run(n, body, *given.values(), gloo=gloo, **options), *sizes)


@contextmanager
def naming(*case: object) -> Iterator[None]:
    """Errors that are raised in it name the case."""
    try:
        yield
    except BaseException as error:
        raise AssertionError(f"in the case {case}") from error


def forms(x: Any) -> dict[str, Any]:
    """Matrices that hold the numbers of `x` in different ways."""
    import torch

    with torch.inference_mode():
        inference = x.clone()
    return {
        "plain": x.clone(),
        "a view": torch.cat([x, x])[len(x) :],
        "transposed": x.t().contiguous().t(),
        "negated": torch.complex(torch.zeros_like(x), -x).conj().imag,
        "negated, contiguous": torch._neg_view(-x),
        "inference": inference,
        "a parameter": torch.nn.Parameter(x.clone(), requires_grad=False),
        "requires grad": x.clone().requires_grad_(),
        "a subclass": x.clone().as_subclass(type("Mine", (torch.Tensor,), {})),
    }
