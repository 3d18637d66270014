"""Lab 2, torch, on several ranks: lab2_torch_serial.py with Horovod's lines, which are marked."""

import argparse
import time
from pathlib import Path

import torch
from data import load
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler  # hvd

import pycollective.torch as hvd  # hvd: or `import horovod.torch as hvd`, by `python -m pycollective.horovod`
from pycollective.torch.samplers import IndependentSampler  # hvd

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="digits")
parser.add_argument("--folder", help="of the data's files")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--hidden", type=int, default=128, help="neurons of the hidden layer")
parser.add_argument("--checkpoint", type=Path, help="continue from this file, and write it after each epoch")
parser.add_argument("--partition", type=int, default=1, choices=[1, 2])  # hvd
args = parser.parse_args()

hvd.init()  # hvd 1: find the other ranks
if torch.cuda.is_available():  # hvd 2: pin one device to each rank
    torch.cuda.set_device(hvd.local_rank())
torch.set_num_threads(1)
torch.manual_seed(args.seed + hvd.rank())  # hvd: so that a missing broadcast would be noticed

data = load(args.data, args.folder)
train = TensorDataset(torch.from_numpy(data.train_x), torch.from_numpy(data.train_y))
if args.partition == 1:  # hvd 3: every rank trains on a part of the images; new parts in each epoch
    sampler = DistributedSampler(train, hvd.size(), hvd.rank(), seed=args.seed, drop_last=True)
else:  # hvd 3: or every rank draws at random from all of them, as many as would be in its part
    sampler = IndependentSampler(train, seed=args.seed)
loader = DataLoader(train, batch_size=32, sampler=sampler)

model = nn.Sequential(
    nn.Flatten(), nn.Linear(data.train_x[0].size, args.hidden), nn.ReLU(), nn.Linear(args.hidden, data.classes)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * hvd.size(), momentum=0.9)  # hvd 4: larger batch, larger rate

first = 0
if hvd.rank() == 0 and args.checkpoint and args.checkpoint.exists():  # hvd 5: only rank 0 reads
    state = torch.load(args.checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"] + 1
first = hvd.broadcast_object(first, root_rank=0)  # hvd 6: all ranks begin like rank 0
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # hvd 7: average the gradients

begin, images = time.perf_counter(), 0
for epoch in range(first, args.epochs):
    sampler.set_epoch(epoch)  # hvd 3: another order in each epoch
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        images += len(x)
    if args.checkpoint and hvd.rank() == 0:  # hvd 5: only rank 0 writes
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, args.checkpoint)
images = hvd.allreduce(torch.tensor(images), op=hvd.Sum)  # hvd 8: add up what the ranks have counted
seconds = time.perf_counter() - begin

hits = (model(torch.from_numpy(data.test_x)).argmax(1) == torch.from_numpy(data.test_y)).sum()
if hvd.rank() == 0:  # hvd 9: one line, not one from each rank
    print(f"accuracy {hits / len(data.test_y):.4f}  images/s {images / seconds:.0f}")
