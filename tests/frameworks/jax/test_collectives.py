"""Collectives inside jit: results, order, batching and derivatives, against NumPy arrays on a Communicator."""

from __future__ import annotations

from launch import launch, needs

needs("jax")


def test_bits_of_every_collective_and_element_type() -> None:
    launch(3, _bits, timeout=100, check=True)


def _bits() -> None:
    import jax
    import ml_dtypes  # noqa: F401  NumPy's bfloat16
    import numpy as np

    import pycollective
    import pycollective.jax as pj

    jax.config.update("jax_enable_x64", True)
    comm = pycollective.init()
    n, rank = comm.size, comm.rank
    other = comm.dup()

    def data(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        random = np.random.default_rng(rank).integers(0, 2 if dtype == "bool" else 3, shape)
        return (random if "int" in dtype or dtype == "bool" else random + 0.25).astype(np.dtype(dtype))

    def same(ours: object, theirs: object, what: str) -> None:
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes(), (what, ours, theirs)

    dtypes = ["bool", "float16", "float32", "float64", "complex64", "complex128", "bfloat16", "float8_e5m2"]
    for dtype in [*dtypes, *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))][:15]:
        x = data(dtype, (n, 2, 5))

        @jax.jit
        def all_of_them(x: object, op: str = "sum") -> list[object]:
            moved = [pj.allgather(x), pj.alltoall(x), pj.bcast(x, n - 1)]
            return [pj.allreduce(x, op), pj.reduce_scatter(x, op), pj.scan(x, op), *moved, pj.reduce(x, op, 0)]

        flat = x.reshape(n, -1)
        expected = [
            other.allreduce(x),
            other.reduce_scatter(flat).reshape(2, 5),
            other.scan(x),
            other.allgather(x).reshape(n, n, 2, 5),
            other.alltoall(flat).reshape(x.shape),
            other.broadcast(x, n - 1),
        ]
        reduced = other.reduce(x, 0)
        for ours, theirs in zip(all_of_them(x), [*expected, reduced if rank == 0 else x], strict=True):
            same(ours, theirs, dtype)
    for op in ("avg", "prod", "min", "max", "band", "bor", "bxor", "land"):
        x = data("int32" if op.startswith("b") else "float32", (7,))
        same(jax.jit(lambda x, op=op: pj.allreduce(x, op))(x), other.allreduce(x, op=op), op)
    big = np.random.default_rng(rank).random(700_001).astype(np.float32)
    same(jax.jit(lambda x: pj.allreduce(x, "sum"))(big), other.allreduce(big), "a large array")


def test_allreduce_takes_its_operands_memory_where_nobody_misses_it() -> None:
    launch(2, _memory, timeout=100, check=True)


def _memory() -> None:
    from collections.abc import Callable

    import jax
    import jax.numpy as jnp
    import numpy as np

    import pycollective.jax as pj

    pj.init()
    n, rank = pj.size(), pj.rank()
    x = jnp.arange(1e5, dtype=jnp.float32) + rank
    total = sum(np.arange(1e5, dtype=np.float32) + r for r in range(n))

    def reduced(x: jax.Array) -> jax.Array:
        return pj.allreduce(x, "sum")

    def used(x: jax.Array) -> tuple[jax.Array, ...]:
        y = x * 2
        return reduced(y), y

    def check(name: str, function: Callable[..., object], theirs: object, donated: bool = False) -> None:
        compiled = jax.jit(function, donate_argnums=0 if donated else ())
        results = compiled(jnp.copy(x) if donated else x)
        for ours, expected in zip(jax.tree.leaves(results), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_array_equal(np.asarray(ours), expected, name)
        np.testing.assert_array_equal(np.asarray(x), np.arange(1e5, dtype=np.float32) + rank, name)
        made = compiled.lower(x).compile()
        more = made.memory_analysis().temp_size_in_bytes
        assert name not in ("kept", "donated") or " copy(" not in made.as_text(), name
        assert more < x.nbytes // 2, f"{name}: {more} bytes more"

    check("kept", reduced, total)
    check("donated", reduced, total, donated=True)
    check("looped", lambda x: jax.lax.fori_loop(0, 3, lambda _, x: reduced(x), x), total * n**2)
    check("unused", lambda x: reduced(x * 2) + 1, total * 2 + 1)
    check("used", used, (total * 2, (np.arange(1e5, dtype=np.float32) + rank) * 2))
    check("nested", lambda x: jax.jit(reduced)(jax.jit(reduced)(x)), total * n)


def test_messages_order_loops_batching_and_derivatives() -> None:
    launch(3, _properties, timeout=120, check=True)


def _properties() -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import pycollective.jax as pj

    jax.config.update("jax_enable_x64", True)
    pj.init()
    n, rank, same = pj.size(), pj.rank(), np.testing.assert_array_equal
    x = jnp.arange(6.0).reshape(2, 3) + 100 * rank
    every = np.stack([np.arange(6.0).reshape(2, 3) + 100 * r for r in range(n)])
    same(jax.jit(lambda x: pj.gather(x, n - 1))(x), every if rank == n - 1 else x)
    mine = jnp.asarray(every) if rank == 0 else x
    same(jax.jit(lambda x: pj.scatter(x, 0))(mine), every[rank])
    right, left = (rank + 1) % n, (rank - 1) % n
    same(jax.jit(lambda x: pj.sendrecv(x, x, left, right))(x), every[left])
    big = jnp.full(1 << 20, float(rank))
    same(jax.jit(lambda x: pj.sendrecv(x, x, left, right, sendtag=3, recvtag=3))(big), big * 0 + left)
    same(pj.sendrecv(x, x * 0, rank, rank), x)
    same(pj.sendrecv(x, x, None, None), x)

    @jax.jit
    def two_messages(x: jax.Array) -> jax.Array:
        if rank == 0:
            pj.send(x, 1, tag=1)
            pj.send(2 * x, 1, tag=2)
            return x
        if rank == 1:
            first = pj.recv(x, 0, tag=1)
            return pj.recv(x, 0, tag=2) - first
        return x

    same(two_messages(x), every[0] if rank == 1 else x)

    same(jax.jit(lambda x: (pj.barrier(), x)[1])(x), x)

    # The ranks trace, and so number, the calls in opposite orders; they run in the program's order.
    calls = {k: jax.jit(lambda x, k=k: pj.allreduce(x * k, "sum") + pj.allreduce(x - k, "max")) for k in range(2, 8)}
    compiled = {k: calls[k].lower(x).compile() for k in (sorted(calls) if rank % 2 else sorted(calls, reverse=True))}
    expected = sum((every * k).sum(0) + (every - k).max(0) for k in sorted(calls))
    same(sum(np.asarray(compiled[k](x)) for k in sorted(calls)), expected)

    def summed(x: jax.Array) -> jax.Array:
        return pj.allreduce(x, "sum")

    same(jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda i, x: summed(x) / n, x))(x), every.mean(0))
    _, each = jax.jit(lambda x: jax.lax.scan(lambda c, i: (c + i, summed(c + i)), x, jnp.arange(3.0)))(x)
    same(each[-1], every.sum(0) + 3.0 * n)
    turns = jax.lax.while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 1, summed(s[1]) / n), (0, x))
    same(turns[1], every.mean(0))
    same(jax.jit(lambda b, x: jax.lax.cond(b, summed, lambda x: x, x))(True, x), every.sum(0))

    for function, axis in ((summed, 0), (pj.allgather, 0), (pj.allgather, 1), (lambda x: pj.bcast(x, 0), 1)):
        one_by_one = jnp.stack([function(jnp.take(x, i, axis)) for i in range(x.shape[axis])])
        same(jax.jit(jax.vmap(function, axis))(x), one_by_one)
    blocks = jnp.arange(n * 6.0).reshape(2, n, 3) + rank
    for function in (pj.alltoall, lambda x: pj.reduce_scatter(x, "sum")):
        same(jax.vmap(function)(blocks), jnp.stack([function(each) for each in blocks]))
    from_root = blocks if rank == 0 else blocks[:, 0]
    scatter = jax.vmap(lambda x: pj.scatter(x, 0))
    same(scatter(from_root), jnp.stack([pj.scatter(each, 0) for each in from_root]))
    gathered = jax.vmap(lambda x: pj.gather(x, 0), 1)(x)
    same(gathered, jnp.stack([pj.gather(x[:, i], 0) for i in range(3)]))

    def is_transpose(function: object, x: jax.Array) -> None:
        """<A x, y> = <x, A^T y>, summed over the ranks."""
        random = np.random.default_rng(7 + rank)
        x = jnp.asarray(random.integers(0, 9, x.shape).astype(float))
        y = function(x)
        weights = jnp.asarray(random.integers(0, 9, y.shape).astype(float))
        (back,) = jax.jit(jax.linear_transpose(function, x))(weights)
        sides = pj.allreduce(jnp.stack([(y * weights).sum(), (x * back).sum()]), "sum")
        same(sides[0], sides[1])

    for of_any in (pj.allgather, lambda x: pj.bcast(x, 1), lambda x: pj.reduce(x, "sum", 1), lambda x: pj.gather(x, 1)):
        is_transpose(of_any, x)
    is_transpose(lambda x: pj.scatter(x, 0), mine)
    is_transpose(pj.alltoall, blocks[0])
    is_transpose(lambda x: pj.scan(x, "sum"), x)
    is_transpose(lambda x: pj.reduce_scatter(x, "sum"), blocks[0])

    loss = jax.value_and_grad(lambda x: pj.allreduce((x**2).sum(), "sum"))
    value, gradient = jax.jit(loss)(x)
    assert value == (every**2).sum()
    same(gradient, 2 * x)
    same(jax.grad(lambda x: pj.allreduce(x, "avg").sum())(x), np.full((2, 3), 1 / n))
    weighted = jax.jit(jax.grad(lambda x: (pj.sendrecv(x, x, left, right) * (rank + 1.0)).sum()))
    same(weighted(x), np.full((2, 3), right + 1.0))
    same(pj.allreduce(jnp.zeros((0, 3)), "sum"), np.zeros((0, 3)))
