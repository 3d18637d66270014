"""Lab 2, torch, serial: a network on one core. lab2_torch.py is the same script on several ranks."""

import argparse
import time
from pathlib import Path

import torch
from data import load
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="digits")
parser.add_argument("--folder", help="of the data's files")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--hidden", type=int, default=128, help="neurons of the hidden layer")
parser.add_argument("--checkpoint", type=Path, help="continue from this file, and write it after each epoch")
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(args.seed)

data = load(args.data, args.folder)
train = TensorDataset(torch.from_numpy(data.train_x), torch.from_numpy(data.train_y))
loader = DataLoader(train, batch_size=32, shuffle=True)

model = nn.Sequential(
    nn.Flatten(), nn.Linear(data.train_x[0].size, args.hidden), nn.ReLU(), nn.Linear(args.hidden, data.classes)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

first = 0
if args.checkpoint and args.checkpoint.exists():
    state = torch.load(args.checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"] + 1

begin, images = time.perf_counter(), 0
for epoch in range(first, args.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        images += len(x)
    if args.checkpoint:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, args.checkpoint)
seconds = time.perf_counter() - begin

hits = (model(torch.from_numpy(data.test_x)).argmax(1) == torch.from_numpy(data.test_y)).sum()
print(f"accuracy {hits / len(data.test_y):.4f}  images/s {images / seconds:.0f}")
