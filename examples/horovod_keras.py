"""A script for Horovod and tf.keras, as users write it; nothing in it is this package's.

    mpirun -np 4 python -m pycollective.horovod examples/horovod_keras.py
    pycollective run -np 4 python -m pycollective.horovod examples/horovod_keras.py --epochs 4

It runs with Keras 3, and with TF_USE_LEGACY_KERAS=1 (tf_keras).
"""

import argparse

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--checkpoint", default="", help="file for the weights, such as digits.weights.h5")
args = parser.parse_args()

hvd.init()

gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images, digits = load_digits(return_X_y=True)
images = images.astype(np.float32).reshape(-1, 8, 8, 1) / 16
test = images[:400], digits[:400]
rows = (len(images) - 400) // hvd.size()
start = 400 + hvd.rank() * rows
train = images[start : start + rows], digits[start : start + rows]

model = tf.keras.Sequential(
    [
        tf.keras.layers.Input((8, 8, 1)),
        tf.keras.layers.Conv2D(16, [3, 3], activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dropout(0.2),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
opt = tf.keras.optimizers.Adam(0.001 * hvd.size())
opt = hvd.DistributedOptimizer(opt)
model.compile(loss="sparse_categorical_crossentropy", optimizer=opt, metrics=["accuracy"])

callbacks = [hvd.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
if hvd.rank() == 0 and args.checkpoint:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(args.checkpoint, save_weights_only=True))
model.fit(*train, batch_size=32, epochs=args.epochs, callbacks=callbacks, verbose=2 if hvd.rank() == 0 else 0)

loss, accuracy = model.evaluate(*test, verbose=0)
accuracy = float(hvd.allreduce(accuracy))
if hvd.rank() == 0:
    print(f"{hvd.size()} ranks: accuracy {accuracy:.3f}")
