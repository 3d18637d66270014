"""Elastic training: the state, the callbacks that change it, and a rank that is killed."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
from common import digest, hvd, keras, network, read, rows, train


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
