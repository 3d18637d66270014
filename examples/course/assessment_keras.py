"""The assessment, Keras: a serial script. Copy it, and make the copy run on several ranks, as assessment.py tells.

python -m examples.course.assess my_script.py --ranks 4
"""

import argparse

import keras
from data import load

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="digits")
parser.add_argument("--folder", help="of the data's files")
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--checkpoint", default="checkpoint.keras")
args = parser.parse_args()

data = load(args.data, args.folder)
x, y = data.train_x, data.train_y

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
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, metrics=["accuracy"])
callbacks = [keras.callbacks.ModelCheckpoint(args.checkpoint)]

model.fit(x, y, batch_size=32, epochs=args.epochs, callbacks=callbacks, verbose=2)

training = model.evaluate(data.train_x, data.train_y, verbose=0)[1]
validation = model.evaluate(data.test_x, data.test_y, verbose=0)[1]
print(f"training accuracy {training:.4f}  validation accuracy {validation:.4f}")
