"""Data-parallel SGD on scikit-learn's handwritten digits: a network with one hidden layer, in NumPy.

    mpirun -np 4 python examples/digits.py                      or `pycollective run -np 4`, or no launcher at all
    mpirun -np 4 python examples/digits.py --topology tree
    pycollective run -np 4 examples/digits.py --synthetic       without scikit-learn: noisy patterns instead of digits

Every rank has the full network. In each step it computes the gradients on its own rows, the gradients are averaged
over the ranks, and all take the same step: afterwards all have the same weights again.

The last line reports the accuracy on held-out digits, and a digest of the weights. Topologies that
reduce in rank order (direct, star) give the same digest: the weights are bitwise identical. The others add the same
numbers in another order; in float64, as here, the weights then differ by about 1e-15 and the accuracy does not.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

import pycollective as pc
from pycollective.optim import DistributedSGD, broadcast_object, load_checkpoint, partition, save_checkpoint

Array = NDArray[Any]
HIDDEN = 128
NOISE = 0.45


def read_digits() -> tuple[Array, Array]:
    """1797 images of 64 grey values from 0 to 1, float64, and their digits, int64; in a fixed random order."""
    from sklearn.datasets import load_digits  # here, as only rank 0 needs it and importing it is slow

    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return images[order] / 16, digits[order]


def make_patterns() -> tuple[Array, Array]:
    """As many rows, each one of ten random patterns with noise, and the pattern's number."""
    rng = np.random.default_rng(0)
    patterns, numbers = rng.random((10, 64)), rng.integers(10, size=1797)
    return patterns[numbers] + rng.normal(0, NOISE, (len(numbers), 64)), numbers


def limit_threads() -> None:
    """One thread per rank for NumPy's matrix products: the ranks already share the cores."""
    with contextlib.suppress(ImportError):  # launchers set OMP_NUM_THREADS for the same purpose
        from threadpoolctl import threadpool_limits

        threadpool_limits(1)


def initial_weights(rng: np.random.Generator) -> dict[str, Array]:
    return {
        "w1": rng.normal(0, np.sqrt(2 / 64), (64, HIDDEN)),
        "b1": np.zeros(HIDDEN),
        "w2": rng.normal(0, np.sqrt(2 / HIDDEN), (HIDDEN, 10)),
        "b2": np.zeros(10),
    }


def forward(w: dict[str, Array], x: Array) -> tuple[Array, Array]:
    hidden = np.maximum(x @ w["w1"] + w["b1"], 0)
    return hidden, hidden @ w["w2"] + w["b2"]


def backward(w: dict[str, Array], x: Array, target: Array, gradients: dict[str, Array]) -> None:
    """Write the gradients of the mean cross-entropy directly into the memory that the ranks share."""
    hidden, scores = forward(w, x)
    softmax = np.exp(scores - scores.max(1, keepdims=True))
    softmax /= softmax.sum(1, keepdims=True)
    error = (softmax - target) / len(x)
    np.matmul(hidden.T, error, out=gradients["w2"])
    np.sum(error, 0, out=gradients["b2"])
    error = error @ w["w2"].T * (hidden > 0)
    np.matmul(x.T, error, out=gradients["w1"])
    np.sum(error, 0, out=gradients["b1"])


def train(comm: pc.Communicator, x: Array, digits: Array, args: argparse.Namespace) -> dict[str, Array]:
    # Ranks start differently, to show that rank 0's weights are used.
    weights = initial_weights(np.random.default_rng([args.seed, comm.rank]))
    sgd = DistributedSGD(weights, args.lr, momentum=0.9, weight_decay=1e-4, comm=comm, topology=args.topology)
    sgd.broadcast_parameters()
    first = 0
    if args.checkpoint:
        with contextlib.suppress(FileNotFoundError):
            first = load_checkpoint(args.checkpoint, sgd)["epoch"] + 1

    target = 0.9 * np.eye(10)[digits] + 0.01  # label smoothing: which generalizes better
    share = max(1, args.batch // comm.size)
    silent = args.quiet or comm.rank > 0
    title = f"{args.topology}, {comm.size} ranks"
    for epoch in track(range(first, args.epochs), title, console=Console(stderr=True), disable=silent):
        rows = partition(len(x), comm, seed=args.seed, epoch=epoch, drop_last=True)
        for start in range(0, len(rows), share):
            batch = rows[start : start + share]
            backward(weights, x[batch], target[batch], sgd.gradients)
            sgd.step()
        if args.checkpoint:
            save_checkpoint(args.checkpoint, sgd, epoch=epoch)
    return weights


def accuracy(comm: pc.Communicator, weights: dict[str, Array], x: Array, digits: Array) -> float:
    """Each rank evaluates its share of the rows; the hits are summed."""
    rows = partition(len(x), comm)
    _, scores = forward(weights, x[rows])
    hits = np.count_nonzero(scores.argmax(1) == digits[rows])
    return float(comm.allreduce(np.array([hits]))[0] / len(x))


def main() -> None:
    parser = argparse.ArgumentParser(description="Data-parallel SGD on handwritten digits.")
    parser.add_argument("--topology", default="direct", help="how gradients are averaged: direct, ring, tree, ...")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.2, help="step size")
    parser.add_argument("--batch", type=int, default=64, help="rows in a step, on all ranks together")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the order of the rows")
    parser.add_argument("--checkpoint", metavar="PATH", help="continue from this file; write it after each epoch")
    parser.add_argument("--synthetic", action="store_true", help="train on noisy patterns: needs no scikit-learn")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    args = parser.parse_args()

    limit_threads()
    comm = pc.init()
    read = make_patterns if args.synthetic else read_digits
    x, digits = broadcast_object(read() if comm.rank == 0 else None, comm=comm)
    held_out = len(x) // 4
    weights = train(comm, x[held_out:], digits[held_out:], args)
    reached = accuracy(comm, weights, x[:held_out], digits[:held_out])
    if comm.rank == 0:
        digest = hashlib.sha256(b"".join(w.tobytes() for w in weights.values())).hexdigest()[:16]
        print(f"accuracy {reached:.4f}  digest {digest}  topology {args.topology}")


if __name__ == "__main__":
    main()
