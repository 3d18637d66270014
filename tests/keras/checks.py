"""Checks of a package of Keras on several ranks, many in one process: a script, started by the tests of this folder.

python checks.py NAME...        the environment chooses the backend; prints a line of JSON for each check
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np

LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
hvd: Any = importlib.import_module("pycollective.tensorflow.keras" if LEGACY else "pycollective.keras")
keras: Any = importlib.import_module("tf_keras" if LEGACY else "keras")
errors: Any = importlib.import_module("pycollective.errors")
BACKEND = "tensorflow" if LEGACY else keras.backend.backend()


def network(units: int = 8, dtype: str = "float32", **options: Any) -> Any:
    layers = [keras.layers.Dense(units, activation="tanh", dtype=dtype, **options), keras.layers.Dense(2, dtype=dtype)]
    return keras.Sequential([keras.Input((6,), dtype=dtype), *layers])


def rows(count: int = 48, seed: int = 0, dtype: str = "float32") -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 6)).astype(dtype), rng.normal(size=(count, 2)).astype(dtype)


def digest(model: Any) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(w).tobytes() for w in model.get_weights())).hexdigest()[:16]


def same_everywhere(value: Any) -> None:
    everyone = hvd.allgather_object(value)
    assert everyone == [everyone[0]] * hvd.size(), everyone


def train(optimizer: Any, model: Any = None, epochs: int = 2, callbacks: Any = (), **options: Any) -> Any:
    """fit on data that differ between ranks, from weights that differ until rank 0's are broadcast."""
    keras.utils.set_random_seed(hvd.rank())
    model = network() if model is None else model
    model.compile(optimizer, "mse", **options)
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    x, y = rows(seed=hvd.rank())
    model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[first, *callbacks])
    same_everywhere(digest(model))
    return model


def variable(shape: Any = (), name: str = "v", value: float = 0.0) -> Any:
    if LEGACY:
        import tensorflow as tf

        return tf.Variable(np.full(shape, value, "float32"), name=name)
    return keras.Variable(np.full(shape, value, "float32"), name=name)


def tensor(value: Any) -> Any:
    if LEGACY:
        import tensorflow as tf

        return tf.constant(np.asarray(value, "float32"))
    return keras.ops.convert_to_tensor(np.asarray(value, "float32"))


def step(optimizer: Any, *values: Any) -> list[float]:
    """What one step with these gradients (None, or a number for each rank) makes of variables that were 0."""
    variables = [variable((2,), f"v{i}") for i in range(len(values))]
    gradients = [None if v is None else tensor(np.full(2, v)) for v in values]
    optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
    return [float(read(v)[0]) for v in variables]


def read(value: Any) -> Any:
    """As a NumPy array."""
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def raises(kind: Any, *words: str) -> Any:
    import contextlib

    @contextlib.contextmanager
    def context() -> Any:
        try:
            yield
        except kind as error:
            missing = [word for word in words if word not in str(error)]
            assert not missing, f"{missing} not in: {error}"
        else:
            raise AssertionError(f"did not raise {kind}")

    return context()


# -- training ------------------------------------------------------------------------------------------------------


def fit() -> None:
    """Bit-equal weights for several optimizers and options."""
    train(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    train(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9), compression=hvd.Compression.fp16))
    train(hvd.DistributedOptimizer(keras.optimizers.RMSprop(0.01), gradient_predivide_factor=2.0, groups=2))


def eager() -> None:
    train(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), run_eagerly=True)


def jit() -> None:
    """With jit_compile the weights are bit-equal too; where XLA cannot call this library, the first step raises."""
    refused = None
    if BACKEND == "tensorflow":
        refused = importlib.import_module("pycollective.tensorflow.graph_calls").why_not()
    try:
        train(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), jit_compile=True)
    except Exception as error:
        if not refused or "ompil" not in str(error):
            raise


def fusion() -> None:
    """The same bits whatever is fused."""
    found = set()
    for threshold in (None, "0", "100"):
        hvd.shutdown()
        os.environ.pop("HOROVOD_FUSION_THRESHOLD", None)
        if threshold is not None:
            os.environ["HOROVOD_FUSION_THRESHOLD"] = threshold
        hvd.init()
        found.add(digest(train(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))))
    os.environ.pop("HOROVOD_FUSION_THRESHOLD", None)
    assert len(found) == 1, found


def whole_batch() -> None:
    """In float64: what one process computes with the whole batch."""
    keras.backend.set_floatx("float64")
    try:
        n, part, steps = hvd.size(), 4, 6
        x, y = rows(n * part * steps, dtype="float64")
        keras.utils.set_random_seed(1)
        alone, here = (keras.Sequential([keras.Input((6,), dtype="float64"), _affine(8), _affine(2)]) for _ in range(2))
        here.set_weights(alone.get_weights())
        alone.compile(keras.optimizers.Adam(0.01), "mse")
        here.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
        alone.fit(x, y, batch_size=n * part, shuffle=False, epochs=2, verbose=0)
        mine = [a.reshape(steps, n, part, -1)[:, hvd.rank()].reshape(steps * part, -1) for a in (x, y)]
        here.fit(*mine, batch_size=part, shuffle=False, epochs=2, verbose=0)
        for a, b in zip(alone.get_weights(), here.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    finally:
        keras.backend.set_floatx("float32")


def _affine(units: int) -> Any:
    """A dense layer in float64 throughout: Keras multiplies matrices in float32 on torch, whatever their type."""
    if BACKEND != "torch":
        return keras.layers.Dense(units, activation="tanh", dtype="float64")

    class Affine(keras.layers.Layer):  # type: ignore[misc,name-defined]
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight((shape[-1], units), name="kernel")

        def call(self, x: Any) -> Any:
            return keras.ops.tanh(keras.ops.sum(keras.ops.expand_dims(x, -1) * self.kernel, axis=1))

    return Affine(dtype="float64")


def accumulation() -> None:
    """Keras's own accumulation, and ours: sums of the passes, or averages."""
    mean = (hvd.size() - 1) / 2
    for options, factor in (({}, 2.0), ({"average_aggregated_gradients": True}, 1.0)):
        opt = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2, **options)
        v = variable((2,))
        for expected in (0.0, -factor * mean, -factor * mean, -2 * factor * mean):
            opt.apply_gradients([(tensor([hvd.rank()] * 2), v)])
            np.testing.assert_allclose(read(v), expected)
    train(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), backward_passes_per_step=3))


def own_accumulation() -> None:
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, gradient_accumulation_steps=2))
    v, mean = variable((2,)), (hvd.size() - 1) / 2
    for expected in (0.0, -mean):
        opt.apply([tensor([hvd.rank()] * 2)], [v])
        np.testing.assert_allclose(read(v), expected)
    train(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)))


def clipping() -> None:
    """Gradients are clipped after their reduction."""
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, clipvalue=1.0))
    mine = 4.0 if hvd.rank() == 0 else -3.5 / (hvd.size() - 1)
    np.testing.assert_allclose(step(opt, mine), [-0.5 / hvd.size()], atol=1e-6)


def averages_and_ema() -> None:
    opt = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)
    )
    options = {} if BACKEND == "torch" else {"steps_per_execution": 2}
    train(opt, **options)


def operators() -> None:
    n, r = hvd.size(), hvd.rank()
    sgd = lambda **options: hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)  # noqa: E731
    assert step(sgd(), r + 1.0) == [-(n + 1) / 2]
    assert step(sgd(op=hvd.Sum), r + 1.0) == [-n * (n + 1) / 2]
    assert step(sgd(op=hvd.Max), r + 1.0) == [-n]
    assert step(sgd(gradient_predivide_factor=n), r + 1.0) == [-(n + 1) / 2]
    assert step(sgd(compression=hvd.Compression.bf16), r + 1.0) == [-(n + 1) / 2]
    assert step(sgd(groups=2), r + 1.0, 2.0, r) == [-(n + 1) / 2, -2.0, -(n - 1) / 2]
    nan = step(sgd(), float("nan") if r == n - 1 else 1.0)
    assert np.isnan(nan).all()


def mixed_precision() -> None:
    """Infinite gradients on one rank: all ranks skip the step, and halve the scale."""
    if LEGACY:
        made = hvd.DistributedOptimizer(keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(1.0)))
        others = keras.mixed_precision.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)))
    else:
        made = hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0)))
        others = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)))
    for opt in (made, others):
        v, scale = variable((2,)), 2.0**15
        _apply(opt, v, float("inf") if hvd.rank() == 0 else 1.0)
        assert float(read(v)[0]) == 0
        _apply(opt, v, hvd.rank() * (1.0 if LEGACY else scale / 2))  # tf_keras has divided by the scale before
        np.testing.assert_allclose(read(v), -(hvd.size() - 1) / 2)
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        keras.utils.set_random_seed(hvd.rank())
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(2, dtype="float32")])
        train(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), model)
        scales = getattr(model.optimizer, "dynamic_scale", None)
        same_everywhere(None if scales is None else float(read(scales)))
    finally:
        keras.mixed_precision.set_global_policy("float32")


def _apply(optimizer: Any, v: Any, value: float) -> None:
    """A step; on JAX the stateless one, as Keras's LossScaleOptimizer has no other there."""
    if BACKEND != "jax":
        optimizer.apply_gradients([(tensor([value] * 2), v)])
        return
    if not optimizer.built:
        optimizer.build([v])
    state = [own.value for own in optimizer.variables]
    (new,), state = optimizer.stateless_apply(state, [tensor([value] * 2)], [v.value])
    v.assign(new)
    for own, changed in zip(optimizer.variables, state, strict=True):
        own.assign(changed)


def sets_and_local_layers() -> None:
    hvd.shutdown()
    first = hvd.ProcessSet([0])
    hvd.init(process_sets=[first])
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=first)
    assert step(opt, hvd.rank() + 3.0) == [-(hvd.rank() + 3.0)]
    model = network()
    opt = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=model.layers[-1])
    before = [np.array(w) for w in model.get_weights()]
    gradients = [tensor(np.full(w.shape, hvd.rank() + 1.0)) for w in before]
    opt.apply_gradients(list(zip(gradients, model.trainable_variables, strict=True)))
    moved = [float((old - new).mean()) for old, new in zip(before, model.get_weights(), strict=True)]
    n = hvd.size()
    np.testing.assert_allclose(moved, [(n + 1) / 2] * 2 + [(hvd.rank() + 1) / n] * 2, rtol=1e-5)


def sparse() -> None:
    """Embeddings' gradients, gathered or dense."""
    for dense in (False, True):
        keras.utils.set_random_seed(hvd.rank())
        model = keras.Sequential([keras.Input((4,), dtype="int32"), keras.layers.Embedding(20, 3)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=dense), "mse")
        x = np.random.default_rng(hvd.rank()).integers(20, size=(16, 4))
        first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(x, np.zeros((16, 4, 3)), batch_size=4, verbose=0, callbacks=[first])
        same_everywhere(digest(model))


# -- models and callbacks ------------------------------------------------------------------------------------------


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


def state_is_kept() -> None:
    """Wrapping an optimizer that has been used keeps its state."""
    used = keras.optimizers.SGD(1.0, momentum=0.5)
    v = variable((2,))
    used.apply_gradients([(tensor([1.0, 1.0]), v)])
    made = hvd.DistributedOptimizer(used)
    made.apply_gradients([(tensor([0.0, 0.0]), v)])
    np.testing.assert_allclose(read(v), -1.5)


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


def values() -> None:
    n, r = hvd.size(), hvd.rank()
    assert float(hvd.allreduce(float(r))) == (n - 1) / 2
    assert float(hvd.allreduce(r + 1.0, op=hvd.Sum, name="a")) == n * (n + 1) / 2
    assert np.array(hvd.allgather(np.full((r + 1, 2), r))).shape == (n * (n + 1) // 2, 2)
    assert np.array(hvd.broadcast(np.arange(3) + r, 1)).tolist() == [1, 2, 3]
    assert np.array(hvd.reducescatter(np.ones((2 * n, 3), "float32"), op=hvd.Sum)).tolist() == [[n] * 3] * 2
    with raises(RuntimeError, "BroadcastGlobalVariablesCallback"):
        hvd.broadcast_global_variables(0)


# -- what must not go on silently ----------------------------------------------------------------------------------


def gradients_differ() -> None:
    """A frozen layer, another variable, another shape on one rank: an error on all that names it."""
    odd = hvd.rank() == 1
    if not LEGACY:
        opt = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
        with raises(errors.MismatchError, "'v1'", "missing on rank 1"):
            step(opt, 1.0, None if odd else 1.0)
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    with raises(errors.MismatchError, "'v2'", "rank 1"):
        step(opt, *[1.0] * (3 if odd else 2))
    opt, v = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), variable((3 if odd else 2,), "w")
    with raises(errors.MismatchError, "'w'", "shape (3,)"):
        opt.apply_gradients([(tensor(np.ones(3 if odd else 2)), v)])


def frozen_in_fit() -> None:
    """The same in a compiled step."""
    model = network()
    model.layers[0].trainable = hvd.rank() == 0
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x, y = rows()
    with raises(Exception, "dense/kernel", "rank 1"):
        model.fit(x, y, verbose=0)
    if BACKEND == "jax":
        importlib.import_module("pycollective.jax.private").forget_failure()


def bypassed() -> None:
    """Training steps that do not reduce."""
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    if not LEGACY:
        opt.build([v := variable((2,))])
        with raises(RuntimeError, "apply()"):
            opt.update_step(tensor([1.0, 1.0]), v, 1.0)

    class Bypassing(keras.Model):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = keras.layers.Dense(2)

        def call(self, x: Any) -> Any:
            return self.layer(x)

        def train_step(self, *data: Any) -> Any:
            if BACKEND == "jax":
                return {"loss": 0.0}, data[0]
            self(data[0][0])
            return {"loss": 0.0}

    x, y = rows()
    for callbacks in ([hvd.callbacks.BroadcastGlobalVariablesCallback(0)], []):
        model = Bypassing()
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), "mse", run_eagerly=True)
        with raises(RuntimeError, "no gradient was reduced"):
            model.fit(x, y, verbose=0, callbacks=callbacks)


def invalid_arguments() -> None:
    sgd = keras.optimizers.SGD(1.0)
    with raises(ValueError, "backward_passes_per_step"):
        hvd.DistributedOptimizer(sgd, backward_passes_per_step=0)
    with raises(ValueError, "gradient_predivide_factor"):
        hvd.DistributedOptimizer(sgd, op=hvd.Sum, gradient_predivide_factor=2.0)
    with raises(ValueError, "op must be"):
        hvd.DistributedOptimizer(sgd, op=99)
    with raises(TypeError, "optimizer"):
        hvd.DistributedOptimizer("adam")
    hvd.shutdown()
    opt = hvd.DistributedOptimizer(sgd)
    with raises(ValueError, "hvd.init()"):
        step(opt, 1.0)
    hvd.init()


def steps_differ() -> None:
    """Unequal numbers of batches: with the broadcast callback the training does not begin."""
    model = network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x, y = rows(48 if hvd.rank() else 32)
    with raises(errors.MismatchError, "steps", "[4, 6"):
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[hvd.BroadcastGlobalVariablesCallback(0)])


def batches_run_out() -> None:
    """Without the callback: an error when a rank has left, instead of waiting for it. The last check."""
    model = network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x, y = rows(48 if hvd.rank() else 32)
    if hvd.rank() == 0:
        model.fit(x, y, batch_size=8, verbose=0)
    else:
        with raises(Exception, "rank 0"):
            model.fit(x, y, batch_size=8, verbose=0)


def main() -> None:
    warnings.simplefilter("ignore")
    hvd.init()
    for name in sys.argv[1:]:
        try:
            globals()[name]()
            outcome = "ok"
        except BaseException:
            outcome = traceback.format_exc()
        print(json.dumps([name, outcome]), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
