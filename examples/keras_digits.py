"""Training on scikit-learn's handwritten digits with Keras 3, on TensorFlow, JAX or torch.

    mpirun -np 4 python examples/keras_digits.py                or `pycollective run -np 4`, or no launcher at all
    KERAS_BACKEND=jax mpirun -np 4 python examples/keras_digits.py --epochs 4
    mpirun -np 4 python examples/keras_digits.py --save digits.keras

Every rank has the full network and trains on its own part of the digits; the optimizer averages the gradients of each
step over the ranks. The last line reports the accuracy on held-out digits, and a digest of the weights, which are
bitwise equal on all ranks.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import keras
import numpy as np

import pycollective.keras as hvd


def read_digits() -> tuple[Any, Any]:
    """1797 images of 64 grey values from 0 to 1, and their digits; in a fixed random order."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return images[order].astype("float32") / 16, digits[order]


def digest(model: Any) -> str:
    content = b"".join(np.ascontiguousarray(weight).tobytes() for weight in model.get_weights())
    return hashlib.sha256(content).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6, help="passes over the training set (default: 6)")
    parser.add_argument("--batch", type=int, default=32, help="rows of a rank in a step (default: 32)")
    parser.add_argument("--save", help="file in which rank 0 stores the model")
    args = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())  # ranks start differently, to show that rank 0's weights are used
    x, y = read_digits()
    held_out = len(x) // 4
    rows = (len(x) - held_out) // hvd.size()  # the same number of steps on all ranks
    mine = slice(held_out + hvd.rank() * rows, held_out + (hvd.rank() + 1) * rows)

    layers = [keras.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05 * hvd.size(), momentum=0.9))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.05 * hvd.size(), warmup_epochs=2),
    ]
    verbose = 2 if hvd.rank() == 0 else 0
    model.fit(x[mine], y[mine], batch_size=args.batch, epochs=args.epochs, verbose=verbose, callbacks=callbacks)
    digests = hvd.allgather_object(digest(model))
    if hvd.rank() == 0:
        _, accuracy = model.evaluate(x[:held_out], y[:held_out], verbose=0)
        assert len(set(digests)) == 1, digests
        print(f"{hvd.size()} ranks, {keras.backend.backend()}: accuracy {accuracy:.3f}, weights {digests[0]}")
        if args.save:
            model.save(args.save)


if __name__ == "__main__":
    main()
