"""Keras 3's model.fit on 2 ranks: the share of communication in a step, per backend, and other libraries' steps.

    KERAS_BACKEND=torch pycollective run -np 2 python -m pycollective.bench.frameworks.keras
    KERAS_BACKEND=tensorflow pycollective run -np 2 python -m pycollective.bench.frameworks.keras --peer
    KERAS_BACKEND=torch pycollective run -np 2 python -m pycollective.bench.frameworks.keras --peer

A CNN of two convolutions (32 and 64 filters of 3x3) and a dense layer of 128, on images of 28x28, 64 a rank, one thread
a rank. Each round trains for a few steps with and without the reduction, in turn; the result is the median of the
rounds' ratios. `--peer` adds MultiWorkerMirroredStrategy on TensorFlow, or DistributedDataParallel on Gloo in a plain
loop on torch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from .rounds import median_ratio

BATCH = 64


def network(keras: Any) -> Any:
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def one_thread(backend: str) -> None:
    if backend == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)
    elif backend == "torch":
        import torch

        torch.set_num_threads(1)
    else:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def fits(keras: Any, wrap: Callable[[Any], Any], steps: int) -> Callable[[], float]:
    """A function that trains for some steps with model.fit; returns seconds a step."""
    model = network(keras)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(wrap(keras.optimizers.SGD(0.01)), loss)
    x = np.random.default_rng(0).random((BATCH * steps, 28, 28, 1), dtype=np.float32)
    y = np.arange(len(x)) % 10

    def train() -> float:
        start = time.perf_counter()
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
        return (time.perf_counter() - start) / steps

    train()
    return train


def data_parallel(keras: Any, steps: int) -> Callable[[], float]:
    """Train the same model in torch's DistributedDataParallel on Gloo, in a plain loop."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    rank, size = os.environ["PYCOLLECTIVE_RANK"], os.environ["PYCOLLECTIVE_SIZE"]
    torch.distributed.init_process_group(
        "gloo", init_method="tcp://127.0.0.1:29513", rank=int(rank), world_size=int(size)
    )
    plain = network(keras)
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(plain.parameters(), 0.01)
    x = torch.rand(BATCH, 28, 28, 1)
    y = torch.arange(BATCH) % 10

    def train() -> float:
        start = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        return (time.perf_counter() - start) / steps

    train()
    return train


def mirrored(steps: int) -> None:
    """A process of its own: TensorFlow's strategy must be created first. Prints seconds a step, from each rank."""
    rank = int(os.environ["PYCOLLECTIVE_RANK"])
    workers = ["127.0.0.1:29514", "127.0.0.1:29515"]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
    os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 3 does not support this strategy
    import tensorflow as tf

    one_thread("tensorflow")
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras = tf.keras
    with strategy.scope():
        model = network(keras)
        model.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(0).random((2 * BATCH * steps, 28, 28, 1), dtype=np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, np.arange(len(x)) % 10)).batch(2 * BATCH)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    times = []
    for _ in range(4):
        start = time.perf_counter()
        model.fit(data.with_options(options), verbose=0, steps_per_epoch=steps)
        times.append((time.perf_counter() - start) / steps)
    if rank == 0:
        print(f"MultiWorkerMirroredStrategy: {min(times[1:]) * 1e3:.2f} ms a step (least of 3)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--peer", action="store_true")
    args = parser.parse_args()
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    if args.peer and backend == "tensorflow":
        mirrored(args.steps)
        return
    one_thread(backend)
    import keras

    import pycollective.keras as hvd

    hvd.init()
    kinds = {
        "reduced": fits(keras, hvd.DistributedOptimizer, args.steps),
        "alone": fits(keras, lambda o: o, args.steps),
    }
    if args.peer and backend == "torch":
        kinds["DDP on Gloo"] = data_parallel(keras, args.steps)
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(args.rounds):
        for name, train in kinds.items():
            hvd.allreduce(0.0)
            times[name].append(train())
    if hvd.rank() == 0:
        for name, each in times.items():
            ratio = median_ratio(each, times["reduced"])
            print(f"{backend} {name}: {statistics.median(each) * 1e3:.2f} ms a step, {ratio:.3f} of reduced")


if __name__ == "__main__":
    main()
