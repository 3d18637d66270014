"""Adasum: its definition for two ranks, and properties for any number.

Maleki and others, "Scaling Distributed Training with Adaptive Summation" (2020), equation 5:
Adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference import Array

from engine.operations import on_engines
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
def test_two_ranks(dtype: str, shape: tuple[int, ...]) -> None:
    xs = np.random.default_rng(1).normal(size=(2, *shape)).astype(dtype)
    right = adasum(*xs.astype(np.float64))
    for got in on_engines(2, lambda engine: submit(engine, xs[engine.rank])):
        assert got.dtype == dtype
        assert got.shape == shape
        np.testing.assert_allclose(got, right, rtol=0, atol=(1e-12 if dtype == "float64" else 1e-4))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7])
def test_equal_inputs_are_unchanged(n: int) -> None:
    x = np.random.default_rng(n).normal(size=500)
    for got in on_engines(n, lambda engine: submit(engine, x.copy())):
        np.testing.assert_allclose(got, x, rtol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7])
def test_orthogonal_inputs_are_summed(n: int) -> None:
    for got in on_engines(n, lambda engine: submit(engine, np.eye(n)[engine.rank] * (engine.rank + 1))):
        np.testing.assert_allclose(got, np.arange(1.0, n + 1), rtol=1e-12)


@pytest.mark.parametrize("n", [3, 4, 6])
def test_all_ranks_get_the_same_bits(n: int) -> None:
    xs = np.random.default_rng(n).normal(size=(n, 1000)).astype(np.float32)
    first, *others = on_engines(n, lambda engine: submit(engine, xs[engine.rank]))
    assert all(got.tobytes() == first.tobytes() for got in others)
    # in any order, a result scales with its inputs
    for got in on_engines(n, lambda engine: submit(engine, xs[engine.rank] * np.float32(4))):
        assert got.tobytes() == (first * np.float32(4)).tobytes()


def test_four_ranks_in_pairs() -> None:
    """Neighbors or halves first: both are trees known from Horovod."""
    xs = np.random.default_rng(4).normal(size=(4, 64))
    trees = [adasum(adasum(xs[0], xs[1]), adasum(xs[2], xs[3])), adasum(adasum(xs[0], xs[2]), adasum(xs[1], xs[3]))]
    for got in on_engines(4, lambda engine: submit(engine, xs[engine.rank])):
        assert any(np.allclose(got, tree, rtol=1e-12, atol=1e-12) for tree in trees)


@pytest.mark.parametrize("n", [2, 3])
def test_zeros(n: int) -> None:
    """No division by zero: a rank without a gradient has no effect."""
    for got in on_engines(n, lambda engine: submit(engine, np.full(5, float(engine.rank == 0)))):
        assert got.tolist() == [1.0] * 5
    for got in on_engines(n, lambda engine: submit(engine, np.zeros(5))):
        assert got.tolist() == [0.0] * 5


def test_each_tensor_by_itself() -> None:
    """Fused or not, the dot products are per tensor."""
    xs = np.random.default_rng(5).normal(size=(2, 8, 40))

    def body(engine: Engine) -> list[Any]:
        mine = [np.array(x) for x in xs[engine.rank]]
        return engine.run([Item("adasum", f"{i}", x, x) for i, x in enumerate(mine)])

    for results in on_engines(2, body):
        for i, got in enumerate(results):
            np.testing.assert_allclose(got, adasum(xs[0, i], xs[1, i]), rtol=1e-12, atol=1e-12)
