"""Calls from TensorFlow's graphs, run by each rank through run_steps.py."""

import itertools
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from checks import Checks, raises

from pycollective.engine import Item
from pycollective.hvd import basics, handles
from pycollective.hvd.basics import engine_of
from pycollective.hvd.exceptions import HorovodInternalError
from pycollective.hvd.graph_call import GraphCall, Start
from pycollective.hvd.process_sets import global_process_set
from pycollective.tensorflow import graph_calls

tf.config.threading.set_inter_op_parallelism_threads(2)
v1 = tf.compat.v1
MANY = 200
DTYPES = (
    tf.float32, tf.float64, tf.half, tf.bfloat16, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32,
    tf.uint64, tf.complex64, tf.complex128,
)  # fmt: skip
WITH_OPERATION = os.environ.get("PYCOLLECTIVE_TENSORFLOW_OP") != "0"
check, needs_operation = Checks(), Checks()
"""The latter of what calls that block a thread cannot do."""
starts = 0


def allreduce(name: str, op: str = "sum") -> Start:
    def start(call: GraphCall) -> None:
        global starts
        starts += 1
        x = call.inputs[0]
        assert type(call).__name__ != "TensorFlowCall" or not x.flags.writeable
        with handles.internal_errors():
            (work,) = engine_of(global_process_set).submit([Item("allreduce", name, x, call.output(0, x.shape), op)])

        def complete() -> None:
            try:
                with handles.internal_errors():
                    work.wait()
            except Exception as error:
                call.done(error)
            else:
                call.done(None)

        work.when_done(complete)
        work.flush()

    return start


def reduced(x: Any, name: str, op: str = "sum") -> Any:
    return graph_calls.call(allreduce(name, op), [x], [x.dtype], [x.shape], name=name)[0]


def scalar(start: Start) -> Any:
    """A call without operands, whose result is an integer."""
    return graph_calls.call(start, [], [tf.int32], [tf.TensorShape([])], name="scalar")[0]


def noted(order: list[Any], note: Any, x: Any) -> Any:
    """`x`, by a call that adds a note to `order`."""

    def start(call: GraphCall) -> None:
        order.append(note)
        call.output(0, ())[...] = call.inputs[0]
        call.done(None)

    return graph_calls.call(start, [x], [tf.float32], [tf.TensorShape([])], name="noted")[0]


def jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    return tf.function(function, jit_compile=True)


FUNCTIONS = [tf.function, jitted] if WITH_OPERATION else [tf.function]


def in_session(build: Callable[[], Any], **feeds: Any) -> Any:
    config = v1.ConfigProto(inter_op_parallelism_threads=2, use_per_session_threads=True)
    with tf.Graph().as_default() as graph, v1.Session(config=config) as session:
        fetched = build()
        return session.run(fetched, {graph.get_tensor_by_name(f"{name}:0"): x for name, x in feeds.items()})


def rotated(name: str, count: int, build: Callable[[int], Any]) -> list[Any]:
    """Allreduces of what `build` makes of numbers, begun in another order on each rank."""
    numbers = [*range(count)]
    works = {i: reduced(build(i), f"{name}.{i}") for i in (numbers if basics.rank() == 0 else numbers[::-1])}
    return [works[i] for i in numbers]


SUM = sum(range(1, 1 + int(sys.argv[1])))


@check
def element_types() -> None:
    for function, dtype in itertools.product(FUNCTIONS, DTYPES):
        x = tf.cast(tf.constant([[1, 2, 3], [4, 5, 6]]) * (basics.rank() + 1), dtype)
        y = function(lambda x: reduced(x, "types"))(x)
        assert y.dtype == dtype and y.shape == (2, 3)
        assert np.array_equal(y.numpy(), (SUM * np.array([[1, 2, 3], [4, 5, 6]])).astype(dtype.as_numpy_dtype))
    yes = tf.constant([True, basics.rank() == 0])
    for function in FUNCTIONS:
        assert function(lambda x: reduced(x, "bool", "land"))(yes).numpy().tolist() == [True, False]
    raises(TypeError, "string", lambda: tf.function(lambda: reduced(tf.constant(["a"]), "text"))())


@check
def shapes() -> None:
    for function, shape in itertools.product(FUNCTIONS, ((), (0,), (3, 0, 2), (1,), (5, 1, 2))):
        y = function(lambda x: reduced(x, "shapes"))(tf.ones(shape))
        assert np.array_equal(y.numpy(), np.full(shape, basics.size(), np.float32))


@check
def unknown_shapes() -> None:
    for spec in (tf.TensorSpec(None, tf.float32), tf.TensorSpec([None, 2], tf.float32)):
        step = tf.function(lambda x: reduced(x, "unknown"), input_signature=[spec])
        assert step(tf.ones([4, 2])).numpy().sum() == 8 * basics.size()
        assert step(tf.ones([0, 2])).shape == (0, 2)
        assert str(step.get_concrete_function().output_shapes) == str(spec.shape)


@check
def several_operands_and_results() -> None:
    def start(call: GraphCall) -> None:
        a, b = call.inputs
        call.output(1, (2,))[...] = [a.sum(), b.sum()]
        call.output(0, a.shape)[...] = a + 1
        call.done(None)

    def build(a: Any, b: Any) -> Any:
        return graph_calls.call(start, [a, b], [tf.int32, tf.float32], [a.shape, tf.TensorShape([2])], name="two/of.it")

    first, second = tf.function(build)(tf.constant([[1, 2]]), tf.constant([0.5, 1.0, 2.0]))
    assert first.numpy().tolist() == [[2, 3]] and second.numpy().tolist() == [3.0, 3.5]


@check
def without_operands_or_results() -> None:
    def start(call: GraphCall) -> None:
        call.output(0, ())[...] = 7
        call.done(None)

    shape = tf.TensorShape([])
    assert tf.function(lambda: graph_calls.call(start, [], [tf.int64], [shape], name="-?"))()[0].numpy() == 7
    raises(ValueError, "results", lambda: tf.function(lambda: graph_calls.call(start, [], [], [], name="none"))())


@check
def eagerly() -> None:
    y = reduced(tf.constant([1.0, 2.0]), "eager")
    assert y.numpy().tolist() == [basics.size(), 2.0 * basics.size()]


@check
def in_order_in_a_function() -> None:
    order: list[int] = []

    @tf.function
    def step() -> Any:
        for number in range(20):
            noted(order, number, tf.constant(0.0))
        return tf.constant(0)

    step()
    step()
    assert order == [*range(20), *range(20)]


@check
def in_loops_and_branches() -> None:
    def step(x: Any) -> Any:
        for _ in tf.range(3):
            x = reduced(x, "loop") if tf.reduce_sum(x) > 0 else x - 1
        return reduced(x, "after") + reduced(x, "after.2")

    for function in FUNCTIONS:
        assert function(step)(tf.constant([1.0])).numpy().tolist() == [2 * float(basics.size()) ** 4]


@check
def errors_of_a_start() -> None:
    invalid, unknown = tf.errors.InvalidArgumentError, tf.errors.UnknownError
    for error, kind in ((ValueError("bad"), invalid), (TypeError("bad"), invalid), (RuntimeError("bad"), unknown)):

        def raising(call: GraphCall, error: Exception = error) -> None:
            raise error

        def done(call: GraphCall, error: Exception = error) -> None:
            call.done(error)

        for start in (raising, done):
            caught = raises(kind, "bad", tf.function(lambda start=start: scalar(start)))
            assert graph_calls.internal_error(caught) is None
            raises(kind, "bad", lambda start=start: in_session(lambda: scalar(start)))


@check
def ranks_that_do_not_match() -> None:
    kind = tf.errors.UnknownError if graph_calls.why_not() else tf.errors.FailedPreconditionError
    x = tf.ones([2 + basics.rank()])
    raises(kind, "differ", tf.function(lambda: reduced(x, "differ")))
    raises(kind, "differ", lambda: in_session(lambda: reduced(tf.ones([2 + basics.rank()]), "differ")))
    assert tf.function(lambda: reduced(tf.ones([]), "differ"))().numpy() == basics.size()


@check
def a_v1_graph() -> None:
    def build() -> Any:
        return reduced(v1.placeholder(tf.float32, [2], "x"), "v1")

    assert in_session(build, x=[1, 2]).tolist() == [basics.size(), 2 * basics.size()]


@check
def on_a_device_without_the_operation() -> None:
    def build() -> Any:
        with tf.device("GPU:0"):
            return reduced(tf.constant(1.0), "placed")

    assert tf.function(build)().device.endswith("CPU:0")


@needs_operation
def many_in_any_order() -> None:
    def many(x: Any) -> Any:
        return rotated("many", MANY, lambda i: x + float(i))

    compiled = jitted(many)
    for _ in range(3):
        for found in (in_session(lambda: many(tf.zeros([3]))), compiled(tf.zeros([3]))):
            assert [np.asarray(x).tolist() for x in found] == [[float(i * basics.size())] * 3 for i in range(MANY)]


@needs_operation
def calls_are_neither_merged_nor_folded() -> None:
    numbers = itertools.count()

    def start(call: GraphCall) -> None:
        allreduce(f"same.{next(numbers)}")(call)

    x = np.ones(4, np.float32)

    @tf.function
    def inner() -> Any:
        return graph_calls.call(start, [tf.constant(x)], [tf.float32], [tf.TensorShape([4])], name="s")

    @tf.function
    def outer() -> Any:  # the same operation twice: inlined, with equal attributes and inputs
        (first,) = inner()
        (second,) = inner()
        return first + second

    before = starts
    for runs in range(1, 4):
        assert outer().numpy().tolist() == [2 * basics.size()] * 4
        assert starts - before == 2 * runs, (starts, before, runs)

    before = starts
    with tf.Graph().as_default(), v1.Session() as session:
        first = reduced(tf.constant(x), "folded.1")
        with tf.control_dependencies([first]):
            second = reduced(tf.constant(x), "folded.2")
        for runs in range(1, 4):
            session.run([first, second])
            assert starts - before == 2 * runs


@needs_operation
def unused_calls_run() -> None:
    def step() -> Any:
        reduced(tf.constant(1.0), "unused.1")
        reduced(tf.constant(1.0), "unused.2")
        return tf.constant(0)

    for function in FUNCTIONS:
        before, made = starts, function(step)
        made()
        made()
        assert starts == before + 4


@needs_operation
def calls_that_break_the_rules() -> None:
    kept: list[GraphCall] = []

    def dropped(call: GraphCall) -> None:
        """Neither completes nor keeps it."""

    def twice(call: GraphCall) -> None:
        call.output(0, ())[...] = 1
        kept.append(call)
        call.done(None)

    def nothing(call: GraphCall) -> None:
        call.done(None)

    def indices(call: GraphCall) -> None:
        for index, shape in ((1, ()), (-1, ()), (0, (-1,)), (0, (1 << 40, 1 << 40))):
            raises(ValueError, "", lambda index=index, shape=shape: call.output(index, shape))
        call.output(0, ())[...] = 3
        call.done(None)

    raises(tf.errors.InternalError, "dropped", lambda: tf.function(scalar)(dropped))
    assert tf.function(scalar)(twice).numpy() == 1
    raises(ValueError, "completed before", lambda: kept[0].done(None))
    raises(ValueError, "completed", lambda: kept[0].output(0, ()))
    raises(tf.errors.InternalError, "", lambda: tf.function(scalar)(nothing))
    assert tf.function(scalar)(indices).numpy() == 3


@needs_operation
def graphs_of_another_process() -> None:
    with tf.Graph().as_default() as graph:
        reduced(tf.ones([]), "elsewhere")
    definition = graph.as_graph_def()
    for node in definition.node:
        if node.op == "PycollectiveCall":
            node.attr["key"].i += 1 << 61
    fetched = f"{next(node.name for node in definition.node if node.op == 'PycollectiveCall')}:0"
    with tf.Graph().as_default(), v1.Session() as session:
        tf.import_graph_def(definition, name="")
        raises(tf.errors.InvalidArgumentError, "another process", lambda: session.run(fetched))


@needs_operation
def calls_of_a_compiled_function_that_depend_on_others_in_any_order() -> None:
    n, variable = basics.size(), tf.Variable(1.0)

    @jitted
    def step(x: Any) -> Any:
        first = rotated("first", 9, lambda i: reduced(x + float(i), f"inner.{i}"))
        variable.assign(reduced(variable, "variable"))  # what reads it comes later by a control dependency
        second = rotated("second", 9, lambda i: variable + float(i))
        with tf.control_dependencies([second[0]]):
            third = rotated("third", 9, lambda i: x + float(i))
        branch = x
        if x < 1:
            branch = reduced(x + 1, "branch")
        return [first, second, third, rotated("fourth", 9, lambda i: x + float(i)), [branch]]

    numbers = np.arange(9.0)
    for turn in (1, 2):
        first, second, third, fourth, branch = map(np.array, step(tf.constant(0.0)))
        assert variable.numpy() == float(n) ** turn
        assert np.array_equal(first, n * n * numbers) and np.array_equal(second, n * (variable.numpy() + numbers))
        assert np.array_equal(third, n * numbers) and np.array_equal(fourth, n * numbers) and branch == [n]


@needs_operation
def loops_of_a_compiled_function_run_between_the_calls_before_and_behind() -> None:
    order: list[str] = []

    @jitted
    def step(x: Any) -> Any:
        before = [noted(order, "before", x) for _ in range(3)]
        y = x
        for _ in tf.range(2):
            y = noted(order, "loop", y)
            if y > 0:
                y = noted(order, "branch", y)
        return [*before, y, *(noted(order, "behind", x) for _ in range(3))]

    step(tf.constant(1.0))
    assert order == ["before"] * 3 + ["loop", "branch"] * 2 + ["behind"] * 3, order


@needs_operation
def errors_in_a_compiled_function() -> None:
    def failing(call: GraphCall) -> None:
        call.done(HorovodInternalError("rank 7 is gone"))

    def other_shape(call: GraphCall) -> None:
        call.output(0, (3,))

    caught = raises(tf.errors.OpError, "rank 7", lambda: jitted(scalar)(failing))
    assert str(graph_calls.internal_error(caught)) == "rank 7 is gone"
    raises(tf.errors.OpError, "shape (3,)", lambda: jitted(scalar)(other_shape))
    x = tf.ones([2 + basics.rank()])
    raises(tf.errors.OpError, "MismatchError", lambda: jitted(lambda: reduced(x, "differ"))())
    assert jitted(lambda: reduced(tf.ones([]), "differ"))().numpy() == basics.size()


@check
def unknown_shapes_in_a_compiled_function() -> None:
    step = tf.function(
        lambda x: reduced(x, "unknown"), jit_compile=True, input_signature=[tf.TensorSpec([None], tf.float32)]
    )
    kind = tf.errors.UnimplementedError if graph_calls.why_not() else tf.errors.InvalidArgumentError
    raises(kind, "jit_compile", lambda: step(tf.ones([4])))


def outcomes() -> dict[str, str]:
    basics.init()
    why = graph_calls.why_not()
    found = {"why_not": "" if bool(why) != WITH_OPERATION else f"why_not() is {why!r}"}
    found |= check.outcomes() | (needs_operation.outcomes() if WITH_OPERATION else {})
    handles.shutdown()
    return found
