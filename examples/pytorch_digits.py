"""Training on scikit-learn's handwritten digits with torch, in the style of Horovod.

    mpirun -np 4 python examples/pytorch_digits.py              or torchrun, `pycollective run -np 4`, or no launcher
    mpirun -np 4 python examples/pytorch_digits.py --compression fp16

One line differs from a script for Horovod, `import pycollective.torch as hvd`; none with
`python -m pycollective.horovod`. Every rank has the full network and processes its own rows of each batch; the
optimizer averages the gradients over the ranks, while backward still computes those of earlier layers.

The last line reports the accuracy on held-out digits, and a digest of the weights. Fusion of gradients
(HOROVOD_FUSION_THRESHOLD, HOROVOD_CYCLE_TIME) does not change the digest. In float64 the weights agree up to rounding
for all numbers of ranks, and with those of pytorch_ddp.py.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import pycollective.torch as hvd

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
    sampler = DistributedSampler(data, hvd.size(), hvd.rank(), seed=args.seed, drop_last=True)
    sampler.set_epoch(epoch)
    yield from DataLoader(data, args.batch // hvd.size(), sampler=sampler, drop_last=True)


def train(data: TensorDataset, args: argparse.Namespace) -> nn.Module:
    torch.manual_seed(args.seed + hvd.rank())  # ranks start differently, to show that rank 0's weights are used
    model = network(TYPES[args.dtype])
    optimizer: Any = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = getattr(hvd.Compression, args.compression)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in range(args.epochs):
        losses = []
        for x, y in batches(data, epoch, args):
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean = hvd.allreduce(torch.stack(losses).mean(), name="loss")  # over the ranks
        if args.verbose and hvd.rank() == 0:
            print(f"epoch {epoch}  loss {mean.item():.4f}")
    return model


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Each rank evaluates its share of the rows; the hits are summed."""
    x, y = (part[hvd.rank() :: hvd.size()] for part in data.tensors)
    hits = (model(x).argmax(1) == y).sum()
    return hvd.allreduce(hits, op=hvd.Sum).item() / len(data)


def main() -> None:
    parser = argparse.ArgumentParser(description="Training on handwritten digits in the style of Horovod.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1, help="step size")
    parser.add_argument("--batch", type=int, default=48, help="rows in a step, on all ranks together")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the order of the rows")
    parser.add_argument("--dtype", default="float32", choices=TYPES)
    parser.add_argument(
        "--compression", default="none", choices=["none", "fp16", "bf16"], help="compression of gradients"
    )
    parser.add_argument("--verbose", action="store_true", help="print the loss after each epoch")
    args = parser.parse_args()

    torch.set_num_threads(1)  # the ranks already share the cores
    hvd.init()
    training, held_out = read_digits(TYPES[args.dtype])
    model = train(training, args)
    reached = accuracy(model, held_out)
    if hvd.rank() == 0:
        weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        print(f"accuracy {reached:.4f}  digest {hashlib.sha256(weights).hexdigest()[:16]}  ranks {hvd.size()}")


if __name__ == "__main__":
    main()
