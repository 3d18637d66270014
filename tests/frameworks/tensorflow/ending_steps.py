"""How a job ends: a rank is killed, or Python ends while operations are pending. Run last by run_steps.py."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import graph_call_steps as steps
import tensorflow as tf

import pycollective.tensorflow as hvd
from pycollective.hvd.graph_call import GraphCall
from pycollective.tensorflow import graph_calls

_condemned = False
"""Whether this rank is killed; ranks have other numbers after a loss."""


def _die(step: int) -> int:
    if _condemned and step == 3:
        time.sleep(2)  # until the others wait
        os.kill(os.getpid(), signal.SIGKILL)
    return step


@tf.function
def _reduced(step: tf.Tensor) -> tf.Tensor:
    step = tf.ensure_shape(tf.numpy_function(_die, [step], tf.int64), [])
    return hvd.allreduce(tf.ones([4]) + 0 * tf.cast(step, tf.float32), name="step")


@tf.function
def _loop(steps: tf.Tensor) -> tf.Tensor:
    total = tf.zeros([4])
    for step in tf.range(steps):
        total += _reduced(step)
    return total


def _pending(name: str) -> Callable[[], Any]:
    return lambda: steps.reduced(tf.ones([4]), name)


def killed() -> dict[str, list[str]]:
    """Rank 1 is killed in the loop of a tf.function; the others have operations in other graphs too."""
    global _condemned
    hvd.init()
    _condemned = hvd.rank() == 1
    found: dict[str, list[str]] = {}

    def attempt(name: str, body: Callable[[], Any]) -> None:
        try:
            body()
            found[name] = ["no error"]
        except Exception as error:
            found[name] = [type(error).__name__, str(graph_calls.internal_error(error)), str(error)]

    steps.jitted(_pending("first"))()  # the self-tests are over
    bodies = {
        "function": tf.function(_pending("function")),
        "compiled": steps.jitted(_pending("compiled")),
        "session": lambda: steps.in_session(_pending("session")),
    }
    threads = [threading.Thread(target=attempt, args=item) for item in bodies.items() if not _condemned]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    attempt("loop", lambda: _loop(tf.constant(100, tf.int64)))
    for thread in threads:
        thread.join()
    return found | {"seconds": [str(time.monotonic() - began)]}


def elastic() -> str:
    """The step of a tf.function that lost a rank is repeated from the last commit by the ranks that remain."""
    global _condemned
    hvd.init()
    _condemned = hvd.rank() == 1

    def train(state: hvd.elastic.TensorFlowState) -> None:
        while state.step < 6:
            state.variables[0].assign_add(_reduced(tf.constant(state.step))[0])
            state.step += 1
            if state.step % 2 == 0:
                state.commit()

    state = hvd.elastic.TensorFlowState([tf.Variable(0.0)], step=tf.constant(0, tf.int64).numpy())
    hvd.elastic.run(train)(state)
    return f"ranks {hvd.size()} step {state.step} value {state.variables[0].numpy()}"


def _slow(call: GraphCall) -> None:
    """An operation that is still in Python when Python ends, and then requests the GIL once more."""
    for _ in range(200):
        time.sleep(0.001)
    call.output(0, (1,))[:] = 0
    call.done(None)


def left() -> str:
    """Returns, so that Python ends, while threads repeat operations and one waits for a rank that never submits it."""
    hvd.init()

    def repeat(function: Callable[[], Any]) -> None:
        while True:
            function()

    def silent(*_: Any) -> None:
        """Threads that print when Python ends abort the process."""

    threading.excepthook = silent
    tf.function(_pending("first"))()
    bodies = [tf.function(_pending("function"))]
    if not graph_calls.why_not():
        bodies.append(steps.jitted(_pending("compiled")))
        slow = tf.function(lambda: graph_calls.call(_slow, [], [tf.float32], [tf.TensorShape([1])], name="slow"))
        bodies.append(slow)
    for body in bodies:
        body()
    for body in bodies:
        threading.Thread(target=repeat, args=[body], daemon=True).start()
    if hvd.rank() == 0:  # no other rank starts it
        threading.Thread(target=tf.function(_pending("pending")), daemon=True).start()
    time.sleep(1)
    return "left"
