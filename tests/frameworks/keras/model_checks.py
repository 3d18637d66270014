"""Saved models, callbacks, collectives on values, and elastic training."""

from __future__ import annotations

import importlib
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import BACKEND, LEGACY, digest, errors, hvd, keras, network, raises, read, rows, same_everywhere, train


def saving() -> None:
    """A saved model has the original class, here and without this package; load_model makes it distributed again."""
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model = train(optimizer)
    assert type(optimizer).__name__ == "Adam"
    assert type(optimizer).from_config(optimizer.get_config()).get_config() == optimizer.get_config()
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "model.keras"))
        model.save(file)
        plain, again = keras.models.load_model(file), hvd.load_model(file)
    assert not hasattr(plain.optimizer, "reduction")
    assert int(read(plain.optimizer.iterations)) == int(read(again.optimizer.iterations)) == 12
    x, y = rows(seed=10 + hvd.rank())
    for loaded in (again, model):
        loaded.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    same_everywhere([digest(again), digest(model)])
    assert digest(again) == digest(model)


def saving_passes() -> None:
    """A loaded optimizer adds up as many passes as the saved one, if told to; if not, Keras 3 knows that it should."""
    options = {"backward_passes_per_step": 2}
    model = train(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), **options))
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "model.keras"))
        model.save(file)
        again = hvd.load_model(file, **options)
        if not LEGACY:
            with raises(ValueError, "gradients of 2 steps", "backward_passes_per_step=2, not 1"):
                hvd.load_model(file)
    x, y = rows(seed=10 + hvd.rank())
    for loaded in (again, model):
        loaded.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    same_everywhere(digest(again))
    assert digest(again) == digest(model)


def metrics_and_rates() -> None:
    n = hvd.size()
    logs = {"loss": float(hvd.rank()), "accuracy": 1.0}
    hvd.MetricAverageCallback().on_epoch_end(0, logs)
    assert logs == {"loss": (n - 1) / 2, "accuracy": 1.0}
    with raises(errors.MismatchError, "val_loss"):
        hvd.MetricAverageCallback().on_epoch_end(0, {"loss": 1.0, **({"val_loss": 1.0} if hvd.rank() else {})})
    rates = []

    class Rates(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rates.append(float(read(self.model.optimizer.learning_rate)))

    warmup = hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1, warmup_epochs=2)
    later = hvd.callbacks.LearningRateScheduleCallback(initial_lr=0.1, multiplier=0.1, start_epoch=2)
    train(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), epochs=4, callbacks=[warmup, later, Rates()])
    expected = [0.1 / n * ((batch + 1) / 6 * (n - 1) / 2 + 1) for batch in range(12)] + [0.1] * 6 + [0.01] * 6
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


def momentum_is_corrected() -> None:
    """When the rate falls to a tenth, so does the velocity that the next step adds."""
    model = network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
    x, y = rows()
    model.fit(x, y, batch_size=48, verbose=0)
    before = [read(v) for v in model.optimizer.momentums]
    callback = hvd.LearningRateScheduleCallback(initial_lr=0.1, multiplier=lambda epoch: 0.1)
    callback.set_model(model)
    callback.on_epoch_begin(0)
    callback.on_train_batch_begin(0)
    for old, new in zip(before, model.optimizer.momentums, strict=True):
        np.testing.assert_allclose(read(new), 0.1 * old, rtol=1e-5)


def values() -> None:
    n, r = hvd.size(), hvd.rank()
    assert float(hvd.allreduce(float(r))) == (n - 1) / 2
    assert float(hvd.allreduce(r + 1.0, op=hvd.Sum, name="a")) == n * (n + 1) / 2
    assert np.array(hvd.allgather(np.full((r + 1, 2), r))).shape == (n * (n + 1) // 2, 2)
    assert np.array(hvd.broadcast(np.arange(3) + r, 1)).tolist() == [1, 2, 3]
    assert np.array(hvd.reducescatter(np.ones((2 * n, 3), "float32"), op=hvd.Sum)).tolist() == [[n] * 3] * 2
    if not LEGACY:
        with raises((TypeError, ValueError), "KerasTensor"):
            hvd.allreduce(keras.Input((2,)))
    if BACKEND == "torch":
        with raises(TypeError, "meta"):
            hvd.allreduce(importlib.import_module("torch").ones(2, device="meta"))
    with raises(RuntimeError, "BroadcastGlobalVariablesCallback"):
        hvd.broadcast_global_variables(0)


def elastic() -> None:
    model = train(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    state = hvd.elastic.KerasState(model, batch=hvd.rank(), epoch=3 + hvd.rank())
    state.sync()
    assert (state.batch, state.epoch) == (0, 3)
    saved = digest(model)
    model.set_weights([np.zeros_like(w) for w in model.get_weights()])
    state.batch = 9
    state.restore()
    assert (digest(model), state.batch) == (saved, 0)
    commit = hvd.elastic.CommitStateCallback(state, batches_per_commit=2)
    batch, epoch = hvd.elastic.UpdateBatchStateCallback(state), hvd.elastic.UpdateEpochStateCallback(state)
    x, y = rows(seed=hvd.rank())
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[commit, batch, epoch])
    assert (state.batch, state.epoch) == (0, 4)


def rank_is_killed() -> None:
    """Within fit. The last check: the others get an error that names the rank, and continue from the last commit."""
    killed = hvd.rank() == 1
    model = network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)), "mse")
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    starts, failures, ranks = [], [], hvd.size()

    class Killed(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if killed and batch == 2 and state.epoch == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def continued(state: Any) -> None:
        starts.append((state.epoch, hvd.size()))
        update = hvd.elastic.UpdateEpochStateCallback(state)
        commit = hvd.elastic.CommitStateCallback(state, batches_per_commit=100)
        x, y = rows(seed=hvd.rank())
        try:
            model.fit(x, y, batch_size=8, epochs=3 - state.epoch, verbose=0, callbacks=[Killed(), update, commit])
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")
            raise

    continued(state)
    assert starts == [(0, ranks), (1, ranks - 1)], starts
    assert len(failures) == 1 and "HorovodInternalError" in failures[0] and "rank 1" in failures[0], failures
    assert (state.epoch, int(read(model.optimizer.iterations))) == (3, 18)
    assert hvd.allgather_object(digest(model)) == [digest(model)] * hvd.size()
