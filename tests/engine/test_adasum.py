"""Adasum: its definition for two ranks, and properties for any number.

Maleki and others, "Scaling Distributed Training with Adaptive Summation" (2020), equation 5:
Adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference import Array

from engine.operations import every_engine
from pycollective.engine import Engine, Item


def adasum(a: Array, b: Array) -> Array:
    """Adasum of two vectors, in float64."""
    dot, aa, bb = (float((u.ravel() * v.ravel()).sum()) for u, v in ((a, b), (a, a), (b, b)))
    left = 1 - dot / (2 * aa) if aa else 1.0
    right = 1 - dot / (2 * bb) if bb else 1.0
    combined: Array = left * a + right * b
    return combined


def submit(engine: Engine, x: Any) -> Any:
    return engine.run([Item("adasum", "a", x)])[0]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", [(1,), (7,), (13, 5), (100_000,)])
@every_engine(2)
def test_two_ranks(engine: Engine, dtype: str, shape: tuple[int, ...]) -> None:
    xs = np.random.default_rng(1).normal(size=(2, *shape)).astype(dtype)
    got = submit(engine, xs[engine.rank])
    assert (got.dtype, got.shape) == (dtype, shape)
    right = adasum(*xs.astype(np.float64))
    np.testing.assert_allclose(got, right, rtol=0, atol=(1e-12 if dtype == "float64" else 1e-4))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7])
@every_engine()
def test_equal_inputs_are_unchanged_and_orthogonal_ones_are_summed(engine: Engine) -> None:
    x = np.random.default_rng(engine.size).normal(size=500)
    np.testing.assert_allclose(submit(engine, x.copy()), x, rtol=1e-12)
    mine = np.eye(engine.size)[engine.rank] * (engine.rank + 1)
    np.testing.assert_allclose(submit(engine, mine), np.arange(1.0, engine.size + 1), rtol=1e-12)


@pytest.mark.parametrize("n", [3, 4, 6])
@every_engine()
def test_all_ranks_get_the_same_bits(engine: Engine) -> None:
    x = np.random.default_rng(engine.rank).normal(size=1000).astype(np.float32)
    got = submit(engine, x)
    assert set(engine.comm.allgather_object(got.tobytes())) == {got.tobytes()}
    # in any order, a result scales with its inputs
    assert submit(engine, x * np.float32(4)).tobytes() == (got * np.float32(4)).tobytes()


@every_engine(4)
def test_four_ranks_in_pairs(engine: Engine) -> None:
    """Neighbors or halves first: both are trees known from Horovod."""
    xs = np.random.default_rng(4).normal(size=(4, 64))
    trees = [adasum(adasum(xs[0], xs[1]), adasum(xs[2], xs[3])), adasum(adasum(xs[0], xs[2]), adasum(xs[1], xs[3]))]
    got = submit(engine, xs[engine.rank])
    assert any(np.allclose(got, tree, rtol=1e-12, atol=1e-12) for tree in trees)


@pytest.mark.parametrize("n", [2, 3])
@every_engine()
def test_zeros(engine: Engine) -> None:
    """No division by zero: a rank without a gradient has no effect."""
    assert submit(engine, np.full(5, float(engine.rank == 0))).tolist() == [1.0] * 5
    assert submit(engine, np.zeros(5)).tolist() == [0.0] * 5


@every_engine(2)
def test_each_tensor_by_itself(engine: Engine) -> None:
    """Fused or not, the dot products are per tensor."""
    xs = np.random.default_rng(5).normal(size=(2, 8, 40))
    mine = [np.array(x) for x in xs[engine.rank]]
    for i, got in enumerate(engine.run([Item("adasum", f"{i}", x, x) for i, x in enumerate(mine)])):
        np.testing.assert_allclose(got, adasum(xs[0, i], xs[1, i]), rtol=1e-12, atol=1e-12)
