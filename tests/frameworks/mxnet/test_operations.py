"""Operations on NDArrays: the order of MXNet's dependency engine, element types, shapes and wrong arguments."""

from __future__ import annotations

from typing import Any

import mx as ranks
import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

DTYPES = ["bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64"]


@pytest.mark.parametrize("n", [2, 3])
def test_operations(n: int) -> None:
    ranks.run(n, _operations)


def _operations(hvd: Any) -> None:
    _what_is_in_flight(hvd)
    _parts_of_an_array(hvd)
    _types_and_shapes(hvd)
    _other_collectives(hvd)
    _layouts_of_onednn(hvd)
    _process_sets(hvd)


def _slow(start: float) -> Any:
    """An NDArray full of `start` that takes MXNet some time to compute."""
    ones = mx.nd.ones((700, 700))
    product = ones
    for _ in range(4):
        product = mx.nd.dot(product, ones) / 700
    return product * start


def _what_is_in_flight(hvd: Any) -> None:
    r, n = hvd.rank(), hvd.size()
    total = n * (n + 1) / 2
    assert (hvd.allreduce(_slow(r + 1), op=hvd.Sum).asnumpy() == total).all()
    x = _slow(r + 1)
    hvd.allreduce_(x, op=hvd.Sum)
    later = x * 2  # reads what was written
    x += 1  # writes after that
    assert (later.asnumpy() == 2 * total).all() and (x.asnumpy() == total + 1).all()
    y = mx.nd.ones((700, 700)) * (r + 1)
    y.wait_to_read()
    reader = mx.nd.elemwise_add(_slow(0), y)  # waits for its first operand, and then reads y as it is now
    hvd.grouped_allreduce_([y], op=hvd.Sum)
    assert (reader.asnumpy() == r + 1).all() and (y.asnumpy() == total).all()
    with mx.engine.bulk(10):  # operations that MXNet has not even started
        z = mx.nd.ones((5,)) * (r + 1)
        assert (hvd.broadcast_(z, n - 1) * 1).asnumpy().tolist() == [n] * 5


def _parts_of_an_array(hvd: Any) -> None:
    whole = mx.nd.ones((4, 3)) * (hvd.rank() + 1)
    hvd.allreduce_(whole[1:3], op=hvd.Max)
    assert whole.asnumpy()[:, 0].tolist() == [hvd.rank() + 1, hvd.size(), hvd.size(), hvd.rank() + 1]
    kept = mx.nd.zeros((2,))
    out = hvd.allreduce(kept)
    out += 1
    assert (kept.asnumpy() == 0).all()


def _types_and_shapes(hvd: Any) -> None:
    r, n = hvd.rank(), hvd.size()
    for dtype in DTYPES:
        x = mx.nd.array([r, 1, r == 0], dtype=dtype)
        most = hvd.allreduce(x, op=hvd.Max)
        assert most.dtype == x.dtype and most.asnumpy().tolist() == np.array([n - 1, 1, 1], dtype).tolist()
        assert hvd.allgather(x).asnumpy().dtype == np.dtype(dtype)
    bfloat16 = mx.nd.ones((3,)).astype(np.dtype([("bfloat16", np.uint16)]))
    assert hvd.allreduce(bfloat16, op=hvd.Sum).astype("float32").asnumpy().tolist() == [n] * 3
    scalar = hvd.allreduce(mx.np.array(r + 1.0), op=hvd.Sum)
    assert isinstance(scalar, mx.np.ndarray) and scalar.shape == () and float(scalar) == n * (n + 1) / 2
    assert hvd.allgather(mx.np.array(r + 1.0)).shape == (n,)
    with mx.util.np_shape(True):
        nothing, rows = mx.nd.empty((0, 3)), mx.nd.ones((r, 3))
        assert hvd.allreduce_(nothing) is nothing and hvd.broadcast(nothing, 0).shape == (0, 3)
        assert hvd.allgather(rows).shape == (n * (n - 1) // 2, 3)
        assert [x.shape for x in hvd.grouped_allreduce([nothing, mx.nd.ones((2,))])] == [(0, 3), (2,)]
    assert hvd.grouped_allreduce([]) == []


def _other_collectives(hvd: Any) -> None:
    r, n = hvd.rank(), hvd.size()
    x = mx.nd.arange(2 * n)
    assert hvd.reducescatter(x, op=hvd.Sum, prescale_factor=0.5).asnumpy().tolist() == [r * n, r * n + n / 2]
    received, rows = hvd.alltoall(x, splits=[2] * n)
    assert received.asnumpy().tolist() == [2 * r, 2 * r + 1] * n and rows.asnumpy().tolist() == [2] * n
    uneven = hvd.grouped_reducescatter([mx.nd.ones((n + 1, 2)), x], priority=3)
    assert [part.shape for part in uneven] == [(2 if r == 0 else 1, 2), (2,)]
    assert (hvd.allreduce(mx.nd.ones((2,)), op=hvd.Adasum).asnumpy() == 1).all()


def _layouts_of_onednn(hvd: Any) -> None:
    """Gradients of a convolution may be in a layout of oneDNN's, in memory that changes from step to step."""
    net = mx.gluon.nn.Conv2D(16, 3, in_channels=16)
    net.initialize()
    for step in range(3):
        with mx.autograd.record():
            loss = net(mx.nd.random.uniform(shape=(2, 16, 8, 8)) * (hvd.rank() + step)).square().sum()
        loss.backward()
        gradient = net.weight.grad()
        every = hvd.allgather(gradient.reshape(1, -1).copy()).asnumpy()
        hvd.allreduce_(gradient, op=hvd.Max)
        assert (gradient.asnumpy().reshape(-1) == every.max(axis=0)).all()


def _process_sets(hvd: Any) -> None:
    hvd.init(process_sets="dynamic")
    first = hvd.add_process_set([0])
    if hvd.rank() == 0:
        assert hvd.allreduce(mx.nd.ones((2,)), process_set=first).asnumpy().tolist() == [1, 1]
    else:
        with pytest.raises(mx.MXNetError, match="is not part of"):
            hvd.allreduce(mx.nd.ones((2,)), process_set=first)
    hvd.remove_process_set(first)


def test_wrong_arguments() -> None:
    texts = ranks.run(2, _wrong_arguments)
    assert texts[0] == texts[1]
    assert "'allreduce.shape'" in texts[0][0] and "rank 1 submits allreduce(shape=(4,)" in texts[0][0]


def _wrong_arguments(hvd: Any) -> list[str]:
    from pycollective import MismatchError

    r = hvd.rank()
    ones, caught = mx.nd.ones((3,)), []
    for name, x in [("shape", mx.nd.ones((3 + r,))), ("dtype", ones.astype("int32" if r else "float32"))]:
        before = x.asnumpy()
        with pytest.raises(MismatchError) as error:
            hvd.allreduce_(x, name=name)
        assert isinstance(error.value, mx.MXNetError) and (x.asnumpy() == before).all()
        caught.append(str(error.value))
    with pytest.raises(mx.MXNetError):  # the roots differ
        hvd.broadcast(ones, r)
    for wrong in [np.ones(3), 3, None, mx.nd.sparse.zeros("row_sparse", (3, 4))]:
        with pytest.raises(TypeError):
            hvd.allreduce(wrong)
    with pytest.raises(TypeError):
        hvd.grouped_allreduce(ones)
    unwritten = mx.nd.NDArray(mx.nd.ndarray._new_empty_handle())
    refused = [
        lambda: hvd.allreduce(unwritten),
        lambda: hvd.allreduce(ones, op=17),
        lambda: hvd.broadcast(ones, 5),
        lambda: hvd.alltoall(ones),
        lambda: hvd.alltoall(ones, splits=[1, 1]),
        lambda: hvd.alltoall(ones, splits=mx.nd.ones((2,))),
        lambda: hvd.reducescatter(mx.np.array(1.0)),
        lambda: hvd.reducescatter(ones, op=hvd.Max),
    ]
    for call in refused:
        with pytest.raises(mx.MXNetError) as error:
            call()
        assert isinstance(error.value, ValueError)
    with pytest.raises(mx.MXNetError, match="scale parameter"):  # the operation that computes it fails
        hvd.allreduce(mx.nd.random.normal(0, -1, shape=(2, 2)))
    nan = hvd.allreduce(mx.nd.array([np.nan if r else 1.0, 1.0]))
    assert np.isnan(nan.asnumpy()).tolist() == [True, False]
    return caught
