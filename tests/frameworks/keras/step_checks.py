"""What one step of a DistributedOptimizer does with gradients and options."""

from __future__ import annotations

from typing import Any

import numpy as np
from common import BACKEND, LEGACY, hvd, keras, network, raises, read, same_everywhere, step, tensor, train, variable


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


def computed() -> None:
    """compute_gradients, which TensorFlow's Horovod scripts call: reduced once, and the passes are counted."""
    import tensorflow as tf

    mean = (hvd.size() - 1) / 2
    opt, v = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum), variable((2,))
    for turn in range(1, 4):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.convert_to_tensor(v) * float(hvd.rank()))
        own = {} if turn == 1 else {"tape": tape}
        pairs = opt._compute_gradients(loss if own else lambda: tf.reduce_sum(v * float(hvd.rank())), [v], **own)
        np.testing.assert_allclose(read(pairs[0][0]), hvd.size() * mean)
        opt.apply_gradients(pairs)
        np.testing.assert_allclose(read(v), -turn * hvd.size() * mean)
    with raises(ValueError, "tape"):
        opt.compute_gradients(loss, [v])

    opt, v = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2), variable((2,))
    for turn in range(1, 4):
        opt.apply_gradients(opt.compute_gradients(lambda: tf.reduce_sum(v * float(hvd.rank())), [v]))
        assert int(read(opt._agg_helper.counter)) == turn % 2
        np.testing.assert_allclose(read(v), -(turn // 2) * 2 * mean)


def clipping() -> None:
    """Gradients are clipped after their reduction."""
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, clipvalue=1.0))
    mine = 4.0 if hvd.rank() == 0 else -3.5 / (hvd.size() - 1)
    np.testing.assert_allclose(step(opt, mine), [-0.5 / hvd.size()], atol=1e-6)


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
    scaled = (keras.mixed_precision if LEGACY else keras.optimizers).LossScaleOptimizer
    made = hvd.DistributedOptimizer(scaled(keras.optimizers.SGD(1.0)))
    others = scaled(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)))
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


def state_is_kept() -> None:
    """Wrapping an optimizer that has been used keeps its state."""
    used = keras.optimizers.SGD(1.0, momentum=0.5)
    v = variable((2,))
    used.apply_gradients([(tensor([1.0, 1.0]), v)])
    made = hvd.DistributedOptimizer(used)
    made.apply_gradients([(tensor([0.0, 0.0]), v)])
    np.testing.assert_allclose(read(v), -1.5)


def sync_batch_normalization() -> None:
    """On TensorFlow, with batches of different sizes: what BatchNormalization computes from the joint batch."""
    import tensorflow as tf

    from pycollective.tensorflow import SyncBatchNormalization

    sizes, rng = [3 + rank for rank in range(hvd.size())], np.random.default_rng(0)
    everything, weights = (rng.normal(5, 2, (sum(sizes), 4, 3)).astype("float32") for _ in range(2))
    first = sum(sizes[: hvd.rank()])
    mine = slice(first, first + sizes[hvd.rank()])

    def trained(layer: Any, x: Any, weight: Any, run: Any) -> list[Any]:
        """The output, and the gradients of the input, the scale and the offset."""
        layer.build(x.shape)

        def step(x: Any) -> list[Any]:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
                loss = tf.reduce_sum(y * weight)
            sources = [x, *(getattr(v, "value", v) if not LEGACY else v for v in layer.trainable_variables)]
            return [y, *tape.gradient(loss, sources)]

        return [found.numpy() for found in run(step)(tf.constant(x))]

    for run in (lambda step: step, tf.function):
        ours, plain = SyncBatchNormalization(momentum=0.5), keras.layers.BatchNormalization(momentum=0.5)
        found = trained(ours, everything[mine], weights[mine], run)
        expected = trained(plain, everything, weights, run)
        found[2:] = [sum(hvd.allgather_object(gradient)) for gradient in found[2:]]
        expected[:2] = [whole[mine] for whole in expected[:2]]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
        for a, b in zip(ours.get_weights(), plain.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
        same_everywhere([w.tobytes() for w in ours.get_weights()])
    assert SyncBatchNormalization.from_config(ours.get_config()).momentum == 0.5
    with raises(ValueError, "fused"):
        SyncBatchNormalization(fused=True)
