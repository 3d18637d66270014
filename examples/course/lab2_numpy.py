"""Lab 2, NumPy, on several ranks: lab2_numpy_serial.py with the library's lines, which are marked."""

import argparse
import time

import numpy as np
from data import load

import pycollective as pc  # pc
from pycollective.optim import DistributedSGD, partition  # pc

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="digits")
parser.add_argument("--folder", help="of the data's files")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

comm = pc.init()  # pc 1: find the other ranks
data = load(args.data, args.folder)
x, y = data.train_x.reshape(len(data.train_x), -1), data.train_y

rng = np.random.default_rng(args.seed + comm.rank)  # pc: so that a missing broadcast would be noticed
w = {"weight": rng.normal(0, 0.01, (x.shape[1], data.classes)), "bias": np.zeros(data.classes)}
sgd = DistributedSGD(w, 0.02 * comm.size, momentum=0.9)  # pc 4, 7: averages the gradients, then the same formulas
sgd.broadcast_parameters()  # pc 6: all ranks begin like rank 0


def scores(x):
    return x @ w["weight"] + w["bias"]


def gradients(x, y):
    """Gradients of the mean cross-entropy."""
    s = scores(x)
    p = np.exp(s - s.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    error = (p - np.eye(data.classes)[y]) / len(x)
    return {"weight": x.T @ error, "bias": error.sum(0)}


begin, images = time.perf_counter(), 0
for epoch in range(args.epochs):
    rows = partition(len(x), seed=args.seed, epoch=epoch, drop_last=True)  # pc 3: every rank trains on a part
    for start in range(0, len(rows), 32):
        batch = rows[start : start + 32]
        sgd.step(gradients(x[batch], y[batch]))
        images += len(batch)
images = comm.allreduce(images)  # pc 8: add up what the ranks have counted
seconds = time.perf_counter() - begin

hits = np.sum(scores(data.test_x.reshape(len(data.test_x), -1)).argmax(1) == data.test_y)
if comm.rank == 0:  # pc 9: one line, not one from each rank
    print(f"accuracy {hits / len(data.test_y):.4f}  images/s {images / seconds:.0f}")
