"""Lab 2, Keras, on several ranks: lab2_keras_serial.py with Horovod's lines, which are marked."""

import argparse
import time

import keras
from data import load

import pycollective.keras as hvd  # hvd: or `import horovod.keras as hvd`, by `python -m pycollective.horovod`

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="digits")
parser.add_argument("--folder", help="of the data's files")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

hvd.init()  # hvd 1: find the other ranks
if keras.backend.backend() == "tensorflow":  # hvd 2: pin one device to each rank
    import tensorflow as tf

    if gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
keras.utils.set_random_seed(args.seed + hvd.rank())  # hvd: so that a missing broadcast would be noticed

data = load(args.data, args.folder)
part = len(data.train_x) // hvd.size()  # hvd 3: every rank trains on a part, all with the same number of batches
mine = slice(hvd.rank() * part, (hvd.rank() + 1) * part)  # hvd 3
x, y = data.train_x[mine], data.train_y[mine]

model = keras.Sequential(
    [
        keras.Input(x.shape[1:]),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(data.classes),
    ]
)
optimizer = keras.optimizers.SGD(0.02 * hvd.size(), momentum=0.9)  # hvd 4: larger batch, larger rate
optimizer = hvd.DistributedOptimizer(optimizer)  # hvd 7: average the gradients
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, metrics=["accuracy"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # hvd 6: all ranks begin like rank 0
    hvd.callbacks.MetricAverageCallback(),  # hvd 8: the ranks' metrics, averaged
]

begin = time.perf_counter()
model.fit(x, y, batch_size=32, epochs=args.epochs, verbose=0, callbacks=callbacks)
seconds = time.perf_counter() - begin

_, accuracy = model.evaluate(data.test_x, data.test_y, verbose=0)
if hvd.rank() == 0:  # hvd 9: one line, not one from each rank
    print(f"accuracy {accuracy:.4f}  images/s {args.epochs * len(x) * hvd.size() / seconds:.0f}")
