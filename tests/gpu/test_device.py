"""Tests that need a real GPU: torch and cupy, their streams, graphs and allocators, and arrays beyond 2 GiB.

All other tests of this folder run there too with `pytest -m gpu`; see conftest.py.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from calls import on_each_rank

from gpu.device import data
from gpu.ranks import on_processes
from pycollective.comm.communicator import Communicator
from pycollective.schedule import describe

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

TOPOLOGIES = [row.name for row in describe()]
COUNTS = (5, 3000, 1_000_003)
"""Elements: packets, and tiles over many blocks with a partial vector at the end."""

needs_cupy = pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="needs cupy")


@pytest.fixture
def torch() -> Any:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("this torch does not use the GPU")
    return module


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64", "int64", "uint8", "bool"])
@on_each_rank(3)
def test_torch_tensors(comm: Communicator, torch: Any, name: str) -> None:
    """The result is a tensor, equal to torch's own reduction."""
    for count in COUNTS:
        generator = torch.Generator(device="cuda").manual_seed(comm.rank)
        x = torch.randint(0, 7, (count,), device="cuda", generator=generator).to(getattr(torch, name))
        op = "lor" if name == "bool" else "sum"
        out = comm.allreduce(x, op=op)
        assert isinstance(out, torch.Tensor) and out.is_cuda and out.dtype == x.dtype
        every = comm.allgather(x).reshape(comm.size, count)
        expected = every.any(0) if name == "bool" else every.to(torch.float64).sum(0).to(x.dtype)
        assert torch.equal(out, expected), count  # small whole numbers: exact in every type


@on_each_rank(2)
def test_torch_streams_are_kept(comm: Communicator, torch: Any) -> None:
    """A call runs in torch's current stream: it sees earlier work, and later work sees its result."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for turn in range(20):
            x = torch.zeros(1 << 20, device="cuda")
            torch.cuda._sleep(200_000)
            x += comm.rank + turn
            total = comm.allreduce(x)
            total *= 2
            assert float(total.max()) == 2 * (1 + 2 * turn) == float(total.min())


@pytest.mark.usefixtures("torch")
@on_processes(2, env=dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "expandable_segments:True"))
def test_torch_allocator_with_expandable_segments(comm: Communicator) -> None:
    """Memory that CUDA IPC cannot export is no problem: only the library's own memory is shared."""
    import torch

    for count in (100, 3_000_001):
        x = torch.full((count,), comm.rank + 1.0, device="cuda")
        assert torch.equal(comm.allreduce(x), torch.full_like(x, 3.0))


@needs_cupy
@on_each_rank(2)
def test_cupy_arrays(comm: Communicator) -> None:
    import cupy

    for count in COUNTS:
        x = cupy.asarray(data(comm.rank, count))
        out = comm.allreduce(x, out=cupy.empty_like(x))
        assert isinstance(out, cupy.ndarray)
        assert cupy.asnumpy(out).tobytes() == comm.allreduce(cupy.asnumpy(x)).tobytes()


@needs_cupy
@on_processes(2)
def test_cupy_async_pool(comm: Communicator) -> None:
    """Memory of cudaMallocAsync, which CUDA IPC does not support."""
    import cupy

    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    x = cupy.full(100_000, comm.rank + 1, cupy.float32)
    assert (comm.allreduce(x) == 3).all()


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("count", COUNTS)
@on_processes(2)
def test_torch_graph(comm: Communicator, count: int) -> None:
    """Captured once by each process, replayed with new data."""
    import torch

    x, out = torch.zeros(count, device="cuda"), torch.zeros(count, device="cuda")
    comm.allreduce(x, out=out)  # creates the windows and the plan
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            comm.allreduce(x, out=out)
    for turn in range(50):
        x.fill_(comm.rank + turn)
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, torch.full_like(out, 1.0 + 2 * turn)), turn


@pytest.mark.parametrize("topology", TOPOLOGIES)
@on_each_rank(2)
def test_more_than_two_gibibytes(comm: Communicator, torch: Any, topology: str) -> None:
    """Offsets beyond 32 bits."""
    x = torch.full(((1 << 31) + 12_345,), comm.rank + 1, dtype=torch.uint8, device="cuda")
    comm.allreduce(x, out=x, topology=topology)
    assert bool((x == 3).all())
