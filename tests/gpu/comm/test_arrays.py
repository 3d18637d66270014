"""Reading CUDA arrays of any library: the CUDA array interface, DLPack, torch and our own, and their streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from calls import on_each_rank

import pycollective as pc
from gpu.device import Dlpack, Interface, data, get, put, same
from pycollective import _core
from pycollective.comm.arguments import arrays as host_arrays
from pycollective.comm.cuda import arrays
from pycollective.comm.world import Communicator
from pycollective.dtypes import DTYPES

pytestmark = pytest.mark.usefixtures("cuda")


@pytest.mark.parametrize("wrap", [lambda x: x, Interface, Dlpack])
@pytest.mark.parametrize("dtype", _core.dtypes())
def test_every_dtype_in_every_protocol(wrap: Any, dtype: str) -> None:
    if wrap is Interface and DTYPES[dtype].extended:
        with pytest.raises(AttributeError, match="use DLPack"):
            _ = put(data(0, 3, dtype)).__cuda_array_interface__
        return
    array = put(data(0, (3, 4), dtype))
    found = arrays.view(wrap(array), 0, "x")
    assert (found.address, found.shape, found.dtype, found.device) == (array.address, (3, 4), dtype, 0)
    assert found.writable and found.count == 12 and found.nbytes == array.nbytes


def test_what_is_an_array_of_a_gpu() -> None:
    x = put(data(0, 3))
    assert all(host_arrays.on_device(each) for each in (x, Interface(x), Dlpack(x)))
    torch = pytest.importorskip("torch")
    for each in (np.zeros(3), [1, 2], 3.0, None, torch.zeros(3), memoryview(b"abc")):
        assert not host_arrays.on_device(each)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"typestr": "<c32"}, TypeError, "element type <c32"),
        ({"typestr": ">f4"}, TypeError, "element type >f4"),
        ({"mask": object()}, TypeError, "masked"),
        ({"strides": (4, 12)}, ValueError, "not C-contiguous"),
        ({"data": (12345, False)}, TypeError, "its address is not"),
    ],
)
def test_interfaces_that_no_call_takes(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    x = Interface(put(data(0, (3, 4))), **changes)
    with pytest.raises(error, match=text):
        pc.local_world(1).run(lambda comm: comm.allreduce(x))


def test_strides_that_are_contiguous() -> None:
    x = put(data(0, (3, 1, 4)))
    for strides in ((16, 16, 4), (16, 999, 4), None):
        assert arrays.view(Interface(x, strides=strides), 0, "x").shape == (3, 1, 4)
    empty = Interface(x, shape=(0, 4), strides=(1, 1), data=(0, False))
    assert arrays.view(empty, 0, "x").count == 0


@on_each_rank(2)
def test_read_only_arrays_are_read_and_not_written(comm: Communicator) -> None:
    x = put(data(comm.rank, 100))
    locked = Interface(x, data=(x.address, True))
    same(comm.allreduce(locked), comm.allreduce(data(comm.rank, 100)))
    for call in (comm.allreduce, comm.allgather, comm.broadcast):
        with pytest.raises(ValueError, match="out is read-only"):
            call(x, out=locked)


@on_each_rank(2)
def test_results_of_arrays_of_other_libraries(comm: Communicator) -> None:
    """The result is an array of x's library, or ours if that cannot create one. `out` may be of another library."""
    x = put(data(comm.rank, 50))
    expected = comm.allreduce(data(comm.rank, 50))
    for wrapped in (Interface(x), Dlpack(x)):
        same(comm.allreduce(wrapped), expected)
        out = Interface(put(np.zeros(50, np.float32)))
        assert comm.allreduce(wrapped, out=out) is out
        same(out.array, expected)


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attribute", ["cuda_stream", "ptr", "handle"])
def test_stream_objects(attribute: str) -> None:
    assert arrays.stream_of(SimpleNamespace(**{attribute: 77}), None) == 77
    assert arrays.stream_of(SimpleNamespace(**{attribute: SimpleNamespace(value=None)}), None) == 0
    assert arrays.stream_of(77, None) == 77
    assert arrays.stream_of(1, None) == arrays.stream_of(None, None) == 0  # the legacy default stream
    assert arrays.stream_of(SimpleNamespace(__cuda_stream__=lambda: (0, 55)), None) == 55


def test_dlpack_producers_are_told_the_stream(cuda: ModuleType) -> None:
    stream = cuda.Stream(0)
    x = Dlpack(put(data(0, 10)))
    arrays.view(x, stream.address, "x")
    assert x.asked == stream.address
    arrays.view(x, 0, "x")
    assert x.asked == 1  # DLPack's name of the legacy default stream


def test_the_producers_stream_is_waited_for(cuda: ModuleType) -> None:
    """An array's content may still be pending in the stream that its interface names."""
    producer, consumer = cuda.Stream(0), cuda.Stream(0)
    count = 1 << 20
    for turn in range(8):
        source, x = put(data(turn, count)), put(np.zeros(count, np.float32))
        for _ in range(4):
            cuda.copy(x.address, source.address, x.nbytes, producer.address)
        wrapped = Interface(x, stream=producer.address)
        out = pc.local_world(1).run(lambda comm, x=wrapped: comm.allreduce(x, stream=consumer.address))[0]
        assert get(out, consumer.address).tobytes() == data(turn, count).tobytes()


# -- torch, as far as possible without its CUDA part -------------------------------------------------------------------


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch, cuda: ModuleType) -> Any:
    """The real torch, with streams of the emulated device."""
    module = pytest.importorskip("torch")
    streams: list[Any] = [SimpleNamespace(cuda_stream=0)]

    @contextmanager
    def within(stream: Any) -> Iterator[None]:
        streams.append(stream)
        yield
        streams.pop()

    monkeypatch.setattr(module.cuda, "current_stream", lambda device=None: streams[-1])
    monkeypatch.setattr(module.cuda, "stream", within)
    monkeypatch.setattr(module.cuda, "ExternalStream", lambda handle, device=None: SimpleNamespace(cuda_stream=handle))
    return module


def tensor_on_device(torch: Any, array: Any) -> tuple[Any, list[int]]:
    """A disguised CPU tensor, whose data_ptr is that of a device array, and the streams recorded with it."""
    recorded: list[int] = []

    class Disguised(torch.Tensor):  # type: ignore[misc]
        is_cuda = property(lambda self: True)
        device = property(lambda self: SimpleNamespace(index=0))

        def data_ptr(self) -> int:
            return int(array.address)

        def record_stream(self, stream: Any) -> None:
            recorded.append(stream.cuda_stream)

    kind = getattr(torch, array.dtype)
    return torch.empty(array.shape, dtype=kind).as_subclass(Disguised), recorded


@pytest.mark.emulated
def test_tensors(torch: Any, cuda: ModuleType) -> None:
    array = put(data(0, (5, 4), "bfloat16"))
    tensor, recorded = tensor_on_device(torch, array)
    assert host_arrays.on_device(tensor)
    found = arrays.view(tensor, 0, "x")
    assert (found.address, found.shape, found.dtype, found.device) == (array.address, (5, 4), "bfloat16", 0)
    assert recorded == []
    with pytest.raises(ValueError, match="not C-contiguous"):
        arrays.view(tensor.t(), 0, "x")
    with pytest.raises(TypeError, match="complex32"):
        arrays.view(tensor.to(torch.complex32), 0, "x")


@pytest.mark.emulated
def test_tensors_in_a_stream_of_the_callers(torch: Any, cuda: ModuleType) -> None:
    """The current stream by default; any other stream is recorded with torch's allocator."""
    tensor, recorded = tensor_on_device(torch, put(data(0, 5)))
    current, other = cuda.Stream(0), cuda.Stream(0)
    with torch.cuda.stream(SimpleNamespace(cuda_stream=current.address)):
        assert arrays.stream_of(None, tensor) == current.address
        arrays.view(tensor, current.address, "x")
        assert recorded == []
        arrays.view(tensor, other.address, "x")
        assert recorded == [other.address]
