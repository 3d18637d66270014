"""Training with Gluon and Module: equal to one process, bits, what differs between ranks, broadcasts of parameters."""

from __future__ import annotations

import hashlib
from typing import Any

import mx as ranks
import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

BATCH, STEPS = 12, 5


def _network(dtype: str = "float64", prefix: str = "net_") -> Any:
    net = mx.gluon.nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(9, activation="tanh"), mx.gluon.nn.Dense(3))
    net.cast(dtype)
    return net


def _started(seed: int, dtype: str = "float64") -> Any:
    """Initialized with values of its own for each seed."""
    net = _network(dtype)
    net.initialize(mx.init.Zero())
    net(mx.nd.zeros((1, 4), dtype=dtype))
    numbers = np.random.default_rng(seed)
    for p in net.collect_params().values():
        p.set_data(mx.nd.array(numbers.standard_normal(p.shape), dtype=dtype))
    return net


def _batch(step: int, start: int = 0, stop: int = BATCH) -> tuple[Any, Any]:
    numbers = np.random.default_rng(100 + step)
    x, y = numbers.standard_normal((BATCH, 4)), numbers.standard_normal((BATCH, 3))
    return mx.nd.array(x[start:stop], dtype="float64"), mx.nd.array(y[start:stop], dtype="float64")


def _backward(net: Any, step: int, rank: int = 0, size: int = 1) -> None:
    """Forward and backward of the mean loss of a rank's rows. (Trainer.step(rows) would divide in float32.)"""
    x, y = _batch(step, rank * BATCH // size, (rank + 1) * BATCH // size)
    with mx.autograd.record():
        loss = mx.nd.square(net(x) - y).mean()
    loss.backward()


def _weights(net: Any) -> list[Any]:
    return [p.data().asnumpy() for p in net.collect_params().values()]


def _digest(net: Any) -> str:
    return hashlib.sha256(b"".join(w.tobytes() for w in _weights(net))).hexdigest()


def _difference(one: Any, other: Any) -> float:
    return max(float(abs(a - b).max()) for a, b in zip(_weights(one), _weights(other), strict=True))


OPTIMIZERS = [("sgd", {"learning_rate": 0.01, "momentum": 0.9, "wd": 1e-3}), ("adam", {"learning_rate": 0.01})]


@pytest.mark.parametrize("n", [2, 3])
def test_training(n: int) -> None:
    settings = [{"HOROVOD_FUSION_THRESHOLD": text} for text in (["0", "100", ""] if n == 2 else [""])]
    results = [ranks.run(n, _training, env=env if env["HOROVOD_FUSION_THRESHOLD"] else None) for env in settings]
    flat = [digests for result in results for digests in result]
    assert all(digests == flat[0] for digests in flat), "the bits differ between ranks or with fusion"


def _training(hvd: Any) -> list[str]:
    r, n = hvd.rank(), hvd.size()
    digests = []
    for name, options in OPTIMIZERS:
        alone = _started(0)
        trainer = mx.gluon.Trainer(alone.collect_params(), name, options, kvstore=None)
        for step in range(STEPS):
            _backward(alone, step)
            trainer.step(1)
        for extra in [{}, {"num_groups": 2}, {"gradient_predivide_factor": 2.0, "prefix": "a"}]:
            net = _started(r)
            hvd.broadcast_parameters(net.collect_params(), prefix=f"{name}{len(digests)}")
            trainer = hvd.DistributedTrainer(net.collect_params(), name, options, **extra)
            for step in range(STEPS):
                _backward(net, step, r, n)
                trainer.step(1)
            assert _difference(net, alone) < 1e-12
            digests.append(_digest(net))
        assert digests[-2] == digests[-3]
    digests.append(_halves(hvd))
    _optimizer(hvd)
    _compression(hvd)
    _missing_everywhere(hvd)
    return digests


def _halves(hvd: Any) -> str:
    """float16 weights with a copy in float32."""
    p = mx.gluon.Parameter("p", shape=(64,), dtype="float16")
    p.initialize(mx.init.One())
    trainer = hvd.DistributedTrainer({"p": p}, "sgd", {"learning_rate": 0.01, "multi_precision": True})
    for step in range(STEPS):
        with mx.autograd.record():
            loss = mx.nd.square(p.data() * mx.nd.array(np.arange(64) + step + hvd.rank(), dtype="float16") / 64).sum()
        loss.backward()
        trainer.step(2)
    assert 0 < p.data().asnumpy().min() < 0.98
    return hashlib.sha256(p.data().asnumpy().tobytes()).hexdigest()


def _optimizer(hvd: Any) -> None:
    """Through MXNet's Updater, as Module calls it; optimizers that take several weights at a time, and one."""
    r, n = hvd.rank(), hvd.size()
    for name, options in OPTIMIZERS:
        net, alone = _started(3), _started(3)
        optimizer = hvd.DistributedOptimizer(mx.optimizer.create(name, **options), 2.0, num_groups=2)
        optimizer.idx2name = {0: "first"}
        assert optimizer.wrapped.idx2name == {0: "first"} and optimizer.learning_rate == options["learning_rate"]
        updater = mx.optimizer.get_updater(optimizer)
        single = mx.optimizer.get_updater(mx.optimizer.create(name, **options))
        for step in range(STEPS):
            for model, update, rank, size in [(net, updater, r, n), (alone, single, 0, 1)]:
                _backward(model, step, rank, size)
                parameters = list(model.collect_params().values())
                arguments = [[p.grad() for p in parameters], [p.data() for p in parameters]]
                update(list(range(len(parameters))), *arguments)
            if step == 2:  # saved and loaded, with the optimizer
                updater.set_states(updater.get_states(dump_optimizer=True))
        assert _difference(net, alone) < 1e-12
    with pytest.raises(mx.MXNetError, match="rank 1 has no '0'"):
        gradient = mx.nd.ones((2,))
        optimizer.update(int(r == 1), gradient, gradient, optimizer.create_state(0, gradient))
    with pytest.warns(UserWarning, match="unwrapped"):
        assert hvd.DistributedTrainer(net.collect_params(), optimizer)._optimizer is optimizer.wrapped


def _compression(hvd: Any) -> None:
    net = _started(0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", compression=hvd.Compression.fp16)
    _backward(net, 0, hvd.rank(), hvd.size())
    local = net[0].weight.grad().astype("float16")
    trainer.allreduce_grads()
    expected = hvd.allreduce(local).astype("float64").asnumpy()
    assert (net[0].weight.grad().asnumpy() == expected).all()


def _missing_everywhere(hvd: Any) -> None:
    """What no rank has computed, or wants, does not disturb."""
    net = _started(0)
    net[1].bias.grad_req = "null"
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    _backward(net, 0, hvd.rank(), hvd.size())
    trainer.step(1)
    net[0].weight.grad()[:] = hvd.rank()  # written without a backward pass, and stale for MXNet on all ranks
    trainer.allreduce_grads()
    assert (net[0].weight.grad().asnumpy() == (hvd.size() - 1) / 2).all()
    with pytest.raises(UserWarning, match="has not been updated"):
        trainer.step(1)
    before = _digest(net)
    trainer.step(1, ignore_stale_grad=True)
    assert _digest(net) == before


def test_ranks_that_differ() -> None:
    first, second = ranks.run(2, _differ)
    assert first == second


def _differ(hvd: Any) -> list[str]:
    r, caught = hvd.rank(), []
    for change, text in [
        ("null", "'net_dense1_bias' is dense on rank 0, missing on rank 1"),
        ("stale", "'net_dense0_weight' is dense on rank 0, stale on rank 1"),
        ("shape", "as float64 of shape \\(9, 5\\)"),
        ("more", "has a 'net_dense2_"),
    ]:
        net = _started(0)
        parameters = net.collect_params()
        _backward(net, 0, r, 2)
        if r and change == "null":
            net[1].bias.grad_req = "null"
        elif r and change == "stale":
            for p in parameters.values():
                p.list_data()[0]._fresh_grad = False
        elif r and change == "shape":
            net = _network()
            net.initialize()
            net(mx.nd.zeros((1, 5), dtype="float64"))
        elif r and change == "more":
            with net.name_scope():
                net.add(mx.gluon.nn.Dense(2, in_units=3, dtype="float64"))
            net.initialize()
        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
        before = _digest(net)
        with pytest.raises(mx.MXNetError, match=text) as error:
            trainer.step(1, ignore_stale_grad=True)
        assert _digest(net) == before
        caught.append(str(error.value))
        if change in ("shape", "more"):
            with pytest.raises(mx.MXNetError, match="the ranks' parameters differ") as error:
                hvd.broadcast_parameters(net.collect_params())
            caught.append(str(error.value))
    _refused(hvd)
    _broadcasts(hvd)
    _deferred_initialization(hvd)
    _join(hvd)
    return caught


def _refused(hvd: Any) -> None:
    sparse = mx.gluon.nn.Embedding(4, 2, sparse_grad=True)
    sparse.initialize()
    two = mx.gluon.nn.Dense(2, in_units=2)
    two.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    twins = [mx.gluon.Parameter("p", shape=(2,)) for _ in range(2)]
    for p in twins:
        p.initialize()
    params = [
        (sparse.collect_params(), "storage type"),
        (two.collect_params(), "one device"),
        (twins, "different names"),
    ]
    for wrong, text in params:
        with pytest.raises(ValueError, match=text):
            hvd.DistributedTrainer(wrong, "sgd")
    with pytest.raises(ValueError, match="not registered"):
        hvd.DistributedTrainer(_started(0).collect_params(), "sgd", process_set=hvd.ProcessSet([0])).step(1)
    for params, root in [([mx.nd.ones(2)], 0), ({"a": 3}, 0), ({"a": mx.nd.ones(2)}, 7)]:
        with pytest.raises(ValueError):
            hvd.broadcast_parameters(params, root)


def _broadcasts(hvd: Any) -> None:
    r = hvd.rank()
    arrays = {"b": mx.nd.ones((3,)) * r, "a": mx.np.array(float(r))}
    hvd.broadcast_parameters(arrays, root_rank=1, prefix="x")
    assert arrays["b"].asnumpy().tolist() == [1, 1, 1] and float(arrays["a"]) == 1
    assert hvd.broadcast_object({"from": r}, root_rank=1) == {"from": 1}
    assert hvd.allgather_object(("rank", r)) == [("rank", 0), ("rank", 1)]


def _deferred_initialization(hvd: Any) -> None:
    r = hvd.rank()
    probe = mx.nd.ones((1, 4), dtype="float64")
    for ready in [set(), {0}, {0, 1}]:  # ranks that know the shapes
        mx.random.seed(r)
        net = _started(r) if r in ready else _network()
        if r not in ready:
            net.initialize(mx.init.Normal(1))
        hvd.broadcast_parameters(net.collect_params(), prefix=f"deferred{len(ready)}")
        with mx.autograd.record():
            net(probe)
        assert len(set(hvd.allgather_object(_digest(net)))) == 1
        if ready:
            assert _digest(net) == _digest(_started(0))
        net.collect_params().reset_ctx(mx.cpu(0))  # initializes again, on one rank or all, and broadcasts nothing
    net = _started(r) if r else _network()
    if not r:
        net.initialize()
    with pytest.raises(mx.MXNetError, match=r"at the root not initialized yet"):
        hvd.broadcast_parameters(net.collect_params())


def _join(hvd: Any) -> None:
    """Ranks with fewer batches."""
    r, net = hvd.rank(), _started(0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    for step in range(2 + r):
        _backward(net, step, r, 2)
        trainer.step(1)
    assert hvd.join() == 1
    hvd.broadcast_parameters(net.collect_params(), root_rank=1)
    assert len(set(hvd.allgather_object(_digest(net)))) == 1
