"""Training on scikit-learn's handwritten digits with JAX and optax.

    mpirun -np 4 python examples/jax_digits.py                  or torchrun, `pycollective run -np 4`, or no launcher

Every rank has the full network and processes its own rows of each batch. A step is one compiled function: it averages
the gradients over the ranks and updates the weights, which are the same on all ranks.

The last line reports the accuracy on held-out digits, and a digest of the weights. Fusion of gradients
(HOROVOD_FUSION_THRESHOLD, HOROVOD_CYCLE_TIME) does not change the digest. In float64 the weights agree up to rounding
for all numbers of ranks.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import pycollective.jax as hvd

Rows = tuple[Any, Any]


def read_digits(dtype: str) -> tuple[Rows, Rows]:
    """(training set, held-out set): 64 grey values from 0 to 1 and the digit; in a fixed random order."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x, y = images[order].astype(dtype) / 16, digits[order]
    held_out = len(x) // 4
    return (x[held_out:], y[held_out:]), (x[:held_out], y[:held_out])


def new_network(seed: int, dtype: str) -> list[dict[str, Any]]:
    keys = jax.random.split(jax.random.key(seed), 2)
    return [
        {"w": jax.random.normal(key, (rows, columns), dtype) / rows**0.5, "b": jnp.zeros(columns, dtype)}
        for key, rows, columns in zip(keys, (64, 128), (128, 10), strict=True)
    ]


def scores(network: list[dict[str, Any]], x: Any) -> Any:
    first, last = network
    return jax.nn.relu(x @ first["w"] + first["b"]) @ last["w"] + last["b"]


def loss(network: list[dict[str, Any]], x: Any, y: Any) -> Any:
    targets = optax.smooth_labels(jax.nn.one_hot(y, 10, dtype=x.dtype), 0.1)
    return optax.softmax_cross_entropy(scores(network, x), targets).mean()


def batches(rows: int, epoch: int, args: argparse.Namespace) -> Iterator[Any]:
    """This rank's part of every batch: the rows of a common random order are distributed among the ranks."""
    order = np.random.default_rng((args.seed, epoch)).permutation(rows)
    for start in range(0, rows - args.batch + 1, args.batch):
        yield order[start : start + args.batch][hvd.rank() :: hvd.size()]


def train(data: Rows, args: argparse.Namespace) -> list[dict[str, Any]]:
    x, y = data
    network = new_network(args.seed + hvd.rank(), args.dtype)  # ranks start differently: rank 0's weights are used
    optimizer = optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(args.lr, momentum=0.9))
    network, state = hvd.broadcast_parameters((network, optimizer.init(network)), root_rank=0)
    value_and_grad = hvd.distributed_value_and_grad(loss)

    @jax.jit
    def step(network: Any, state: Any, x: Any, y: Any) -> Any:
        value, gradients = value_and_grad(network, x, y)  # averages over the ranks
        updates, state = optimizer.update(gradients, state, network)
        return optax.apply_updates(network, updates), state, value

    for epoch in range(args.epochs):
        losses = []
        for rows in batches(len(x), epoch, args):
            network, state, value = step(network, state, x[rows], y[rows])
            losses.append(value)
        if args.verbose and hvd.rank() == 0:
            print(f"epoch {epoch}  loss {jnp.stack(losses).mean():.4f}")
    return network


def accuracy(network: list[dict[str, Any]], data: Rows) -> float:
    """Each rank evaluates its share of the rows; the hits are summed."""
    x, y = (part[hvd.rank() :: hvd.size()] for part in data)
    hits = (scores(network, x).argmax(1) == y).sum()
    return float(hvd.allreduce(hits, hvd.Sum)) / len(data[0])


def main() -> None:
    parser = argparse.ArgumentParser(description="Training on handwritten digits with JAX and optax.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1, help="step size")
    parser.add_argument("--batch", type=int, default=48, help="rows in a step, on all ranks together")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the order of the rows")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--verbose", action="store_true", help="print the loss after each epoch")
    args = parser.parse_args()

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", args.dtype == "float64")
    hvd.init()
    if args.batch % hvd.size():
        parser.error(f"--batch {args.batch} is not a multiple of the number of ranks, {hvd.size()}")
    training, held_out = read_digits(args.dtype)
    network = train(training, args)
    reached = accuracy(network, held_out)
    if hvd.rank() == 0:
        weights = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(network))
        print(f"accuracy {reached:.4f}  digest {hashlib.sha256(weights).hexdigest()[:16]}  ranks {hvd.size()}")


if __name__ == "__main__":
    main()
