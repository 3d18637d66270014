"""Tests that need a real GPU: torch and cupy, their streams, graphs and allocators, and arrays beyond 2 GiB.

All other tests of this folder run there too with `pytest -m gpu`; see conftest.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pycollective as pc
from launch import Launched
from pycollective.comm.communicator import Communicator
from pycollective.schedule import describe

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

TOPOLOGIES = [row.name for row in describe()]
COUNTS = (5, 3000, 1_000_003)
"""Elements: packets, and tiles over many blocks with a partial vector at the end."""


def data(rank: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1000 + rank).standard_normal(count).astype(np.float32)


@pytest.fixture
def torch() -> Any:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("this torch does not use the GPU")
    return module


# -- torch and cupy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64", "int64", "uint8", "bool"])
def test_torch_tensors(torch: Any, name: str) -> None:
    """The result is a tensor, equal to torch's own reduction."""

    def work(comm: Communicator) -> None:
        for count in COUNTS:
            generator = torch.Generator(device="cuda").manual_seed(comm.rank)
            x = torch.randint(0, 7, (count,), device="cuda", generator=generator).to(getattr(torch, name))
            op = "lor" if name == "bool" else "sum"
            out = comm.allreduce(x, op=op)
            assert isinstance(out, torch.Tensor) and out.is_cuda and out.dtype == x.dtype
            every = comm.allgather(x).reshape(comm.size, count)
            expected = every.any(0) if name == "bool" else every.to(torch.float64).sum(0).to(x.dtype)
            assert torch.equal(out, expected), count  # small whole numbers: exact in every type

    pc.local_world(3).run(work)


def test_torch_streams_are_kept(torch: Any) -> None:
    """A call runs in torch's current stream: it sees earlier work, and later work sees its result."""

    def work(comm: Communicator) -> None:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for turn in range(20):
                x = torch.zeros(1 << 20, device="cuda")
                torch.cuda._sleep(200_000)
                x += comm.rank + turn
                total = comm.allreduce(x)
                total *= 2
                assert float(total.max()) == 2 * (1 + 2 * turn) == float(total.min())

    pc.local_world(2).run(work)


def test_torch_allocator_with_expandable_segments(on_ranks: Callable[..., Launched]) -> None:
    """Memory that CUDA IPC cannot export is no problem: only the library's own memory is shared."""

    def rank_of_two() -> None:
        import torch

        import pycollective as pc

        comm = pc.init()
        for count in (100, 3_000_001):
            x = torch.full((count,), comm.rank + 1.0, device="cuda")
            assert torch.equal(comm.allreduce(x), torch.full_like(x, 3.0))
        print("fine")

    pytest.importorskip("torch")
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert [text.strip() for text in on_ranks(2, rank_of_two, env=env).check()] == ["fine", "fine"]


def test_cupy_arrays() -> None:
    cupy = pytest.importorskip("cupy")

    def work(comm: Communicator) -> None:
        for count in COUNTS:
            x = cupy.asarray(data(comm.rank, count))
            out = comm.allreduce(x, out=cupy.empty_like(x))
            assert isinstance(out, cupy.ndarray)
            expected = comm.allreduce(cupy.asnumpy(x))
            assert cupy.asnumpy(out).tobytes() == expected.tobytes()

    pc.local_world(2).run(work)


def test_cupy_async_pool(on_ranks: Callable[..., Launched]) -> None:
    """Memory of cudaMallocAsync, which CUDA IPC does not support."""

    def rank_of_two() -> None:
        import cupy

        import pycollective as pc

        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
        comm = pc.init()
        x = cupy.full(100_000, comm.rank + 1, cupy.float32)
        assert (comm.allreduce(x) == 3).all()
        print("fine")

    pytest.importorskip("cupy")
    assert [text.strip() for text in on_ranks(2, rank_of_two).check()] == ["fine", "fine"]


# -- graphs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", COUNTS)
def test_torch_graph(torch: Any, on_ranks: Callable[..., Launched], count: int) -> None:
    """Captured once by each process, replayed with new data."""

    def rank_of_two(text: str) -> None:
        import torch

        import pycollective as pc

        comm, count = pc.init(), int(text)
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
        print("fine")

    assert [text.strip() for text in on_ranks(2, rank_of_two, count).check()] == ["fine", "fine"]


# -- size --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_more_than_two_gibibytes(torch: Any, topology: str) -> None:
    """Offsets beyond 32 bits."""
    count = (1 << 31) + 12_345

    def work(comm: Communicator) -> None:
        x = torch.full((count,), comm.rank + 1, dtype=torch.uint8, device="cuda")
        comm.allreduce(x, out=x, topology=topology)
        assert bool((x == 3).all())

    pc.local_world(2).run(work)
