"""Training on scikit-learn's handwritten digits with TensorFlow, in the style of Horovod: a loop of one's own.

    mpirun -np 4 python examples/tensorflow_digits.py           or torchrun, `pycollective run -np 4`, or no launcher
    mpirun -np 4 python examples/tensorflow_digits.py --compression fp16

One line differs from a script for Horovod, `import pycollective.tensorflow as hvd`; none with
`python -m pycollective.horovod`. Every rank has the full network and processes its own rows of each batch; the tape
averages the gradients over the ranks, all of a step in one operation of the compiled graph.

The last line reports the accuracy on held-out digits, and a digest of the weights. Fusion of gradients
(HOROVOD_FUSION_THRESHOLD, HOROVOD_CYCLE_TIME) does not change the digest. In float64 the weights agree up to rounding
for all numbers of ranks.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import pycollective.tensorflow as hvd


def read_digits(dtype: str) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """(training set, held-out set): 64 grey values from 0 to 1 and the digit; in a fixed random order."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x, y = (images[order] / 16).astype(dtype), digits[order].astype(np.int32)
    held_out = len(x) // 4
    return (x[held_out:], y[held_out:]), (x[:held_out], y[:held_out])


class Network(tf.Module):
    """Two dense layers."""

    def __init__(self, dtype: str, seed: int) -> None:
        super().__init__()
        generator = np.random.default_rng(seed)

        def layer(rows: int, columns: int, name: str) -> tuple[tf.Variable, tf.Variable]:
            kernel = generator.uniform(-1, 1, (rows, columns)) / np.sqrt(rows)
            return (
                tf.Variable(kernel.astype(dtype), name=f"{name}/kernel"),
                tf.Variable(np.zeros(columns, dtype), name=f"{name}/bias"),
            )

        self.hidden, self.top = layer(64, 128, "hidden"), layer(128, 10, "top")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x @ self.hidden[0] + self.hidden[1]) @ self.top[0] + self.top[1]


def batches(data: tuple[Any, Any], epoch: int, args: argparse.Namespace) -> Iterator[tuple[Any, Any]]:
    """This rank's part of every batch: the rows of a common random order are distributed among the ranks."""
    x, y = data
    order = np.random.default_rng([args.seed, epoch]).permutation(len(x))
    mine = args.batch // hvd.size()
    for start in range(0, len(x) - args.batch + 1, args.batch):
        rows = order[start : start + args.batch][hvd.rank() * mine : (hvd.rank() + 1) * mine]
        yield tf.constant(x[rows]), tf.constant(y[rows])


def train(data: tuple[Any, Any], args: argparse.Namespace) -> Network:
    model = Network(
        args.dtype, args.seed + hvd.rank()
    )  # ranks start differently, to show that rank 0's weights are used
    hvd.broadcast_variables(model.trainable_variables, root_rank=0)
    momenta = [tf.Variable(tf.zeros_like(v)) for v in model.trainable_variables]
    compression = getattr(hvd.Compression, args.compression)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            labels = tf.one_hot(y, 10, 0.91, 0.01, dtype=args.dtype)  # smoothed
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels, model(x)))
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        for variable, momentum, gradient in zip(model.trainable_variables, momenta, gradients, strict=True):
            momentum.assign(0.9 * momentum + gradient + 1e-4 * variable)
            variable.assign_sub(args.lr * momentum)
        return loss

    for epoch in range(args.epochs):
        losses = [step(x, y) for x, y in batches(data, epoch, args)]
        mean = hvd.allreduce(tf.reduce_mean(losses), name="loss")  # over the ranks
        if args.verbose and hvd.rank() == 0:
            print(f"epoch {epoch}  loss {float(mean):.4f}")
    return model


def accuracy(model: Network, data: tuple[Any, Any]) -> float:
    """Each rank evaluates its share of the rows; the hits are summed."""
    x, y = (part[hvd.rank() :: hvd.size()] for part in data)
    hits = tf.reduce_sum(tf.cast(tf.argmax(model(x), 1, tf.int32) == y, tf.int32))
    return int(hvd.allreduce(hits, op=hvd.Sum)) / len(data[0])


def main() -> None:
    parser = argparse.ArgumentParser(description="Training on handwritten digits in the style of Horovod.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1, help="step size")
    parser.add_argument("--batch", type=int, default=48, help="rows in a step, on all ranks together")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the order of the rows")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument(
        "--compression", default="none", choices=["none", "fp16", "bf16"], help="compression of gradients"
    )
    parser.add_argument("--verbose", action="store_true", help="print the loss after each epoch")
    args = parser.parse_args()

    tf.config.threading.set_intra_op_parallelism_threads(1)  # the ranks already share the cores
    hvd.init()
    training, held_out = read_digits(args.dtype)
    model = train(training, args)
    reached = accuracy(model, held_out)
    if hvd.rank() == 0:
        weights = b"".join(v.numpy().tobytes() for v in model.trainable_variables)
        print(f"accuracy {reached:.4f}  digest {hashlib.sha256(weights).hexdigest()[:16]}  ranks {hvd.size()}")


if __name__ == "__main__":
    main()
