"""The assessment, Keras: a solution. The lines that differ from assessment_keras.py are marked."""

import argparse

import keras
from data import load

import pycollective.keras as hvd  # hvd

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="digits")
parser.add_argument("--folder", help="of the data's files")
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--checkpoint", default="checkpoint.keras")
args = parser.parse_args()

hvd.init()  # hvd
if keras.backend.backend() == "tensorflow":  # hvd: one device for each rank
    import tensorflow as tf

    if gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
data = load(args.data, args.folder)
part = len(data.train_x) // hvd.size()  # hvd: a part of the images, with equally many batches on all ranks
mine = slice(hvd.rank() * part, (hvd.rank() + 1) * part)  # hvd
x, y = data.train_x[mine], data.train_y[mine]

model = keras.Sequential(
    [
        keras.Input(x.shape[1:]),
        keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(data.classes),
    ]
)
optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer)  # hvd: average the gradients
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, metrics=["accuracy"])
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]  # hvd: all ranks begin like rank 0
if hvd.rank() == 0:  # hvd: only rank 0 writes
    callbacks.append(keras.callbacks.ModelCheckpoint(args.checkpoint))

batch = max(1, 32 // hvd.size())  # hvd: 32 on all ranks together
model.fit(x, y, batch_size=batch, epochs=args.epochs, callbacks=callbacks, verbose=2 if hvd.rank() == 0 else 0)

training = model.evaluate(data.train_x, data.train_y, verbose=0)[1]
validation = model.evaluate(data.test_x, data.test_y, verbose=0)[1]
if hvd.rank() == 0:  # hvd
    print(f"training accuracy {training:.4f}  validation accuracy {validation:.4f}")
