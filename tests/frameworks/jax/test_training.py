"""Gradients, optimizers of optax and parameters over the ranks."""

from __future__ import annotations

from launch import launch, needs

needs("jax", "optax")


def test_training_in_step() -> None:
    alone = launch(1, _train, launcher="alone", timeout=60, check=True)[0].split()
    first, second = launch(2, _train, "0", "100", timeout=100, check=True)
    assert first == second
    lines = first.splitlines()
    assert len(lines) == 3 and set(lines) == {lines[0]}, "fusion changes no bit"
    assert abs(float(lines[0].split()[0]) - float(alone[0])) < 1e-12


def _train(*thresholds: str) -> None:
    """Prints a sum and a digest of the weights for the default fusion threshold, and for the given ones."""
    import functools
    import hashlib
    import os
    from typing import Any

    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import pycollective.jax as pj

    jax.config.update("jax_enable_x64", True)

    def train() -> None:
        n, rank = pj.size(), pj.rank()
        random = np.random.default_rng(0)
        x, y = random.normal(size=(24, 5)), random.normal(size=(24, 2))
        first = {"w": random.normal(size=(5, 7)), "v": random.normal(size=(7, 2)), "none": None, "scale": 1.0}
        start = pj.broadcast_parameters(jax.tree_util.tree_map(lambda a: jnp.asarray(a) * (rank == 0), first), 0)

        def loss(p: dict, x: jax.Array, y: jax.Array) -> jax.Array:
            return jnp.mean((jnp.tanh(x @ p["w"]) @ p["v"] * p["scale"] - y) ** 2)

        whole, gradient = jax.value_and_grad(loss)(start, x, y)
        value, reduced = jax.jit(pj.distributed_value_and_grad(loss))(start, x[rank::n], y[rank::n])
        assert abs(value - whole) < 1e-12
        for ours, expected in zip(*map(jax.tree_util.tree_leaves, (reduced, gradient)), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)

        def step(optimizer: Any, p: dict, state: object, x: jax.Array, y: jax.Array) -> tuple:
            updates, state = optimizer.update(jax.grad(loss)(p, x, y), state, p)
            return optax.apply_updates(p, updates), state

        flat = []
        for optimizer in (
            pj.DistributedOptimizer(optax.adam(0.01)),
            pj.DistributedOptimizer(optax.sgd(0.1, 0.9), backward_passes_per_step=2),  # optax averages in float32
        ):
            p, state, compiled = start, optimizer.init(start), jax.jit(functools.partial(step, optimizer))
            for _ in range(6):
                p, state = compiled(p, state, x[rank::n], y[rank::n])
            flat.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree_util.tree_leaves(p)]))
        halved = pj.grouped_allreduce({"a": jnp.full(3, 1.5)}, compression=pj.Compression.fp16)["a"]
        assert halved.dtype == np.float64 and (halved == 1.5).all()

        def with_integers(i: jax.Array, w: jax.Array) -> tuple:
            return (w * i.sum()).sum(), "aux"

        differentiated = pj.distributed_value_and_grad(with_integers, (0, 1), True, allow_int=True)
        (_, aux), gradients = differentiated(jnp.arange(3) + rank, jnp.ones(2))
        assert aux == "aux" and gradients[0].dtype == jax.dtypes.float0
        assert (gradients[1] == 3 + 3 * (n - 1) / 2).all()
        print(flat[0].sum(), hashlib.sha256(np.stack(flat).tobytes()).hexdigest())

    for threshold in ("", *thresholds):
        if threshold:
            os.environ["HOROVOD_FUSION_THRESHOLD"] = threshold
        pj.init()
        train()
        pj.shutdown()
