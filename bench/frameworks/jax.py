"""Allreduce inside jax.jit: this library, mpi4jax on MPI, and JAX's own psum over Gloo.

    mpirun -np 2 python -m pycollective.bench.frameworks.jax --sizes 8 1048576 67108864

A round times one compiled loop of allreduces of each library, one after the other; rank 0 prints the medians over the
rounds, and those of the ratios. A library that cannot be imported is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .rounds import free_port, median_ratio

pj: Any = importlib.import_module("pycollective.jax")  # by name: only this measurement needs it

Loop = Callable[[], Any]
BYTES_IN_A_LOOP = 64 << 20


def looped(allreduce: Callable[[Any], Any], turns: int) -> Any:
    return jax.jit(lambda x: jax.lax.fori_loop(0, turns, lambda _, x: allreduce(x), x))


def ours(count: int, turns: int) -> Loop:
    x, run = jnp.zeros(count), looped(lambda x: pj.allreduce(x, "sum"), turns)
    return lambda: run(x)


def of_mpi4jax(count: int, turns: int) -> Loop:
    import mpi4jax  # type: ignore[import-not-found]
    from mpi4py import MPI

    x, run = jnp.zeros(count), looped(lambda x: mpi4jax.allreduce(x, op=MPI.SUM), turns)
    return lambda: run(x)


def of_jax(count: int, turns: int) -> Loop:
    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    spec = PartitionSpec("ranks")
    sharding = NamedSharding(mesh, spec)
    zeros = np.full(count, 0, np.float32)  # written, as the others' are: pages of np.zeros are one page until then
    x = jax.make_array_from_process_local_data(sharding, zeros)

    def allreduce(x: Any) -> Any:
        return jax.lax.pcast(jax.lax.psum(x, "ranks"), "ranks", to="varying")

    def loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, turns, lambda _, x: allreduce(x), x)

    run = jax.jit(jax.shard_map(loop, mesh=mesh, in_specs=spec, out_specs=spec))
    return lambda: run(x)


def measure(loops: dict[str, Loop], rounds: int, turns: int) -> dict[str, list[float]]:
    """Seconds of an allreduce, for each round."""
    times: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(-1, rounds):  # the first compiles
        for name, loop in loops.items():
            jax.block_until_ready(pj.allreduce(jnp.zeros(1), "sum"))  # start together
            began = time.perf_counter()
            jax.block_until_ready(loop())
            if number >= 0:
                times[name].append((time.perf_counter() - began) / turns)
    return times


def main() -> None:
    libraries = {"pycollective": ours, "mpi4jax": of_mpi4jax, "psum over Gloo": of_jax}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 1 << 20, 64 << 20], help="bytes")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=libraries, help="names of libraries")
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    pj.init()
    address = pj.broadcast_object(f"127.0.0.1:{free_port()}")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, pj.size(), pj.rank())
    for size in args.sizes:
        turns = max(4, min(3000, BYTES_IN_A_LOOP // size))
        loops = {}
        for name in args.only or libraries:
            with contextlib.suppress(ImportError):
                loops[name] = libraries[name](max(1, size // 4), turns)
        times = measure(loops, args.rounds, turns)
        if pj.rank() == 0:
            for name, seconds in times.items():
                typical, ratio = statistics.median(seconds), median_ratio(seconds, times["pycollective"])
                print(f"{size:>10} B  {name:<15} {typical * 1e6:12.1f} us  {ratio:6.2f}x", flush=True)
    pj.barrier()
    jax.effects_barrier()
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
