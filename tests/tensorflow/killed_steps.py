"""Rank 1 is killed in a loop of a tf.function. Others print their error; with the argument "elastic" they continue."""

import os
import signal
import sys
import time

import tensorflow as tf

import pycollective.tensorflow as hvd

hvd.init()
rank, began = hvd.rank(), time.monotonic()


def die(step: int) -> int:
    if rank == 1 and step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    global began
    began = time.monotonic()
    return step


@tf.function
def reduced(step: tf.Tensor) -> tf.Tensor:
    step = tf.ensure_shape(tf.numpy_function(die, [step], tf.int64), [])
    return hvd.allreduce(tf.ones([4]) + 0 * tf.cast(step, tf.float32))


@tf.function
def loop(steps: tf.Tensor) -> tf.Tensor:
    total = tf.zeros([4])
    for step in tf.range(steps):
        total += reduced(step)
    return total


def train(state: hvd.elastic.TensorFlowState) -> None:
    while state.step < 6:
        state.variables[0].assign_add(reduced(tf.constant(state.step))[0])
        state.step += 1
        if state.step % 2 == 0:
            state.commit()


if "elastic" in sys.argv:
    state = hvd.elastic.TensorFlowState([tf.Variable(0.0)], step=tf.constant(0, tf.int64).numpy())
    hvd.elastic.run(train)(state)
    print(f"ranks {hvd.size()} step {state.step} value {state.variables[0].numpy()}", flush=True)
else:
    try:
        loop(tf.constant(100, tf.int64))
    except Exception as error:
        message = str(error).replace("\n", " ")
        print(f"{type(error).__name__} {time.monotonic() - began} {message}", flush=True)
