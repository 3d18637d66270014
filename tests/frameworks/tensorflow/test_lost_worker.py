"""A worker of an elastic job under horovodrun is killed and replaced: the weights are right in the end."""

from __future__ import annotations

from pathlib import Path

import lost_worker

from launch import needs

SCRIPT = """
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
weights = tf.Variable(tf.zeros((4, 1)))
velocity = tf.Variable(tf.zeros((4, 1)))

@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights - y) ** 2)
    [gradient] = hvd.DistributedGradientTape(tape).gradient(loss, [weights])
    velocity.assign(MOMENTUM * velocity - RATE * gradient)
    weights.assign_add(velocity)

@hvd.elastic.run
def train(state):
    while state.step < STEPS:
        step(*map(tf.constant, batch(state.step, hvd.rank(), hvd.size())))
        state.step += 1
        if state.step % 2 == 0:
            state.commit()

state = hvd.elastic.TensorFlowState([weights, velocity], step=0)
train(state)
if hvd.rank() == 0:
    report(weights, state.step)
"""


def test_a_lost_worker_is_replaced(tmp_path: Path) -> None:
    needs("tensorflow")
    lost_worker.check(SCRIPT, tmp_path)
