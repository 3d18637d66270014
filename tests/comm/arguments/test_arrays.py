"""What may be passed as an array: NumPy arrays of all shapes, numbers and lists, and other libraries through DLPack."""

from __future__ import annotations

import array
import sys
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from calls import on_each_rank
from speed import until

from pycollective import Communicator, _core, local_world
from pycollective.comm.bootstrap.launchers import choose
from pycollective.engine import Engine, Item


@on_each_rank(2)
def test_shapes_and_strides_of_inputs(comm: Communicator) -> None:
    base = np.arange(60.0).reshape(3, 4, 5)
    large = np.arange(60_000, dtype=np.int32).reshape(300, 200)
    inputs = {
        "C": base,
        "Fortran": np.asfortranarray(base),
        "transposed": base.T,
        "large": large.T,
        "reversed": base[::-1],
        "every other": base[:, ::2, ::3],
        "broadcast": np.broadcast_to(np.arange(5.0), (3, 5)),
        "a column": base[:, :, 2],
        "one element": base[1:2, 1:2, 1:2],
        "0-d": base[1, 1, 1, ...],
        "empty": base[:, 4:],
        "read-only": np.frombuffer(base.tobytes()),
        **{kind: base.astype(kind)[:, 3::-2] for kind in ("bool", "int8", "int16", "float32")},
    }
    for name, x in inputs.items():
        before = x.copy()
        got = comm.allreduce(x, op="max")
        assert got.shape == x.shape, name
        assert (got == before).all(), name
        assert got.flags.c_contiguous
        assert (x == before).all()
        assert (comm.iallreduce(x, op="max").result(20) == before).all(), name
        assert (comm.broadcast(x, 1) == before).all(), name
        if x.ndim:
            assert (comm.allgather(x) == np.concatenate([before, before])).all(), name
            assert (comm.reduce_scatter(x, op="max") == np.array_split(before, 2)[comm.rank]).all(), name
    square = np.ones((64, 64)) * np.arange(64)
    assert (comm.allreduce(square.T, out=square) == 2 * np.arange(64)[:, None]).all()


@on_each_rank(2)
def test_numbers_and_sequences(comm: Communicator) -> None:
    assert comm.allreduce(3) == 6
    assert comm.allreduce(2.5).dtype == np.float64
    assert complex(comm.allreduce(1j)) == 2j
    assert comm.allreduce(True, op="land").dtype == bool
    assert comm.allreduce(np.float32(1.5)).dtype == np.float32
    assert comm.allreduce([[1, 2], [3, 4]]).tolist() == [[2, 4], [6, 8]]
    assert comm.allreduce((1.5, 2)).tolist() == [3, 4]
    assert comm.allreduce(range(3)).tolist() == [0, 2, 4]
    assert comm.allgather(comm.rank).tolist() == [0, 1]
    gathered = comm.gather(np.int8(comm.rank + 5), 1)
    assert gathered is None if comm.rank == 0 else gathered.tolist() == [5, 6]
    assert comm.broadcast(7.0 if comm.rank == 1 else 0.0, 1) == 7


@on_each_rank(2)
def test_the_buffer_protocol(comm: Communicator) -> None:
    assert comm.allreduce(array.array("d", [1, 2])).tolist() == [2, 4]
    assert comm.allreduce(np.arange(4).data).tolist() == [0, 2, 4, 6]
    with pytest.raises(TypeError, match="out is no array"):
        comm.allreduce(np.ones(2), out=bytearray(16))
    comm.barrier()


@on_each_rank(2)
def test_out_keeps_its_shape(comm: Communicator) -> None:
    """Only the number of elements must match; the result is `out` itself."""
    out = np.empty((2, 3))
    assert comm.allreduce(np.arange(6.0), out=out) is out
    assert out.tolist() == [[0, 2, 4], [6, 8, 10]]
    out = np.empty(())
    assert comm.allreduce(np.ones(1), out=out) is out
    assert out == 2


@on_each_rank(2)
def test_subclasses_and_unusual_dtypes(comm: Communicator) -> None:
    assert comm.allreduce(np.ones(3, np.longlong)).tolist() == [2, 2, 2]
    assert comm.allreduce(np.ones(3, "=i4")).tolist() == [2, 2, 2]
    memory = np.memmap("/dev/zero", np.uint8, "c", shape=(4096,))
    assert type(comm.allreduce(memory)) is np.ndarray
    assert comm.allreduce(np.ones(4096, np.uint8), out=memory) is memory
    assert memory.sum() == 8192
    assert comm.allreduce(np.ones(2, np.intp), out=np.ones(2, "l")).tolist() == [2, 2]


class Tagged(np.ndarray):
    """As a library's quantities: elements with a unit."""


STRANGE = {
    "masked": np.ma.masked_array([1.0, 2.0], [False, True]),
    "matrix": np.ones((1, 2)).view(np.matrix),
    "recarray": np.ones(2).view(np.recarray),
    "quantity": np.ones(2).view(Tagged),
}
CALLS_WITH = {
    "allreduce": lambda comm, x: comm.allreduce(x),
    "an out": lambda comm, x: comm.allreduce(np.ones(2), out=x),
    "a handle": lambda comm, x: comm.iallreduce(x),
    "factors": lambda comm, x: comm.allreduce(x, prescale=2.0),
    "broadcast": lambda comm, x: comm.broadcast(x),
    "allgather": lambda comm, x: comm.allgather(x),
    "send": lambda comm, x: comm.send(x, 1 - comm.rank),
    "recv": lambda comm, x: comm.recv(x, 1 - comm.rank),
}


@pytest.mark.parametrize("kind", STRANGE)
@on_each_rank(2)
def test_subclasses_with_meaning_beyond_their_elements_are_refused(comm: Communicator, kind: str) -> None:
    x = STRANGE[kind]
    for name, call in CALLS_WITH.items():
        with pytest.raises(TypeError, match=rf"a \S*\.{type(x).__name__}, a subclass .*numpy.asarray") as raised:
            call(comm, x)
        assert ("mask" in str(raised.value).partition(": ")[2]) == (kind == "masked"), name
    assert comm.allreduce(np.asarray(x)).sum() == 2 * np.asarray(x).sum()


@on_each_rank(2)
def test_the_engine_refuses_them_too(comm: Communicator) -> None:
    engine = Engine(comm)
    memory = np.memmap("/dev/zero", np.uint8, "c", shape=(4,))
    for x in STRANGE.values():
        for item in (Item("allreduce", "x", x), Item("allreduce", "x", np.ones(2), x), Item("allgather", "x", x)):
            with pytest.raises(TypeError, match="a subclass of"):
                engine.run([item])
    assert engine.run([Item("allreduce", "y", np.ones(4, np.uint8), memory)])[0] is memory
    assert memory.tolist() == [2] * 4
    engine.close()


@pytest.mark.parametrize("dtype", ["object", ">f4", "f4,i4", "M8[s]", "S3", "U3", "clongdouble", "longdouble", "V8"])
@on_each_rank(2)
def test_element_types_that_are_refused(comm: Communicator, dtype: str) -> None:
    for x in (np.zeros(2, dtype), np.zeros((2, 2), dtype)[:, 0]):
        with pytest.raises(TypeError, match="element type"):
            comm.allreduce(x)
        with pytest.raises(TypeError, match="element type"):
            comm.allgather(x)
    comm.barrier()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
@on_each_rank(2)
def test_scalars_of_small_floats(comm: Communicator, name: str) -> None:
    kind = getattr(ml_dtypes, name)
    for x, expected in ((kind(1.5), 3), ([kind(1), kind(2)], [2, 4]), (np.array(kind(1.5)), 3)):
        for got in (comm.allreduce(x), comm.iallreduce(x).result(20)):
            assert got.dtype == kind and got.astype(float).tolist() == expected
    gathered = comm.allgather(kind(comm.rank + 1))
    assert gathered.dtype == kind and gathered.astype(float).tolist() == [1, 2]
    assert comm.broadcast(kind(comm.rank + 1), 1).astype(float) == 2


class Bare:
    """Has `__dlpack__` and nothing else; `versioned` false: an old producer, without max_version."""

    def __init__(self, values: Any, versioned: bool = True) -> None:
        self.values, self.versioned = values, versioned

    def __dlpack__(self, **options: Any) -> Any:
        if not self.versioned and options:
            raise TypeError("unknown keyword")
        return self.values.__dlpack__(**options)


class Exporter(Bare):
    """Also has a shape, as arrays of most libraries."""

    @property
    def shape(self) -> Any:
        return self.values.shape

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("kind", [Bare, Exporter])
@on_each_rank(3)
def test_any_library_through_dlpack(comm: Communicator, kind: Any, versioned: bool) -> None:
    n, me = comm.size, comm.rank
    x = np.arange(n * 2 * 3, dtype=np.float32).reshape(n * 2, 3) + me
    total, given = sum(x + r - me for r in range(n)), kind(x.copy(), versioned)
    parts = np.concatenate([x[2 * me : 2 * me + 2] - me + r for r in range(n)])

    def check(call: Any, expected: Any, *more: Any) -> None:
        result = call(given, *more)
        assert type(result) is np.ndarray and result.dtype == np.float32
        np.testing.assert_array_equal(result, expected)
        out = kind(np.full(expected.shape, -1, np.float32), versioned)
        assert call(given, *more, out=out) is out
        np.testing.assert_array_equal(out.values, expected)

    check(comm.allreduce, total)
    check(comm.broadcast, x - me + 1, 1)
    check(comm.reduce_scatter, total[2 * me : 2 * me + 2])
    check(comm.allgather, np.concatenate([x - me + r for r in range(n)]))
    check(comm.alltoall, parts)
    check(comm.alltoallv, parts, [2] * n)
    check(comm.scatter, (x - me)[2 * me : 2 * me + 2], 0)
    both = kind(x.copy(), versioned)
    assert comm.iallreduce(both, both).result() is both
    np.testing.assert_array_equal(both.values, total)
    sent, box = comm.isend(given, (me + 1) % n), kind(np.empty_like(x), versioned)
    comm.recv(box, (me - 1) % n)
    np.testing.assert_array_equal(box.values, x - me + (me - 1) % n)
    sent.wait(20)
    for dtype in ("bool", "int8", "uint16", "int32", "uint64", "float16", "float64"):
        values = np.arange(6).reshape(2, 3).astype(dtype)
        out = kind(np.zeros_like(values), versioned)
        assert comm.allreduce(kind(values, versioned), out=out, op="max") is out
        assert out.values.tolist() == values.tolist()


@pytest.mark.parametrize("kind", [Bare, Exporter])
@on_each_rank(2)
def test_what_dlpack_refuses(comm: Communicator, kind: Any) -> None:
    frozen = np.zeros(6)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        comm.allreduce(np.ones(6), out=kind(frozen))
    assert np.asarray(comm.allreduce(kind(frozen))).tolist() == [0] * 6  # reading it is allowed
    strided = np.arange(12.0).reshape(6, 2)[:, 0]
    with pytest.raises(ValueError, match="contiguous"):
        comm.allreduce(np.ones(6), out=kind(strided))
    np.testing.assert_array_equal(comm.allreduce(kind(strided)), 2 * strided)
    with pytest.raises(TypeError, match="capsule"):
        comm.broadcast(type("Odd", (kind,), {"__dlpack__": lambda self, **options: 3})(frozen))
    comm.barrier()


def test_a_capsule_that_is_only_inspected_frees_its_array() -> None:
    x = np.ones((2, 3))
    before = sys.getrefcount(x)
    for _ in range(10):
        assert _core.dlpack_layout(x) == (1, (2, 3))
    assert sys.getrefcount(x) == before


@on_each_rank(2)
def test_exports_are_released(comm: Communicator) -> None:
    x = np.ones(100)
    before = sys.getrefcount(x)
    exporter = Exporter(x)
    for _ in range(10):
        comm.allreduce(exporter)
        comm.iallreduce(exporter).wait(20)
    del exporter
    until(lambda: sys.getrefcount(x) == before)  # the progress thread releases the last one later


def test_array_api_strict() -> None:
    strict = pytest.importorskip("array_api_strict")

    def body(comm: Communicator) -> None:
        x = strict.asarray([[1.0, 2.0], [3.0, 4.0]], dtype=strict.float32)
        for got in (comm.allreduce(x), comm.iallreduce(x).result(20)):
            assert type(got) is type(x)
            assert got.dtype == strict.float32
            assert got.shape == (2, 2)
            assert bool(strict.all(got == x * 2))
        assert comm.allgather(x).shape == (4, 2)
        assert comm.reduce_scatter(x).shape == (1, 2)
        assert comm.allreduce(x, out=x) is x
        assert float(x[1, 1]) == 8
        turned = strict.permute_dims(strict.reshape(strict.arange(6, dtype=strict.int32), (2, 3)), (1, 0))
        assert comm.allreduce(turned)[2, 1] == 10
        with pytest.raises(ValueError, match="contiguous"):
            comm.allreduce(strict.zeros((3, 2), dtype=strict.int32), out=turned)
        comm.barrier()

    local_world(2).run(body)


@pytest.mark.parametrize("name", ["torch", "cupy", "mpi4py.MPI", "pycollective.schedule.mixing"])
def test_while_another_thread_imports_a_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its import has completed, a module is known by name and has nothing in it."""
    monkeypatch.setitem(sys.modules, name, ModuleType(name))

    def body(comm: Communicator) -> None:
        for x in (np.ones(3), np.ones(6)[::2], [1.0, 1.0], 1.0):
            assert (comm.allreduce(x, topology="ring") == 2).all()
        engine = Engine(comm)
        assert engine.run([Item("allreduce", "x", np.ones(3))])[0].tolist() == [2.0] * 3
        engine.close()

    local_world(2).run(body)
    assert choose({}) == "alone"
