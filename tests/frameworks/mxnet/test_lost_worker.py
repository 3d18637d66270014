"""A worker of an elastic job under horovodrun is killed and replaced: the weights are right in the end."""

from __future__ import annotations

from pathlib import Path

import lost_worker
import pytest

pytest.importorskip("mxnet")
SCRIPT = """
import mxnet as mx
import horovod.mxnet as hvd
from pycollective.mxnet.elastic import GluonState, run

hvd.init()
net = mx.gluon.nn.Dense(1, in_units=4, use_bias=False, weight_initializer="zeros")
net.initialize()
trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": RATE, "momentum": MOMENTUM})

@run
def train(state):
    while state.step < STEPS:
        x, y = map(mx.nd.array, batch(state.step, hvd.rank(), hvd.size()))
        with mx.autograd.record():
            loss = ((net(x) - y) ** 2).sum()
        loss.backward()
        trainer.step(len(x))
        state.step += 1
        if state.step % 2 == 0:
            state.commit()

state = GluonState(net, trainer, step=0)
train(state)
if hvd.rank() == 0:
    report(net.weight.data().asnumpy(), state.step)
"""


def test_a_lost_worker_is_replaced(tmp_path: Path) -> None:
    lost_worker.check(SCRIPT, tmp_path)
