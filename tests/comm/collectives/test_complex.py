"""Complex numbers: sums, products and averages; and all collectives that only move them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import PLACES, TOPOLOGIES_OF, on_each_rank, place
from hypothesis import given
from hypothesis import strategies as st
from seeds import examples

from pycollective import Communicator, local_world

DTYPES = ("complex64", "complex128")
Array = np.ndarray[Any, Any]


def gaussian_integers(n: int, shape: int | tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    """Contributions of n ranks whose sums and products are exact."""
    random = np.random.default_rng([seed, n])
    whole = (n, shape) if isinstance(shape, int) else (n, *shape)
    made: Array = (random.integers(-2, 3, whole) + 1j * random.integers(-2, 3, whole)).astype(dtype)
    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", range(1, 18))
@on_each_rank()
def test_results_on_1_to_17_ranks_equal_numpys(comm: Communicator, n: int, dtype: str) -> None:
    xs = gaussian_integers(n, 3001, dtype)
    total, product = xs.sum(axis=0), xs[:8].prod(axis=0)
    for source in (xs[comm.rank], place(comm, xs[comm.rank], "window")):
        assert comm.allreduce(source).tolist() == total.tolist()
        factor = source if comm.rank < 8 else np.ones_like(source)
        assert comm.allreduce(factor, op="prod").tolist() == product.tolist()
        np.testing.assert_allclose(comm.allreduce(source, op="avg"), total / n, rtol=1e-6)
        assert comm.allreduce(source, prescale=2.0, postscale=0.5).tolist() == total.tolist()
        assert comm.scan(source).tolist() == xs[: comm.rank + 1].sum(axis=0).tolist()
        assert comm.allgather(source).tolist() == xs.ravel().tolist()
        assert comm.broadcast(source, n - 1).tolist() == xs[n - 1].tolist()


@pytest.mark.parametrize("topology", TOPOLOGIES_OF["allreduce"])
@pytest.mark.parametrize("dtype", DTYPES)
@on_each_rank(3)
def test_every_topology_and_place(comm: Communicator, dtype: str, topology: str) -> None:
    """Also at addresses that are not multiples of the element, and for counts below a vector."""
    data = {count: gaussian_integers(3, count, dtype) for count in (0, 1, 2, 7, 300, 40_001)}
    for xs in data.values():
        for here in PLACES:
            x = place(comm, xs[comm.rank], here)
            assert comm.allreduce(x, topology=topology).tolist() == xs.sum(axis=0).tolist()
            assert comm.allreduce(x, op="prod", topology=topology).tolist() == xs.prod(axis=0).tolist()
            assert comm.allreduce(x, out=x, topology=topology) is x
            assert x.tolist() == xs.sum(axis=0).tolist()


@examples(40)
@given(
    n=st.integers(1, 5),
    shape=st.lists(st.integers(0, 9), min_size=0, max_size=3).map(tuple),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_sums_have_the_bits_of_numpys(n: int, shape: tuple[int, ...], dtype: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    xs = (random.standard_normal((n, *shape)) + 1j * random.standard_normal((n, *shape))).astype(dtype)
    total = np.add.accumulate(xs, axis=0)[-1]
    for got in local_world(n).run(lambda comm: comm.allreduce(xs[comm.rank])):
        assert (got.shape, got.dtype) == (shape, dtype)
        assert got.tobytes() == total.tobytes()


def test_products_follow_the_textbook_formula() -> None:
    """(a + bi)(c + di) = (ac - bd) + (ad + bc)i, each operation rounded: no fused instructions."""
    random = np.random.default_rng(5)
    for dtype, part in (("complex64", np.float32), ("complex128", np.float64)):
        x, y = ((random.standard_normal(999) + 1j * random.standard_normal(999)).astype(dtype) for _ in range(2))
        a, b, c, d = x.real, x.imag, y.real, y.imag
        for got in local_world(2).run(lambda comm, x=x, y=y: comm.allreduce((x, y)[comm.rank], op="prod")):  # type: ignore[misc]
            assert got.real.tobytes() == (a * c - b * d).astype(part).tobytes()
            assert got.imag.tobytes() == (a * d + b * c).astype(part).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_factors_apply_to_real_and_imaginary_parts(dtype: str) -> None:
    """To each contribution before the operation, and to the result: exact, as they are powers of two."""
    xs = gaussian_integers(3, 500, dtype)
    for op, expected in (("sum", 2 * xs.sum(axis=0) / 8), ("prod", (2 * xs).prod(axis=0) / 8)):
        for got in local_world(3).run(
            lambda comm, op=op: comm.allreduce(xs[comm.rank], op=op, prescale=2, postscale=0.125)  # type: ignore[misc]
        ):
            assert got.tolist() == expected.tolist()
