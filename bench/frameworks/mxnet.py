"""The gradients of ResNet-50 reduced in one call: NDArrays of MXNet, tensors of torch, and plain NumPy, interleaved.

    pycollective run -np 2 python -m pycollective.bench.frameworks.mxnet [--rounds 20] [--torch FOLDER]

MXNet 1.9 needs NumPy 1.23. Where torch is installed in another environment of the same Python, `--torch` names the
site-packages there; only torch and what is missing here are imported from it. Prints a table: medians over the rounds
of the slowest rank's time, and medians of the ratios within a round.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from ..engine.shapes import Shape, resnet50, vectors
from .rounds import measured, median_ratio

Contender = tuple[Callable[[], object], Callable[[], object]]
"""Writes the inputs, and reduces them in place."""


def _ndarrays(hvd: Any, shapes: list[Shape]) -> Contender:
    mx = importlib.import_module("mxnet")
    arrays = [mx.nd.ones(shape) for shape in shapes]

    def write() -> None:
        for array in arrays:
            array[:] = 1
        mx.nd.waitall()

    return write, lambda: hvd.grouped_allreduce_(arrays, name="ndarrays")


def _tensors(hvd: Any, shapes: list[Shape]) -> Contender:
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    tensors = [torch.ones(shape) for shape in shapes]
    return lambda: [tensor.fill_(1) for tensor in tensors], lambda: hvd.grouped_allreduce_(tensors, name="tensors")


def _one_array(comm: Any, shapes: list[Shape]) -> Contender:
    array = np.ones(sum(int(np.prod(shape)) for shape in shapes), np.float32)
    return lambda: array.fill(1), lambda: comm.allreduce(array, array, op="avg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--torch", help="site-packages with torch")
    options = parser.parse_args()
    if options.torch:
        sys.path.append(options.torch)
    mxnet: Any = importlib.import_module("pycollective.mxnet")
    comm = importlib.import_module("pycollective").init()
    mxnet.init(comm)
    for title, shapes in [("ResNet-50", resnet50()), ("161 of 1 KiB", vectors(161, 1024))]:
        contenders = {"MXNet, grouped_allreduce_": _ndarrays(mxnet, shapes)}
        if importlib.util.find_spec("torch") is not None:
            hvd: Any = importlib.import_module("pycollective.torch")
            contenders["torch, grouped_allreduce_"] = _tensors(hvd, shapes)
        contenders["one NumPy array, comm.allreduce"] = _one_array(comm, shapes)
        write, reduce = ({name: pair[k] for name, pair in contenders.items()} for k in (0, 1))
        times = measured(comm, reduce, options.rounds, write)
        if comm.rank == 0:
            print(f"\n| {title}, {comm.size} ranks | ms | MXNet against it |\n|---|---|---|")
            ours, *_ = times.values()
            for name, theirs in times.items():
                print(f"| {name} | {median(theirs) * 1e3:.2f} | {median_ratio(ours, theirs):.2f} |")


if __name__ == "__main__":
    main()
