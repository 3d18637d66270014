"""Ranks that are killed, end early or never start a step: an error on the others, whose processes end by themselves."""

from __future__ import annotations

import os
import pickle
import signal
from typing import Any

import mx as ranks
import pytest

from launch import launch

mx = pytest.importorskip("mxnet")


def _loop(hvd: Any, steps: int, batches: Any = None) -> Any:
    net = mx.gluon.nn.Dense(3, in_units=4)
    net.initialize()
    hvd.broadcast_parameters(net.collect_params())
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    for step in range(steps):
        with mx.autograd.record():
            loss = net(mx.nd.ones((2, 4))).sum()
        loss.backward()
        trainer.step(1)
        if batches is not None:
            batches(step)
    return net


def test_a_rank_that_is_killed_in_a_training_loop() -> None:
    with ranks.job(3, _killed) as job:
        assert job.hear(1) == "training"
        at = job.kill(1)
        outcomes = job.outcomes(20)
        for rank in (0, 2):
            assert outcomes[rank].value is not None and "rank 1" in outcomes[rank].value, outcomes[rank].trace
            assert outcomes[rank].exitcode == 0 and outcomes[rank].at - at < 10


def _killed(hvd: Any) -> str:
    def report(step: int) -> None:
        if step == 5 and hvd.rank() == 1:
            hvd.link.send("training")

    with pytest.raises(hvd.HorovodInternalError) as error:
        _loop(hvd, 1_000_000, report)
    return str(error.value)


def test_ranks_with_fewer_batches() -> None:
    first, second = ranks.run(2, _uneven)
    assert "rank 1" in first and second == ""


def _uneven(hvd: Any) -> str:
    if hvd.rank():
        _loop(hvd, 3)
        return ""  # and shuts down
    with pytest.raises(hvd.HorovodInternalError) as error:
        _loop(hvd, 5)
    return str(error.value)


def test_processes_end_by_themselves() -> None:
    result = launch(2, _script, timeout=60, grace=20)  # seconds for rank 0 to end by itself
    assert result.returncode != 0 and "HorovodInternalError" in result.stderr, result.report()
    assert result[0] == "before\n", result.report()


def _script() -> None:
    import os

    import mxnet as mx

    import pycollective.mxnet as hvd

    hvd.init()
    p = mx.gluon.Parameter("p", shape=(3,))
    p.initialize()
    trainer = hvd.DistributedTrainer({"p": p}, "sgd")
    for step in range(4):
        if step == 2:
            print("before") if hvd.rank() == 0 else os._exit(3)
        with mx.autograd.record():
            loss = p.data().sum()
        loss.backward()
        trainer.step(1)
    print("after")


def test_elastic() -> None:
    with ranks.job(3, _elastic) as job:
        values = {rank: outcome.value for rank, outcome in job.outcomes(40).items() if outcome.error is None}
    assert values[0] == values[2] and values[0][:2] == (2, 8), values
    assert values[0][2] == values[0][3], "not what one process computes that repeats the lost steps"


def _elastic(hvd: Any) -> tuple[int, int, list[float], list[float]]:
    net = mx.gluon.nn.Dense(2, in_units=3, weight_initializer=mx.init.Constant(hvd.rank() + 1))
    net.initialize()
    options = {"learning_rate": 0.125, "momentum": 0.5}
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", options)
    is_lost = hvd.rank() == 1

    def step_of(net: Any, trainer: Any) -> None:
        with mx.autograd.record():
            loss = mx.nd.square(net(mx.nd.ones((1, 3)))).sum()
        loss.backward()
        trainer.step(64)

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < 8:
            step_of(net, trainer)
            state.step += 1
            if state.step == 6 and is_lost:
                os.kill(os.getpid(), signal.SIGKILL)
            if state.step % 4 == 0:
                state.commit()

    state = hvd.elastic.GluonState(net, trainer, step=0)
    train(state)
    other = hvd.elastic.GluonState(net, trainer, step=0)
    other.take_kept(pickle.loads(pickle.dumps(state.kept())))  # from the file of an earlier job
    assert other.step == 8
    alone = mx.gluon.nn.Dense(2, in_units=3, weight_initializer=mx.init.Constant(1))
    alone.initialize()
    single = mx.gluon.Trainer(alone.collect_params(), "sgd", options, kvstore=None)
    for _ in range(8):
        step_of(alone, single)
    return hvd.size(), state.step, net.weight.data().asnumpy().tolist(), alone.weight.data().asnumpy().tolist()
