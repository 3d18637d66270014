"""Calls enter the core without Python for NumPy arrays, torch tensors and others with DLPack's C exchange API.

What C code cannot read Python adapts, or refuses.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from calls import MOVING, REDUCING, call, on_each_rank
from hypothesis import given
from hypothesis import strategies as st
from reference import DTYPES, Array, contributions
from seeds import examples
from speed import until

from comm.arguments.test_memory_safety import DLTensor, capsule_of
from pycollective import Communicator, MismatchError, local_world
from pycollective.comm.arguments import arrays

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

COLLECTIVES = (*REDUCING, *MOVING, "scan")
LIKE_INPUT = ("allreduce", "broadcast", "scan")
"""Those whose output has the shape of x."""


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


def parameter(values: Any) -> Any:
    return torch.nn.Parameter(tensor(values), requires_grad=False)


def every_call(comm: Communicator, make: Callable[[Any], Any]) -> list[Any]:
    """The results of every method, blocking and nonblocking, on arrays from `make`."""
    n, me = comm.size, comm.rank
    x = make(np.arange(2 * n, dtype=np.float32) + me)
    results = [comm.barrier(), comm.ibarrier().result(20), comm.barrier(timeout=20, name="all")]
    for name in COLLECTIVES:
        outs = (None, x) if name in LIKE_INPUT else (None,)
        results += [call(comm, name, x, 1, out) for out in outs]
        results += [call(comm, f"i{name}", x, 1, out).result(20) for out in outs]
    options = {"prescale": 0.5, "postscale": 3.0, "timeout": 20, "topology": "ring", "name": "all", "op": "max"}
    results += [comm.allreduce(x, **options), comm.iscan(x, op="prod", name="other").result(20)]
    results += [comm.allgatherv(x), comm.allgatherv(x, [2 * n] * n), comm.iallgatherv(x, [2 * n] * n).result(20)]
    results += [comm.alltoallv(x, [2] * n), comm.alltoallv(x, [2] * n, (2,) * n), comm.ialltoallv(x, [2] * n).result(9)]
    peer = (me + 1) % n
    for _ in range(2):
        sent = comm.isend(x, peer)
        results += [comm.recv(make(np.zeros(2 * n, np.float32)), (me - 1) % n), sent.result(20)]
        got = comm.irecv(make(np.zeros(2 * n, np.float32)), source=(me - 1) % n)
        comm.send(x, dest=peer)
        results.append(got.result(20))
    return [result if result is None else bits(result) for result in results]


@pytest.mark.parametrize("make", [np.array, tensor, parameter], ids=["numpy", "torch", "parameter"])
def test_no_python_runs(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = local_world(2).run(lambda comm: every_call(comm, lambda values: np.array(values)))

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("Python reads a plain array")

    for name in ("adapted", "shape_of", "on_device"):
        monkeypatch.setattr(arrays, name, refuse)
    monkeypatch.setattr(torch.Tensor, "__dlpack__", refuse)
    assert local_world(2).run(lambda comm: every_call(comm, make)) == usual


@examples(60)
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 5), max_size=3).map(tuple) | st.just((3000,)),
    op=st.sampled_from(["sum", "max", "prod"]),
    given_out=st.booleans(),
    offset=st.integers(0, 3),
)
@on_each_rank(2)
def test_a_tensor_gives_the_bits_of_an_array(
    comm: Communicator, dtype: str, shape: tuple[int, ...], op: str, given_out: bool, offset: int
) -> None:
    size = int(np.prod(shape, dtype=int))
    xs = contributions(dtype, op, 2, size + offset)[:, offset:].reshape(2, *shape)
    mine = xs[comm.rank].copy()
    whole = tensor(np.concatenate([np.zeros(offset, mine.dtype), mine.reshape(-1)]))
    x = whole[offset:].reshape(shape)  # a view behind the start of its storage
    for name in (*COLLECTIVES, "exscan"):
        options = {"op": op} if name in (*REDUCING, "scan", "exscan") else {}
        right = call(comm, name, mine, 1, **options)
        out = torch.zeros(right.shape, dtype=x.dtype) if given_out and right is not None else None
        got = call(comm, name, x, 1, out, **options)
        adapted = call(comm, name, torch.stack([x, x], -1)[..., 0], 1, **options)  # which Python adapts
        later = call(comm, f"i{name}", x, 1, **options).result(20)
        for found in (got, adapted, later):
            assert (found is None) == (right is None), name
            if right is not None:
                assert bits(found) == right.tobytes(), name
                assert (found.shape, found.dtype, type(found)) == (right.shape, x.dtype, torch.Tensor)
                assert found.stride() == torch.empty(right.shape).stride() and not found.requires_grad
        assert out is None or got is out
    assert bits(x) == mine.tobytes()
    sent = comm.isend(x, 1 - comm.rank)
    assert bits(comm.recv(torch.zeros_like(x), 1 - comm.rank)) == xs[1 - comm.rank].tobytes()
    sent.wait(20)
    assert call(comm, "allreduce", x, out=x, op="max") is x
    assert bits(x) == comm.allreduce(mine, op="max").tobytes()


@on_each_rank(2)
def test_arrays_and_tensors_in_one_call(comm: Communicator) -> None:
    """On different ranks, as x and out, and as two names of one window."""
    values = np.arange(50).astype(ml_dtypes.bfloat16)
    x, out = (tensor(values), np.zeros_like(values)) if comm.rank else (values, torch.zeros(50, dtype=torch.bfloat16))
    assert comm.allreduce(x, out=out) is out
    assert [float(value) for value in out] == [2.0 * value for value in range(50)]
    window = comm.empty(5000, np.float32)
    alias = torch.from_numpy(window)
    alias.fill_(1.5)
    comm.allreduce(alias, out=alias)
    assert (window == 3).all()
    assert comm.empty(10, torch.bfloat16).dtype == ml_dtypes.bfloat16


class Renamed(torch.Tensor):  # type: ignore[misc]
    pass


class Doubled(torch.Tensor):  # type: ignore[misc]
    """Its operations have another meaning."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        if function is torch.Tensor.__dlpack__:
            raise BufferError("not for others")
        return super().__torch_function__(function, types, args, options or {})


class Wrapped(torch.Tensor):  # type: ignore[misc]
    """Has no memory of its own."""

    @staticmethod
    def __new__(cls: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, (3,), dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, *args: Any, **options: Any) -> Any:
        raise NotImplementedError("no operation")


def fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(3)


def inference() -> Any:
    with torch.inference_mode():
        return torch.ones(3)


UNREADABLE = ((TypeError, ValueError, RuntimeError, BufferError, NotImplementedError), None)
ODD: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "requires grad": (lambda: torch.ones(3, requires_grad=True), (BufferError, r"^x \(.*detach"),
                      (BufferError, r"^out \(.*detach")),
    "of a graph": (lambda: torch.ones(3, requires_grad=True) * 2, BufferError, BufferError),
    "negative bit": (lambda: torch.imag(torch.conj(torch.tensor([1 + 2j, 3 - 1j, 2j]))), None,
                     (ValueError, "resolve_neg")),
    "negative view of integers": (lambda: torch._neg_view(torch.tensor([1, 2, 3])), None, ValueError),
    "negative bit of one": (lambda: torch.imag(torch.conj(torch.tensor([1 + 2j]))), None, ValueError),
    "conjugate": (lambda: torch.full((2, 2), 1 + 2j).conj(), None, (ValueError, "resolve_conj")),
    "subclass": (lambda: torch.ones(3).as_subclass(Renamed), None, None),
    "overriding subclass": (lambda: torch.ones(3).as_subclass(Doubled), BufferError, BufferError),
    "wrapper": (Wrapped, UNREADABLE, UNREADABLE),
    "parameter": (lambda: torch.nn.Parameter(torch.ones(3)), BufferError, BufferError),
    "meta": (lambda: torch.zeros(3, device="meta"), (BufferError, "CPU memory|meta|device"), BufferError),
    "fake": (fake, (TypeError, "no memory"), TypeError),
    "sparse": (lambda: torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1.0]), (3,)), BufferError,
               BufferError),
    "inference": (inference, None, None),
    "empty": (lambda: torch.empty(0, 3), None, ValueError),
    "0-d": (lambda: torch.tensor(2.5), None, ValueError),
    "not contiguous": (lambda: torch.arange(6.0)[::2], None, ValueError),
    "expanded": (lambda: torch.ones(1).expand(3), None, ValueError),
    "transposed": (lambda: torch.arange(6.0).reshape(2, 3).T, None, (ValueError, "contiguous")),
    "strange strides": (lambda: torch.as_strided(torch.arange(6.0), (1, 3), (7, 1)), None, None),
    "complex32": (lambda: torch.zeros(3, dtype=torch.complex32),
                  (TypeError, r"no collective takes this element type \(complex32\)"), TypeError),
    "complex": (lambda: torch.ones(3, dtype=torch.complex64), None, TypeError),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8), BufferError, BufferError),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(1)]), RuntimeError, RuntimeError),
    "mkldnn": (lambda: torch.ones(3).to_mkldnn(), BufferError, BufferError),
    "zeros without memory": (lambda: torch._efficientzerotensor(3), TypeError, TypeError),
    "copied on write": (lambda: torch._lazy_clone(torch.ones(3)), None, None),
    "functional": (lambda: torch._to_functional_tensor(torch.ones(3)), TypeError, TypeError),
    "a list": (lambda: [1.0, 2.0], None, TypeError),
    "nothing": (lambda: None, TypeError, None),
}  # fmt: skip
"""How to make one, and the error, or the error and its text, of a call that reads it and of one that writes it.

None: it is taken.
"""


def refuses(error: Any) -> Any:
    kind, text = error if isinstance(error, tuple) else (error, None)
    return pytest.raises(kind, match=text)


def values_of(x: Any) -> np.ndarray[Any, Any]:
    return np.array(x.resolve_conj().resolve_neg().contiguous() if isinstance(x, torch.Tensor) else x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ODD)
@on_each_rank(2)
def test_odd_arrays_are_taken_or_refused(comm: Communicator, what: str) -> None:
    make, error, out_error = ODD[what]

    def attempt(name: str, x: Any, out: Any = None) -> Any:
        made = getattr(comm, name)(x, out=out)
        return made.result(20) if name.startswith("i") else made

    names = [f"{i}{name}" for name in (*LIKE_INPUT, "reduce_scatter", "allgather", "alltoall") for i in ("", "i")]
    for name in names:
        if error is not None:
            with refuses(error):
                attempt(name, make())
        else:
            found, right = attempt(name, make()), attempt(name, values_of(make()))
            assert type(found) is (np.ndarray if what == "a list" else torch.Tensor), name
            assert (values_of(found).tobytes(), tuple(found.shape)) == (right.tobytes(), right.shape), name
    for name in names[: 2 * len(LIKE_INPUT)]:
        out = make()
        if out_error is not None:
            with refuses(out_error):
                attempt(name, torch.ones(3), out)
        else:
            found = attempt(name, torch.ones(3), out)
            assert found is out or out is None
            assert values_of(found).tolist() == attempt(name, np.ones((*found.shape,), np.float32)).tolist(), name
    comm.barrier()


@on_each_rank(2)
def test_odd_messages_are_taken_or_refused(comm: Communicator) -> None:
    peer = 1 - comm.rank
    for what in ("negative bit", "conjugate", "parameter", "requires grad"):
        make, error, out_error = ODD[what]
        if error is not None:
            with refuses(error):
                comm.isend(make(), peer)
        else:
            sent, box = comm.isend(make(), peer), torch.zeros_like(make().resolve_conj().resolve_neg())
            assert torch.equal(comm.recv(box, peer), make())
            sent.wait(20)
        with refuses(out_error):
            comm.recv(make(), peer)


@on_each_rank(1)
def test_a_tensor_of_a_batch_has_no_memory_of_its_own(comm: Communicator) -> None:
    with pytest.raises((RuntimeError, BufferError)):
        torch.vmap(lambda x: comm.allreduce(x))(torch.ones(2, 3))


@on_each_rank(2)
def test_torch_modes(comm: Communicator) -> None:
    """Where torch makes other tensors than usual, so do the calls."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with torch.inference_mode():
        assert comm.allreduce(torch.ones(3)).is_inference()
    x = torch.ones(3)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(TypeError):
        comm.allreduce(x)
    with torch.device("meta"):
        assert comm.allgather(x).tolist() == [1.0] * 6


@on_each_rank(2)
def test_wrong_arguments_are_refused(comm: Communicator) -> None:
    x = torch.ones(4)
    read_only = np.ones(4, np.float32)
    read_only.flags.writeable = False
    for out in (torch.ones(5), torch.ones(4, dtype=torch.float64), read_only, x[1:], [0.0] * 4, np.ones(4, ">f4")):
        for name in ("allreduce", "broadcast", "alltoall"):
            with pytest.raises((ValueError, TypeError)):
                getattr(comm, name)(x, out=out)
    for named in ({"counts": [4, 4]}, {"counts": None}):
        assert comm.allgatherv(x, out=np.empty(8, np.float32), **named).sum() == 8
        with pytest.raises(TypeError):
            comm.allgatherv(x, [4, 4], **named)
    with pytest.raises(MismatchError, match=r"rank 0 sends 2 rows to rank 1, which expects 3"):
        comm.alltoallv(x, [2, 2], recv_counts=[3, 2] if comm.rank else None)
    assert comm.alltoallv(x, recv_counts=[2, 2], send_counts=[2, 2]).tolist() == [1.0] * 4


def refused(attempt: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="elements"):
        attempt()


def references(*objects: Any) -> list[int]:
    return [sys.getrefcount(found) for found in objects]


@on_each_rank(2)
def test_references_are_returned(comm: Communicator) -> None:
    x, out, array = torch.ones(6), torch.ones(6), np.ones(6, np.float32)
    attempts: list[Callable[[], Any]] = [
        lambda: comm.allreduce(x, out=out),
        lambda: comm.allreduce(x),
        lambda: comm.allgather(x),
        lambda: comm.reduce_scatter(x),
        lambda: comm.iallreduce(x, out=out).wait(20),
        lambda: comm.iallgather(x).result(20),
        lambda: comm.allgatherv(x, [6, 6]),
        lambda: comm.alltoallv(x, [3, 3]),
        lambda: comm.ibarrier().wait(20),
        lambda: comm.allreduce(x, out=array),
        lambda: comm.iallreduce(array, out=out).wait(20),
        lambda: refused(lambda: comm.allreduce(x, out=array[1:])),
        lambda: refused(lambda: comm.iallreduce(x, out=array[1:])),
    ]
    for attempt in attempts:
        attempt()
        comm.barrier()
        gc.collect()
        before = references(x, out, array)
        for _ in range(20):
            attempt()
        comm.barrier()  # behind the last nonblocking call
        until(lambda before=before: references(x, out, array) == before)  # type: ignore[misc]


@pytest.mark.parametrize("nonblocking", [False, True])
@on_each_rank(2)
def test_memory_that_a_tensor_gives_up_stays_until_the_call_has_completed(
    comm: Communicator, nonblocking: bool, event: threading.Event
) -> None:
    if comm.rank:
        event.wait(20)
        comm.allreduce(torch.ones(5000, dtype=torch.float64), timeout=20)
        return
    memory = np.ones(5000)
    gone = weakref.ref(memory)
    x = torch.from_numpy(memory)
    del memory
    if nonblocking:
        waiting = comm.iallreduce(x)
    else:
        waiting = ThreadPoolExecutor().submit(comm.allreduce, x, timeout=20)
        time.sleep(0.1)
    x.set_(torch.zeros(1, dtype=torch.float64))
    gc.collect()
    assert gone() is not None, "the call reads freed memory"
    event.set()
    assert (waiting.result(20) == 2).all()
    until(lambda: gone() is None)


# -- other libraries with the exchange API -------------------------------------------------------------------------


EXPORT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
DESCRIBE = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))


class ExchangeApi(ctypes.Structure):
    """DLPackExchangeAPI of dlpack.h."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p), ("export", EXPORT), ("adopt", ctypes.c_void_p), ("describe", DESCRIBE),
        ("stream", ctypes.c_void_p),
    )  # fmt: skip


def library(major: int = 1, capsule_name: bytes = b"dlpack_exchange_api", answer: int = 0, **wrong: Any) -> Any:
    """A class of arrays with the exchange API. `wrong`: fields of their descriptions; `answer`: the API's status."""
    counts = {"described": 0, "exported": 0}

    def describe(array: Any, into: Any) -> int:
        counts["described"] += 1
        memory: Any = array.memory
        array.shape_memory = (ctypes.c_int64 * max(1, memory.ndim))(*memory.shape)
        fields = {"data": memory.ctypes.data, "device": 1, "number": 0, "ndim": memory.ndim, "code": 2, "bits": 32,
                  "lanes": 1, "shape": array.shape_memory, "strides": None, "offset": 0}  # fmt: skip
        for name, value in (fields | wrong).items():
            setattr(into[0], name, value)
        return answer

    class Foreign:
        functions = DESCRIBE(describe), EXPORT(lambda *_: -1)
        api = ExchangeApi(major, 0, None, None, functions[1], None, functions[0], None)
        __dlpack_c_exchange_api__ = capsule_of(ctypes.addressof(api), capsule_name, None)

        def __init__(self, memory: Any) -> None:
            self.memory = memory

        def __dlpack__(self, **options: Any) -> Any:
            counts["exported"] += 1
            return self.memory.__dlpack__(**options)

    Foreign.counts = counts  # type: ignore[attr-defined]
    Foreign.capsule_name = capsule_name  # type: ignore[attr-defined]
    return Foreign


BROKEN: dict[str, dict[str, Any]] = {
    "an error": {"answer": -1},
    "another version": {"major": 2},
    "another capsule": {"capsule_name": b"something"},
    "a GPU": {"device": 2},
    "no memory": {"data": None},
    "unknown elements": {"code": 77},
    "vectors": {"lanes": 4},
    "no shape": {"shape": None},
    "many dimensions": {"ndim": -1},
    "negative extents": {"shape": (ctypes.c_int64 * 2)(-1, 3)},
    "too large": {"shape": (ctypes.c_int64 * 2)(1 << 40, 1 << 40)},
    "not contiguous": {"strides": (ctypes.c_int64 * 2)(1, 2)},
    "offset beyond memory": {"offset": 1 << 63},
}


@on_each_rank(2)
def test_another_library_with_the_exchange_api_is_read_by_c_code(comm: Communicator) -> None:
    kind = library()
    memory = np.arange(6, dtype=np.float32).reshape(2, 3) + comm.rank
    x, out = kind(memory), np.zeros((2, 3), np.float32)
    assert comm.allreduce(x, out=out) is out
    assert out.tolist() == [[1, 3, 5], [7, 9, 11]]
    assert comm.allgather(x, out=np.zeros((4, 3), np.float32))[3].tolist() == [4, 5, 6]
    assert comm.iallreduce(x, out=torch.zeros(2, 3)).result(20).tolist() == out.tolist()
    assert kind.counts["described"] and not kind.counts["exported"]


@on_each_rank(2)
def test_its_outputs_and_results_are_made_by_python(comm: Communicator) -> None:
    """The API does not report whether an array is read-only."""
    kind = library()
    memory = np.ones((2, 3), np.float32)
    assert (comm.allreduce(kind(memory)) == 2).all()
    out = kind(np.zeros((2, 3), np.float32))
    assert comm.allreduce(memory, out=out) is out
    assert (out.memory == 2).all()
    assert comm.allreduce(out, out=out) is out
    assert (out.memory == 4).all()
    out.memory.flags.writeable = False
    for x in (memory, out):
        with pytest.raises(ValueError, match="read-only"):
            comm.allreduce(x, out=out)


@pytest.mark.parametrize("what", BROKEN)
@on_each_rank(1)
def test_a_library_that_describes_wrongly_is_read_through_dlpack(comm: Communicator, what: str) -> None:
    kind = library(**BROKEN[what])
    x, out = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((2, 3), np.float32)
    for attempt in (
        lambda: comm.allreduce(kind(x), out=out),
        lambda: comm.alltoall(kind(x), out=out),
        lambda: comm.iallgather(kind(x), out=out).result(20),
    ):
        kind.counts["exported"] = 0
        out[:] = -1
        assert attempt().tolist() == x.tolist()
        assert kind.counts["exported"]


@on_each_rank(2)
def test_a_subclass_may_override_dlpack(comm: Communicator) -> None:
    """Its own `__dlpack__` counts, not the API that it inherits."""

    class Tripled(library()):  # type: ignore[misc]
        def __dlpack__(self, **options: Any) -> Any:
            return (3 * self.memory).__dlpack__(**options)

    x = np.ones((2, 3), np.float32)
    assert (comm.allreduce(Tripled(x), out=np.zeros_like(x)) == 6).all()
