"""TensorFlow's calls against torch's and against tf.distribute between two processes, interleaved in the same ones.

    pycollective run -np 2 python -m pycollective.bench.frameworks.tensorflow [--rounds 9] [--calls 300]

An eager allreduce of 8 bytes: hvd on TensorFlow, hvd on torch, and the all-reduce of a MultiWorkerMirroredStrategy in a
tf.function, which is faster than its eager form. A step of a tf.function with the gradients of ResNet-50's shapes: by
hvd's tape and by the strategy. Prints medians over the rounds of the slowest rank's time, and of the ratios in a round.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
from collections.abc import Callable
from statistics import median
from typing import Any

from ..engine.shapes import resnet50
from .rounds import Contenders, free_port, measured, median_ratio


def _cluster(hvd: Any) -> None:
    """Tells TensorFlow of all ranks, before it is used."""
    workers = [f"127.0.0.1:{other}" for other in hvd.allgather_object(free_port())]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": hvd.rank()}}
    )


def _small(hvd: Any, tf: Any, strategy: Any, calls: int) -> Contenders:
    x = tf.constant([1.0, 2.0])

    def theirs() -> Any:
        def reduced() -> Any:
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x)

        return strategy.run(reduced)

    def repeated(function: Callable[[], object], times: int = calls) -> Callable[[], object]:
        return lambda: [function() for _ in range(times)]

    contenders = {"hvd on TensorFlow": repeated(lambda: hvd.allreduce(x, op=hvd.Sum))}
    if importlib.util.find_spec("torch") is not None:
        torch, torch_hvd = importlib.import_module("torch"), importlib.import_module("pycollective.torch")
        torch.set_num_threads(1)
        tensor = torch.tensor([1.0, 2.0])
        contenders["hvd on torch"] = repeated(lambda: torch_hvd.allreduce(tensor, op=torch_hvd.Sum))
    few, compiled = max(1, calls // 20), tf.function(theirs)
    contenders["tf.distribute"] = lambda: [compiled() for _ in range(few)]
    return contenders


def _step(hvd: Any, tf: Any, strategy: Any) -> Contenders:
    gradients = [tf.ones(shape) * (hvd.rank() + 1.0) for shape in resnet50()]
    variables = [tf.Variable(tf.zeros_like(gradient), name=f"v{i}") for i, gradient in enumerate(gradients)]
    options = importlib.import_module("pycollective.hvd.arguments").OptimizerOptions(op=hvd.Sum)
    reduce = importlib.import_module("pycollective.tensorflow.hvd.gradients").GradientReducer("bench", options)

    def ours() -> Any:
        return reduce(gradients, variables)

    def theirs() -> Any:
        def reduced() -> Any:
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)

        return strategy.run(reduced)

    return {"hvd in a tf.function": tf.function(ours), "MultiWorkerMirrored": tf.function(theirs)}


def _show(title: str, seconds: dict[str, list[float]], each: dict[str, int]) -> None:
    first = next(iter(seconds))
    print(title)
    for name, times in seconds.items():
        ratio = median_ratio(times, seconds[first]) * each[first] / each[name]
        print(f"  {name:22}{1e6 * median(times) / each[name]:12.1f} us  {ratio:8.2f} x the first")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=300, help="of 8 bytes in a round")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    comm = importlib.import_module("pycollective").init()
    hvd = importlib.import_module("pycollective.tensorflow")
    tf = importlib.import_module("tensorflow")
    hvd.init(comm)
    _cluster(hvd)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    small = measured(comm, _small(hvd, tf, strategy, options.calls), options.rounds)
    step = measured(comm, _step(hvd, tf, strategy), options.rounds)
    if hvd.rank() == 0:
        each = {name: max(1, options.calls // 20) if name == "tf.distribute" else options.calls for name in small}
        _show(f"allreduce of 8 bytes, eager, {hvd.size()} ranks", small, each)
        _show(f"161 gradients of ResNet-50's shapes, {hvd.size()} ranks", step, dict.fromkeys(step, 1))


if __name__ == "__main__":
    main()
