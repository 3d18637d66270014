"""DistributedDataParallel on scikit-learn's handwritten digits, with pycollective under torch.distributed.

    torchrun --nproc-per-node 4 examples/pytorch_ddp.py         or `mpirun -np 4 python`, or `pycollective run -np 4`
    torchrun --nproc-per-node 4 examples/pytorch_ddp.py --backend gloo

Two lines differ from a script for Gloo: `import pycollective.torch`, and the name of the backend. Every rank has the
full network and processes its own rows of each batch; DDP averages the gradients while they are computed.

The last line reports the accuracy on held-out digits, and a digest of the weights. In float64 the weights agree up to
rounding for all numbers of ranks and all backends, as `--batch` is divided among the ranks.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import pycollective.torch  # noqa: F401  makes torch know the backend

TYPES = {"float32": torch.float32, "float64": torch.float64}


def read_digits(dtype: Any) -> tuple[TensorDataset, TensorDataset]:
    """(training set, held-out set): 64 grey values from 0 to 1 and the digit; in a fixed random order."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images, dtype=dtype)[order] / 16, torch.tensor(digits)[order]
    held_out = len(x) // 4
    return TensorDataset(x[held_out:], y[held_out:]), TensorDataset(x[:held_out], y[:held_out])


def network(dtype: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(dtype)


def batches(data: TensorDataset, epoch: int, args: argparse.Namespace) -> Iterator[tuple[Any, Any]]:
    """This rank's part of every batch: the rows of a common random order are distributed among the ranks."""
    sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
    sampler.set_epoch(epoch)
    yield from DataLoader(data, args.batch // dist.get_world_size(), sampler=sampler, drop_last=True)


def train(data: TensorDataset, args: argparse.Namespace) -> nn.Module:
    torch.manual_seed(args.seed + dist.get_rank())  # ranks start differently: DDP gives all of them rank 0's weights
    model = DistributedDataParallel(network(TYPES[args.dtype]))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in range(args.epochs):
        for x, y in batches(data, epoch, args):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
    return model


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Each rank evaluates its share of the rows; the hits are summed."""
    x, y = (part[dist.get_rank() :: dist.get_world_size()] for part in data.tensors)
    hits = (model(x).argmax(1) == y).sum()
    dist.all_reduce(hits)
    return hits.item() / len(data)


def main() -> None:
    parser = argparse.ArgumentParser(description="Data-parallel training on handwritten digits with torch's DDP.")
    parser.add_argument("--backend", default="pycollective", help="of torch.distributed: pycollective or gloo")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1, help="step size")
    parser.add_argument("--batch", type=int, default=48, help="rows in a step, on all ranks together")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the order of the rows")
    parser.add_argument("--dtype", default="float32", choices=TYPES)
    args = parser.parse_args()

    torch.set_num_threads(1)  # the ranks already share the cores
    dist.init_process_group(args.backend)
    training, held_out = read_digits(TYPES[args.dtype])
    model = train(training, args)
    reached = accuracy(model, held_out)
    if dist.get_rank() == 0:
        weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        print(f"accuracy {reached:.4f}  digest {hashlib.sha256(weights).hexdigest()[:16]}  backend {args.backend}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
