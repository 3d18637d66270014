"""Lab 2, NumPy, serial: softmax regression on one core. lab2_numpy.py is the same script on several ranks."""

import argparse
import time

import numpy as np
from data import load

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="digits")
parser.add_argument("--folder", help="of the data's files")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

data = load(args.data, args.folder)
x, y = data.train_x.reshape(len(data.train_x), -1), data.train_y

rng = np.random.default_rng(args.seed)
w = {"weight": rng.normal(0, 0.01, (x.shape[1], data.classes)), "bias": np.zeros(data.classes)}
v = {name: np.zeros_like(p) for name, p in w.items()}


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
    rows = np.random.default_rng([args.seed, epoch]).permutation(len(x))
    for start in range(0, len(rows), 32):
        batch = rows[start : start + 32]
        g = gradients(x[batch], y[batch])
        for name in w:
            v[name] = 0.9 * v[name] + g[name]
            w[name] -= 0.02 * v[name]
        images += len(batch)
seconds = time.perf_counter() - begin

hits = np.sum(scores(data.test_x.reshape(len(data.test_x), -1)).argmax(1) == data.test_y)
print(f"accuracy {hits / len(data.test_y):.4f}  images/s {images / seconds:.0f}")
