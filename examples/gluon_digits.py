"""Training on scikit-learn's handwritten digits with Gluon (MXNet 1.9), in the style of Horovod.

    mpirun -np 4 python examples/gluon_digits.py                or torchrun, `pycollective run -np 4`, or no launcher
    mpirun -np 4 python examples/gluon_digits.py --compression fp16

One line differs from a script for Horovod, `import pycollective.mxnet as hvd`; none with
`python -m pycollective.horovod`. Every rank has the full network and processes its own rows of each batch; the trainer
averages the gradients over the ranks, all in one call a step.

The last line reports the accuracy on held-out digits, and a digest of the weights. Fusion of gradients
(HOROVOD_FUSION_THRESHOLD, HOROVOD_CYCLE_TIME) does not change the digest. In float64 the weights agree up to rounding
for all numbers of ranks.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon import nn

import pycollective.mxnet as hvd


def read_digits() -> tuple[Any, Any]:
    """(images, digits): 64 grey values from 0 to 1 and the digit; in a fixed random order.

    Without scikit-learn: random images of ten kinds.
    """
    numbers = np.random.default_rng(0)
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        digits = numbers.integers(0, 10, 1797)
        return numbers.random((10, 64))[digits] + numbers.normal(0, 0.3, (1797, 64)), digits
    images, digits = load_digits(return_X_y=True)
    order = numbers.permutation(len(images))
    return images[order] / 16, digits[order]


def network(dtype: str) -> Any:
    net = nn.HybridSequential(prefix="digits_")
    with net.name_scope():
        net.add(nn.Dense(128, activation="relu"), nn.Dense(10))
    net.cast(dtype)
    net.hybridize()
    return net


def batches(images: Any, digits: Any, epoch: int, args: argparse.Namespace) -> Iterator[tuple[Any, Any]]:
    """This rank's part of every batch: the rows of a common random order are distributed among the ranks."""
    order = np.random.default_rng([args.seed, epoch]).permutation(len(images))
    rows = args.batch // hvd.size()
    for start in range(0, len(order) - args.batch + 1, args.batch):
        mine = order[start + hvd.rank() * rows :][:rows]
        yield mx.nd.array(images[mine], dtype=args.dtype), mx.nd.array(digits[mine], dtype=args.dtype)


def train(images: Any, digits: Any, args: argparse.Namespace) -> Any:
    mx.random.seed(args.seed + hvd.rank())  # ranks start differently, to show that rank 0's weights are used
    net = network(args.dtype)
    net.initialize(mx.init.Xavier())
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)  # in the first forward pass, when shapes are known
    options = {"learning_rate": args.lr, "momentum": 0.9, "wd": 1e-4}
    compression = getattr(hvd.Compression, args.compression)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", options, compression)
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for epoch in range(args.epochs):
        losses = []
        for x, y in batches(images, digits, epoch, args):
            with mx.autograd.record():
                loss = loss_of(net(x), y).mean()
            loss.backward()
            trainer.step(1)  # the loss is a mean already
            losses.append(loss)
        mean = hvd.allreduce(sum(losses) / len(losses), name="loss")  # over the ranks
        if args.verbose and hvd.rank() == 0:
            print(f"epoch {epoch}  loss {mean.asscalar():.4f}")
    return net


def accuracy(net: Any, images: Any, digits: Any, dtype: str) -> float:
    """Each rank evaluates its share of the rows; the hits are summed."""
    x, y = mx.nd.array(images[hvd.rank() :: hvd.size()], dtype=dtype), digits[hvd.rank() :: hvd.size()]
    hits = mx.nd.array([(net(x).asnumpy().argmax(axis=1) == y).sum()])
    return float(hvd.allreduce(hits, op=hvd.Sum).asscalar()) / len(images)


def main() -> None:
    parser = argparse.ArgumentParser(description="Training on handwritten digits with Gluon, in the style of Horovod.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1, help="step size")
    parser.add_argument("--batch", type=int, default=48, help="rows in a step, on all ranks together")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the order of the rows")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--compression", default="none", choices=["none", "fp16"], help="compression of gradients")
    parser.add_argument("--verbose", action="store_true", help="print the loss after each epoch")
    args = parser.parse_args()

    hvd.init()
    images, digits = read_digits()
    held_out = len(images) // 4
    net = train(images[held_out:], digits[held_out:], args)
    reached = accuracy(net, images[:held_out], digits[:held_out], args.dtype)
    if hvd.rank() == 0:
        weights = b"".join(p.data().asnumpy().tobytes() for p in net.collect_params().values())
        print(f"accuracy {reached:.4f}  digest {hashlib.sha256(weights).hexdigest()[:16]}  ranks {hvd.size()}")


if __name__ == "__main__":
    main()
