"""A training step on torch: what its communication takes, with gradients in shared memory and without.

    pycollective run -np 2 python -m pycollective.bench.frameworks.torch

A network of dense layers with 25 million parameters, one thread a rank. Communication is what a step takes longer than
the same without it, in the same round: for DistributedDataParallel with a hook that does nothing, so that its copies to
and from its buckets are not counted. The medians of the rounds are printed, and how much faster than the first of its
kind each is.
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pycollective

from .rounds import free_port, measured, median_ratio

WIDTH, LAYERS, BATCH = 1580, 10, 4


def steps(parallel: Callable[[Any], Any], optimizer: Callable[..., Any], keep: bool = False) -> Callable[[], None]:
    """A training step of a network.

    ``parallel`` wraps the network, ``optimizer`` its optimizer; ``keep``: gradients are zeroed, not dropped.
    """
    torch.manual_seed(0)
    network = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    model = parallel(network)
    descent = optimizer(torch.optim.SGD(network.parameters(), 1e-4), network.named_parameters())
    x = torch.randn(BATCH, WIDTH)

    def step() -> None:
        descent.zero_grad(set_to_none=not keep)
        model(x).square().mean().backward()
        descent.step()

    return step


def done(_, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are strings
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    comm = pycollective.init()
    hvd: Any = importlib.import_module("pycollective.torch")
    hvd.init()
    address = hvd.broadcast_object(f"tcp://127.0.0.1:{free_port()}")
    dist.init_process_group("pycollective", init_method=address, rank=comm.rank, world_size=comm.size)
    gloo = dist.new_group(backend="gloo")

    def plain(network: Any) -> Any:
        return network

    def silent(network: Any) -> Any:
        model = DistributedDataParallel(network)
        model.register_comm_hook(None, done)
        return model

    def own(optimizer: Any, _: Any) -> Any:
        return optimizer

    contenders = {
        "alone": steps(plain, own),
        "DDP alone": steps(silent, own),
        "DDP": steps(DistributedDataParallel, own),
        "DDP, share_": steps(lambda network: hvd.share_(DistributedDataParallel(network)), own),
        "DDP on Gloo": steps(lambda network: DistributedDataParallel(network, process_group=gloo), own),
        "DistributedOptimizer": steps(plain, hvd.DistributedOptimizer),
        "DistributedOptimizer, gradients kept": steps(plain, hvd.DistributedOptimizer, keep=True),
    }
    times = measured(comm, contenders, args.rounds)
    if comm.rank != 0:
        return
    bases = {"DDP": times.pop("DDP alone"), "Dis": times.pop("alone")}
    for kind, base in bases.items():
        spent = {
            name: [a - b for a, b in zip(each, base, strict=True)] for name, each in times.items() if name[:3] == kind
        }
        print(f"a step without communication: {median(base) * 1e3:.1f} ms; that of {comm.size} ranks:")
        first = next(iter(spent.values()))
        for name, each in spent.items():
            print(f"{name:38}{median(each) * 1e3:7.1f} ms {median_ratio(first, each):5.2f}x")


if __name__ == "__main__":
    main()
