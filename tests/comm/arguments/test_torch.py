"""torch CPU tensors: used in place, of every type, and refused where a copy would be written and lost."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from calls import MOVING, REDUCING, call, on_each_rank
from reference import DTYPES, Array, contributions, numpy_type

from pycollective import Communicator, local_world

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def tensor(values: Array) -> Any:
    """A tensor with the same bits."""
    kind = getattr(torch, str(values.dtype))
    raw = torch.from_numpy(np.ascontiguousarray(values).view(f"u{values.itemsize}").view(f"i{values.itemsize}").copy())
    return raw.view(kind)


def bits(values: Any) -> bytes:
    if isinstance(values, np.ndarray):
        return values.tobytes()
    size = values.element_size()
    plain = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    return bytes(values.contiguous().view(plain).numpy().tobytes())


@pytest.mark.parametrize("dtype", DTYPES)
@on_each_rank(3)
def test_every_type_and_collective(comm: Communicator, dtype: str) -> None:
    xs = contributions(dtype, "max", 3, 3000)
    x = tensor(xs[comm.rank])
    for collective in (*REDUCING, *MOVING):
        options = {"op": "max"} if collective in REDUCING else {}
        right = call(comm, collective, xs[comm.rank], 1, **options)
        got = call(comm, collective, x, 1, **options)
        later = call(comm, f"i{collective}", x, 1, **options).result(20)
        if right is None:
            assert got is None
            continue
        for mine in (got, later):
            assert isinstance(mine, torch.Tensor)
            assert mine.dtype == x.dtype
            assert tuple(mine.shape) == right.shape
            assert bits(mine) == bits(right), collective


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "bool"])
@on_each_rank(2)
def test_results_are_written_to_the_tensors_memory(comm: Communicator, dtype: str) -> None:
    values = np.ones(5000).astype(numpy_type(dtype))
    out = tensor(np.zeros(5000).astype(numpy_type(dtype)))
    x = tensor(values)
    address = out.data_ptr()
    assert comm.allreduce(x, out=out, op="max") is out
    assert out.data_ptr() == address
    assert bits(out) == values.tobytes()
    assert comm.allreduce(x, out=x, op="min") is x
    assert bits(x) == values.tobytes()
    if comm.rank == 0:
        comm.send(x[:10], 1)
    else:
        assert bits(comm.recv(out[:10], 0)) == values[:10].tobytes()
    mixed = np.zeros(5000, values.dtype)
    comm.allreduce(x, out=mixed, op="max")
    assert mixed.tobytes() == values.tobytes()


@on_each_rank(2)
def test_torch_and_numpy_ranks_together(comm: Communicator) -> None:
    """One rank with tensors, one with ml_dtypes arrays: the same call."""
    x: Any = np.arange(50).astype(ml_dtypes.bfloat16)
    got = comm.allreduce(tensor(x) if comm.rank else x)
    assert [float(v) for v in got] == [2.0 * i for i in range(50)]


@on_each_rank(2)
def test_windows_as_tensors(comm: Communicator) -> None:
    """A tensor over a window's memory is zero-copy like the array."""
    window = comm.empty(5000, np.float32)
    x = torch.from_numpy(window)
    x.fill_(1.5)
    comm.allreduce(x, out=x)
    assert (window == 3).all()
    assert comm.empty(10, torch.bfloat16).dtype == ml_dtypes.bfloat16


@on_each_rank(2)
def test_gradients_are_refused_with_the_reason(comm: Communicator) -> None:
    x = torch.ones(5, requires_grad=True)
    for attempt, what in (
        (lambda: comm.allreduce(x), "x"),
        (lambda: comm.allreduce(torch.ones(5), out=x), "out"),
        (lambda: comm.iallreduce(x), "x"),
    ):
        with pytest.raises(BufferError, match=rf"^{what} \(.*detach"):
            attempt()
    assert comm.allreduce(x.detach())[0] == 2
    comm.allreduce(x.detach(), out=x.detach())
    assert x.detach()[0] == 2
    comm.allreduce(x.data, out=x.data)


@on_each_rank(2)
def test_strides_and_shapes(comm: Communicator) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    got = comm.allreduce(x.T)
    assert tuple(got.shape) == (4, 3)
    assert torch.equal(got, 2 * x.T)
    assert torch.equal(comm.allreduce(x[:, ::2]), 2 * x[:, ::2])
    assert torch.equal(comm.allreduce(x[1:]), 2 * x[1:])
    for out in (torch.zeros(4, 3).T, torch.zeros(3, 8)[:, ::2]):
        with pytest.raises(ValueError, match="contiguous"):
            comm.allreduce(x, out=out)
    assert float(comm.allreduce(torch.tensor(2.5))) == 5
    assert comm.allreduce(torch.empty(0, 3)).shape == (0, 3)
    assert torch.equal(comm.allgather(x[:1]), torch.cat([x[:1], x[:1]]))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor", "ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", ["complex32"])
def test_types_that_no_collective_takes(dtype: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(3)

    def body(comm: Communicator) -> None:
        with pytest.raises(TypeError, match=rf"no collective takes this element type \({dtype}\)"):
            comm.allreduce(torch.zeros(3, dtype=getattr(torch, dtype)))
        with pytest.raises(TypeError, match="no memory"):
            comm.allreduce(fake)
        with pytest.raises((TypeError, BufferError, RuntimeError), match=r"CPU memory|meta|device"):
            comm.allreduce(torch.zeros(3, device="meta"))
        comm.barrier()

    local_world(2).run(body)


@on_each_rank(2)
def test_a_tensor_with_its_negative_bit_is_summed_by_value(comm: Communicator) -> None:
    """torch sets a bit instead of negating the memory, and DLPack does not export it."""
    from pycollective.engine import Engine, Item

    x = torch.imag(torch.conj(torch.tensor([1 + 2j])))
    assert x.is_neg() and x.is_contiguous()
    assert comm.allreduce(x).tolist() == [-4]
    assert comm.iallreduce(x, prescale=0.5).result(20).tolist() == [-2]
    assert comm.allgather(x).tolist() == [-2, -2]
    with pytest.raises(ValueError, match="resolve_neg"):
        comm.allreduce(torch.ones(1), out=x)
    engine = Engine(comm)
    with pytest.raises(ValueError, match="resolve_neg"):
        engine.run([Item("allreduce", "x", x)])
    engine.close()


@on_each_rank(2)
def test_a_subclass_without_its_own_memory(comm: Communicator) -> None:
    """If C code gets no description of a tensor, `__dlpack__` is called, and its refusal names the reason."""

    class Wrapped(torch.Tensor):  # type: ignore[misc]
        @staticmethod
        def __new__(cls: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, (3,), dtype=torch.float32)

        @classmethod
        def __torch_dispatch__(cls, *args: Any, **options: Any) -> Any:
            raise NotImplementedError("no operation")

    with pytest.raises((TypeError, ValueError, RuntimeError, BufferError, NotImplementedError)):
        comm.allreduce(Wrapped())
    assert comm.allreduce(torch.ones(3)).sum() == 6


@on_each_rank(2)
def test_a_conjugated_view_counts_by_value(comm: Communicator) -> None:
    """Its memory has the conjugate of what it shows, which DLPack does not export."""
    view = torch.full((2, 2), 1 + 2j).conj()
    assert view.is_conj() and view.is_contiguous()
    for collective in (*REDUCING, *MOVING):
        for form in (collective, f"i{collective}"):
            results = [call(comm, form, x) for x in (view, view.resolve_conj())]
            found, expected = (made.result(20) for made in results) if form != collective else results
            assert found is expected is None or torch.equal(found, expected), form
    with pytest.raises(ValueError, match="resolve_conj"):
        comm.allreduce(torch.ones_like(view), out=view)
    request = comm.isend(view, 1 - comm.rank)
    assert torch.equal(comm.recv(torch.zeros_like(view).resolve_conj(), 1 - comm.rank), view)
    request.wait(20)
