"""hvd.* on TensorFlow, run by each rank through run_steps.py."""

import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from checks import Checks, raises

import pycollective.tensorflow as hvd
from pycollective.hvd import basics

v1 = tf.compat.v1
check = Checks()
DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.uint8, tf.int32, tf.int64, tf.uint64)
SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (7,), (3, 5), (0, 4), (70_001,))
GRADIENT_SHAPES = ((17, 33), (33,), (), (5, 3, 3), (4099,))


def random(shape: tuple[int, ...], dtype: tf.DType, seed: int) -> np.ndarray:
    """This rank's array."""
    generator = np.random.default_rng([seed, hvd.rank()])
    values = generator.integers(0, 9, shape) + (generator.random(shape) if dtype.is_floating else 0)
    return np.asarray(values).astype(dtype.as_numpy_dtype)


def three_ways(function: Callable[..., Any], *arrays: np.ndarray) -> list[list[np.ndarray]]:
    """The results of a function of tensors: eagerly, as a tf.function, and in a v1 graph."""
    tensors = [tf.constant(array) for array in arrays]
    found = [tf.nest.flatten(function(*tensors)), tf.nest.flatten(tf.function(function)(*tensors))]
    with tf.Graph().as_default(), v1.Session() as session:
        holders = [v1.placeholder(tensor.dtype, tensor.shape) for tensor in tensors]
        outputs = tf.nest.flatten(function(*holders))
        for eager, symbolic in zip(found[0], outputs, strict=True):
            assert symbolic.shape.is_compatible_with(eager.shape), (symbolic.shape, eager.shape)
        results = session.run(outputs, dict(zip(holders, arrays, strict=True)))
    return [[np.asarray(x) for x in found[0]], [np.asarray(x) for x in found[1]], results]


def same(a: Any, b: Any) -> None:
    a, b = (np.asarray(x.numpy() if isinstance(x, tf.Tensor) else x) for x in (a, b))
    assert (a.dtype, a.shape) == (b.dtype, b.shape), (a.dtype, a.shape, b.dtype, b.shape)
    assert a.tobytes() == b.tobytes(), (a, b)


@check
def bits_of_numpy() -> None:
    comm = basics.world().comm
    for number, (dtype, shape) in enumerate((d, s) for d in DTYPES for s in SHAPES):
        x = random(shape, dtype, number)
        names = {hvd.Sum: "sum", hvd.Min: "min", hvd.Max: "max"} | ({hvd.Average: "avg"} if dtype.is_floating else {})
        for op, name in names.items() if len(shape) == 1 else [(hvd.Sum, "sum")]:
            expected = comm.allreduce(x, op=name)
            if len(shape) < 2 or op != hvd.Sum:
                same(hvd.allreduce(tf.constant(x), op=op), expected)
                continue
            for results in three_ways(lambda t, op=op: hvd.allreduce(t, op=op), x):
                same(results[0], expected)


@check
def moving_three_ways() -> None:
    comm = basics.world().comm
    size, rank = hvd.size(), hvd.rank()
    x, ragged = random((size * 2, 3), tf.float32, 1), random((rank + 1, 2), tf.float64, 2)
    splits = np.arange(size, dtype=np.int64) + 1
    long = random((int(splits.sum()), 2), tf.int32, 3)
    for results in three_ways(lambda a, b: hvd.grouped_allgather([a, b]), x, ragged):
        same(results[0], comm.allgather(x).reshape(-1, 3))
        assert results[1].shape == (sum(range(size + 1)), 2)
        start = sum(range(rank + 1))
        same(results[1][start : start + rank + 1], ragged)
    for results in three_ways(lambda a: hvd.broadcast(a, size - 1), x):
        same(results[0], comm.broadcast(x, size - 1))
    for results in three_ways(lambda a: hvd.alltoall(a), x):
        same(results[0], comm.alltoall(x))
    for results in three_ways(lambda a, s: hvd.alltoall(a, s), long, splits):
        same(results[1], np.full(size, rank + 1, np.int64))
        start = int(splits[:rank].sum())
        mine = results[0][rank * (rank + 1) : (rank + 1) * (rank + 1)]
        same(mine, long[start : start + rank + 1])
    for results in three_ways(lambda a: hvd.reducescatter(a, op=hvd.Sum, prescale_factor=0.5), x):
        same(results[0], comm.reduce_scatter(x, op="sum", prescale=0.5).reshape(results[0].shape))
    for results in three_ways(lambda a: hvd.grouped_allreduce([a, a * 2], op=hvd.Sum, postscale_factor=0.25), x):
        same(results[1], comm.allreduce(x * 2, op="sum", postscale=0.25))
    uneven = random((size + 1, 2), tf.float32, 4)
    for results in three_ways(lambda a: hvd.reducescatter(a), uneven):
        same(results[0], np.array_split(comm.allreduce(uneven, op="avg"), size)[rank])
    slices = tf.IndexedSlices(tf.constant(x), tf.range(size * 2), (size * 2, 3))
    dense = tf.convert_to_tensor(hvd.allreduce(slices))
    np.testing.assert_allclose(dense, comm.allreduce(x, op="avg"), rtol=1e-6)


@check
def numbers() -> None:
    for graph in (False, True):

        def queries() -> Any:
            return hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(), hvd.process_set_included_op()

        found = [int(x) for x in (tf.function(queries) if graph else queries)()]
        assert found == [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), 1], found
    hvd.barrier()
    tf.function(lambda: hvd.barrier())()
    assert tf.function(lambda: hvd.process_set_included_op(99))().numpy() == -2


@check
def compression_keeps_types() -> None:
    for compression, small in ((hvd.Compression.fp16, tf.float16), (hvd.Compression.bf16, tf.bfloat16)):
        x = random((9,), tf.float64, 5)
        summed = basics.world().comm.allreduce(x.astype(small.as_numpy_dtype))
        for results in three_ways(lambda t, c=compression: hvd.allreduce(t, op=hvd.Sum, compression=c), x):
            same(results[0], summed.astype(np.float64))
        same(hvd.allreduce(tf.range(3), op=hvd.Sum, compression=compression), np.arange(3, dtype=np.int32) * hvd.size())


@check
def gradients_of_all_collectives() -> None:
    size, rank = hvd.size(), hvd.rank()
    weights = np.arange(size * 2, dtype=np.float64).reshape(-1, 1) + 1
    x = random((size * 2, 1), tf.float64, 6)
    cases: list[tuple[Callable[[Any], Any], Callable[[Any], np.ndarray]]] = [
        (lambda t: hvd.allreduce(t, op=hvd.Sum), lambda w: w * size),
        (lambda t: hvd.allreduce(t), lambda w: w),
        (lambda t: hvd.allreduce(t, op=hvd.Sum, prescale_factor=0.5), lambda w: w * size * 0.5),
        (lambda t: hvd.grouped_allreduce([t, t])[0], lambda w: w),
        (lambda t: hvd.broadcast(t, 1), lambda w: w * (rank == 1)),
        (lambda t: hvd.allgather(t)[rank * size * 2 : (rank + 1) * size * 2], lambda w: w / size),
        (lambda t: hvd.grouped_allgather([t, t])[1][rank * size * 2 : (rank + 1) * size * 2], lambda w: w / size),
        (lambda t: hvd.alltoall(t), lambda w: np.repeat(w[2 * rank : 2 * rank + 2][None], size, 0).reshape(-1, 1)),
    ]
    for function, expected in cases:

        def both(t: Any, function: Callable[[Any], Any] = function) -> Any:
            if isinstance(t, tf.Variable) or tf.executing_eagerly() or not isinstance(t.graph, type(v1.Graph())):
                with tf.GradientTape() as tape:
                    tape.watch(t)
                    loss = tf.reduce_sum(function(t) * weights)
                return tape.gradient(loss, t)
            return tf.gradients(tf.reduce_sum(function(t) * weights), t)[0]

        for results in three_ways(both, x):
            np.testing.assert_allclose(results[0], expected(weights), rtol=1e-12)

    def scattered(t: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(t)
            mine = hvd.reducescatter(t, op=hvd.Sum) * (rank + 1.0)
        return tape.gradient(mine, t)

    expected_rows = np.repeat(np.arange(1.0, size + 1), 2).reshape(-1, 1) * size
    np.testing.assert_allclose(scattered(tf.constant(x)), expected_rows)
    np.testing.assert_allclose(tf.function(scattered)(tf.constant(x)), expected_rows)
    with tf.GradientTape() as outer:
        t = tf.constant(3.0)
        outer.watch(t)
        with tf.GradientTape() as inner:
            inner.watch(t)
            cube = hvd.allreduce(t * t * t)
        first = inner.gradient(cube, t)
    assert float(outer.gradient(first, t)) == 18.0


def reduced_by_tape(in_function: bool, gradients: list[np.ndarray], **options: Any) -> list[np.ndarray]:
    variables = [tf.Variable(tf.zeros(g.shape, g.dtype)) for g in gradients]

    def step(*given: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(tf.cast(v * g, tf.float64)) for v, g in zip(variables, given, strict=True)])
        return hvd.DistributedGradientTape(tape, **options).gradient(loss, variables)

    found = (tf.function(step) if in_function else step)(*map(tf.constant, gradients))
    return [np.asarray(g) for g in found]


@check
def tape_of_many_gradients() -> None:
    comm = basics.world().comm
    gradients = [random(shape, tf.float32, 10 + i) for i, shape in enumerate(GRADIENT_SHAPES)]
    for in_function in (False, True):
        for options in ({}, {"groups": 2}, {"op": hvd.Sum}):
            name = "sum" if "op" in options else "avg"
            for found, mine in zip(reduced_by_tape(in_function, gradients, **options), gradients, strict=True):
                same(found, comm.allreduce(mine, op=name))
        halved = reduced_by_tape(in_function, gradients, gradient_predivide_factor=3.0)
        same(halved[0], comm.allreduce(gradients[0], op="avg", prescale=1 / 3.0, postscale=3.0))
        small = reduced_by_tape(in_function, gradients, compression=hvd.Compression.fp16)
        same(small[1], comm.allreduce(gradients[1].astype(np.float16), op="avg").astype(np.float32))


@check
def bits_do_not_depend_on_fusion() -> None:
    gradients = [random(shape, tf.float32, 30 + i) for i, shape in enumerate(GRADIENT_SHAPES)]
    engine = basics.engine_of(hvd.global_process_set)
    first: list[np.ndarray] = []
    for threshold in (0, 4096, 64 << 20):
        hvd.barrier()
        engine.tune(threshold, engine.settings.cycle_time)
        hvd.barrier()
        for in_function in (False, True):
            found = reduced_by_tape(in_function, gradients)
            first = first or found
            for one, other in zip(found, first, strict=True):
                same(one, other)


@check
def tape_with_sparse_and_local_gradients() -> None:
    size, rank = hvd.size(), hvd.rank()
    table, local, unused = tf.Variable(tf.ones([4, 2])), tf.Variable([2.0]), tf.Variable(1.0)

    def step(dense: bool) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [rank])) * (rank + 1.0) + local[0] * 3.0
        tape = hvd.DistributedGradientTape(tape, sparse_as_dense=dense)
        tape.register_local_source(local)
        return tape.gradient(loss, {"t": table, "l": local, "u": unused})

    expected = np.zeros((4, 2), np.float32)
    for r in range(size):
        expected[r] = (r + 1.0) / size
    for dense in (False, True):
        for found in (step(dense), tf.function(lambda dense=dense: step(dense))()):
            assert isinstance(found["t"], tf.IndexedSlices) != dense
            np.testing.assert_allclose(tf.convert_to_tensor(found["t"]), expected, rtol=1e-6)
            np.testing.assert_allclose(found["l"], [3.0 / size], rtol=1e-6)
            assert found["u"] is None


@check
def a_gradient_missing_on_one_rank() -> None:
    a, b = tf.Variable([1.0, 2.0], name="kernel"), tf.Variable(1.0, name="bias")

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(a) if hvd.rank() == 1 else tf.reduce_sum(a) * b
        return hvd.DistributedGradientTape(tape).gradient(loss, [a, b])

    for function in (step, tf.function(step)):
        raises(tf.errors.FailedPreconditionError, "'bias:0' is", function)
        raises(tf.errors.FailedPreconditionError, "missing on rank 1", function)


@check
def a_gradient_sparse_on_one_rank() -> None:
    table = tf.Variable(tf.ones([4, 2]), name="table")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [0]) if hvd.rank() == hvd.size() - 1 else table)
    tape = hvd.DistributedGradientTape(tape)
    raises(tf.errors.FailedPreconditionError, "(sparse)", lambda: tape.gradient(loss, [table]))


@check
def calls_that_differ() -> None:
    rank = hvd.rank()
    cases: list[tuple[str, Callable[[], Any]]] = [
        ("shape", lambda: hvd.allreduce(tf.ones([3 + rank]))),
        ("float32", lambda: hvd.allreduce(tf.ones([3], tf.float32 if rank else tf.float64))),
        ("", lambda: hvd.broadcast(tf.ones([3]), 1 if rank else 0)),
        ("", lambda: hvd.allreduce(tf.ones([3]), op=hvd.Sum if rank else hvd.Max)),
        ("", lambda: hvd.allgather(tf.ones([3, 2 + rank]))),
    ]
    for words, function in cases:
        for each in (function, tf.function(function)):
            raises(tf.errors.FailedPreconditionError, words, each)


@check
def bad_arguments() -> None:
    invalid = tf.errors.InvalidArgumentError
    one, table = tf.ones([2]), tf.Variable(tf.ones([4, 2]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [0]))
    minimum = hvd.DistributedGradientTape(tape, op=hvd.Min)
    for words, kind, function in [
        ("string", TypeError, lambda: hvd.allreduce(tf.constant(["a"]))),
        ("op must", ValueError, lambda: hvd.allreduce(one, op=17)),
        ("prescale_factor", TypeError, lambda: hvd.allreduce(one, prescale_factor="much")),
        ("root_rank", ValueError, lambda: hvd.broadcast(one, 99)),
        ("a list or tuple", TypeError, lambda: hvd.grouped_allreduce(one)),
        ("sparse", NotImplementedError, lambda: minimum.gradient(loss, [table])),
        ("splits", ValueError, lambda: hvd.alltoall(one, [0.5] * hvd.size())),
        ("op=Average", NotImplementedError, lambda: hvd.reducescatter(one, op=hvd.Max)),
        ("axis to cut", ValueError, lambda: hvd.reducescatter(tf.constant(1.0))),
        ("splits [9", invalid, lambda: hvd.alltoall(one, [9] * hvd.size())),
        ("Compressor", TypeError, lambda: hvd.allreduce(one, compression="fp16")),
        ("groups", ValueError, lambda: hvd.DistributedGradientTape(tf.GradientTape(), groups=-1)),
        ("op=Average", ValueError, lambda: hvd.DistributedGradientTape(
            tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0)),
    ]:  # fmt: skip
        raises(kind, words, function)
    leaked = []
    tf.function(lambda x: leaked.append(x))(one)
    raises(TypeError, "symbolic", lambda: hvd.allreduce(leaked[0]))
    complex_sum = hvd.allreduce(tf.constant([1 + 2j]) * (hvd.rank() + 1.0), op=hvd.Sum)
    assert complex_sum.numpy()[0] == (1 + 2j) * sum(range(1, hvd.size() + 1))
    assert np.isnan(hvd.allreduce(tf.constant([np.nan if hvd.rank() else 1.0]))).all()


@check
def a_name_twice_in_flight() -> None:
    """Two operations of a v1 graph may run at the same time; a graph gives them different names.

    Two eager calls of one name cannot: the second of a rank raises, and the first completes with the other ranks'.
    """
    with tf.Graph().as_default(), v1.Session() as session:
        x = tf.ones([3]) * (hvd.rank() + 1.0)
        first, second = (hvd.allreduce(x * k, name="twice", op=hvd.Sum) for k in (1.0, 2.0))
        for _ in range(3):
            a, b = session.run([first, second])
            assert (b == 2 * a).all()
    errors: queue.Queue[str] = queue.Queue()

    def clash() -> None:
        try:
            hvd.allreduce(tf.ones([3]), name="clash")
        except tf.errors.InvalidArgumentError as error:
            errors.put(str(error))

    # Rank 0 calls once, after both calls of every other rank: neither can complete earlier, so one of them must fail.
    threads = [threading.Thread(target=clash) for _ in range(2 if hvd.rank() else 0)]
    for thread in threads:
        thread.start()
    if threads:
        assert "clash" in errors.get(timeout=60)
    hvd.barrier()
    if not threads:
        clash()
    for thread in threads:
        thread.join()
    assert errors.empty()
    hvd.barrier()


@check
def variables_and_objects() -> None:
    variables = [tf.Variable(tf.fill([3, 2], float(hvd.rank()))), tf.Variable(hvd.rank(), dtype=tf.int64)]
    hvd.broadcast_variables(variables, 1)
    assert (variables[0].numpy() == 1).all() and variables[1].numpy() == 1
    tf.function(lambda: hvd.broadcast_variables(variables, 0))()
    assert [hvd.broadcast_(variables, 1)[1].numpy(), variables[1].numpy()] == [1, 1]
    raises(RuntimeError, "broadcast_variables", lambda: hvd.broadcast_global_variables(0))
    assert hvd.broadcast_object({"a": hvd.rank()}, 1) == {"a": 1}
    assert hvd.broadcast_object_fn(1)(hvd.rank()) == 1
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
    with tf.Graph().as_default():
        for resource in (True, False):
            v1.get_variable(f"v{resource}", initializer=float(hvd.rank()), use_resource=resource)
        with v1.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(1)]) as session:
            assert session.run(v1.global_variables()) == [1.0, 1.0]


@check
def v1_optimizers() -> None:
    size = hvd.size()
    for op in (hvd.Average, hvd.Adasum):
        for passes in (1, 2):
            with tf.Graph().as_default(), v1.Session() as session:
                w = v1.get_variable("w", initializer=[1.0, 2.0], use_resource=True)
                loss = tf.reduce_sum(w * tf.constant([1.0, 3.0]) * (hvd.rank() + 1.0))
                plain = v1.train.GradientDescentOptimizer(1.0)
                optimizer = hvd.DistributedOptimizer(plain, backward_passes_per_step=passes, op=op)
                step = v1.train.get_or_create_global_step()
                train = optimizer.apply_gradients(optimizer.compute_gradients(loss, [w]), global_step=step)
                session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
                for _ in range(passes):
                    before = session.run(w)
                    session.run(train)
                assert session.run(step) == passes
                moved = session.run(w) - [1.0, 2.0]
                if op == hvd.Average:
                    mean = passes * (size + 1) / 2
                    np.testing.assert_allclose(moved, [-mean, -3 * mean], rtol=1e-5)
                    assert passes == 1 or (before == [1.0, 2.0]).all()
                assert len({w.tobytes() for w in hvd.allgather_object(moved)}) == 1


@check
def elastic_state_is_restored() -> None:
    v = tf.Variable([1.0, 2.0]) if hvd.rank() == 0 else tf.Variable([5.0, 6.0])
    state = hvd.elastic.TensorFlowState([v], batch=hvd.rank() + 7)
    state.sync()
    assert v.numpy().tolist() == [1.0, 2.0] and state.batch == 7
    v.assign([9.0, 9.0])
    state.batch = 8
    state.restore()
    assert v.numpy().tolist() == [1.0, 2.0] and state.batch == 7
    v.assign([3.0, 3.0])
    state.commit()
    v.assign([4.0, 4.0])
    state.restore()
    assert v.numpy().tolist() == [3.0, 3.0]


@check
def process_sets() -> None:
    last = hvd.add_process_set([hvd.size() - 1])
    others = hvd.add_process_set(range(hvd.size() - 1)) if hvd.size() > 2 else None
    mine = last if last.included() else others
    v = tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as tape:
        loss = v * (hvd.rank() + 1.0)
    if mine is not None:
        for function in (hvd.allreduce, tf.function(hvd.allreduce)):
            found = function(tf.constant([float(hvd.rank())]), process_set=mine)
            assert found.numpy()[0] == np.mean(mine.ranks)
        found = hvd.DistributedGradientTape(tape, process_set=mine).gradient(loss, v)
        assert float(found) == np.mean([rank + 1 for rank in mine.ranks])
    if not last.included():

        def outside() -> Any:
            return hvd.allreduce(tf.ones(1), process_set=last)

        for function in (outside, tf.function(outside)):
            raises(tf.errors.InvalidArgumentError, "not part of", function)
        assert float(hvd.DistributedGradientTape(tape, process_set=last).gradient(loss, v)) == hvd.rank() + 1.0
    hvd.barrier()
    hvd.remove_process_set(last)
    if others is not None:
        hvd.remove_process_set(others)


@check
def rows_after_join() -> None:
    """The last check: after it the ranks start numbering their operations again."""
    for join in (hvd.join, tf.function(hvd.join)):
        if hvd.rank() == 0:
            assert 0 < int(join()) < hvd.size()
        else:
            found = hvd.allreduce(tf.ones([3]), op=hvd.Sum, name="alone")
            assert (found.numpy() == hvd.size() - 1).all()
            assert 0 < int(join()) < hvd.size()


def outcomes() -> dict[str, str]:
    hvd.init(process_sets="dynamic")
    found = check.outcomes()
    hvd.shutdown()
    return found
