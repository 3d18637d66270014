"""Lab 2, Keras, serial: a network on one core. lab2_keras.py is the same script on several ranks."""

import argparse
import time

import keras
from data import load

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="digits")
parser.add_argument("--folder", help="of the data's files")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

keras.utils.set_random_seed(args.seed)

data = load(args.data, args.folder)
x, y = data.train_x, data.train_y

model = keras.Sequential(
    [
        keras.Input(x.shape[1:]),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(data.classes),
    ]
)
optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, metrics=["accuracy"])

begin = time.perf_counter()
model.fit(x, y, batch_size=32, epochs=args.epochs, verbose=0)
seconds = time.perf_counter() - begin

_, accuracy = model.evaluate(data.test_x, data.test_y, verbose=0)
print(f"accuracy {accuracy:.4f}  images/s {args.epochs * len(x) / seconds:.0f}")
