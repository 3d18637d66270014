"""Calls from TensorFlow's graphs, by our operation and by numpy_function; lost ranks, and processes that end."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from launch import launch

if importlib.util.find_spec("tensorflow") is None:  # importing it takes 5 s; the ranks do
    pytest.skip("needs TensorFlow", allow_module_level=True)

STEPS = Path(__file__).with_name("graph_call_steps.py")
FALLBACK = {"PYCOLLECTIVE_TENSORFLOW_OP": "0"}


@pytest.mark.parametrize(("n", "way"), [(3, "operation"), (2, "fallback")])
def test_calls(n: int, way: str) -> None:
    done = launch(n, STEPS, n, way, timeout=200, env=FALLBACK if way == "fallback" else {}, check=True)
    for output in done:
        found = json.loads(output.splitlines()[-1])
        assert len(found) > 14
        assert not any(found.values()), "\n".join(filter(None, found.values()))


def test_a_graph_of_which_an_operation_is_pending_when_a_rank_is_killed() -> None:
    done = launch(2, _killed, STEPS.parent, timeout=120, grace=30)
    assert done[0].splitlines() == ["True rank 1 is gone"] * 4, done.report()


def _killed(folder: str) -> None:
    import os
    import signal
    import sys
    import threading
    import time

    sys.path.insert(0, folder)
    sys.argv[1:] = ["2"]
    import graph_call_steps as steps
    import tensorflow as tf

    from pycollective.hvd import basics
    from pycollective.tensorflow import graph_calls

    basics.init()
    rank = basics.rank()
    found = []

    def attempt(body):
        try:
            body()
        except tf.errors.OpError as error:
            lost = graph_calls.internal_error(error)
            found.append(f"{lost is not None} {str(lost)[:14]}")

    def reduced(name):
        return lambda: steps.reduced(tf.ones([4]), name)

    steps.jitted(reduced("first"))()  # the self-tests are over
    bodies = [
        tf.function(reduced("function")),
        tf.function(reduced("other"), autograph=False),
        steps.jitted(reduced("compiled")),
        lambda: steps.in_session(reduced("session")),
    ]
    if rank == 1:
        time.sleep(3)
        os.kill(os.getpid(), signal.SIGKILL)
    threads = [threading.Thread(target=attempt, args=[body]) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("\n".join(found))


@pytest.mark.parametrize("way", ["operation", "fallback"])
def test_python_ends_while_operations_are_pending(way: str) -> None:
    done = launch(2, _left, STEPS.parent, timeout=120, env=FALLBACK if way == "fallback" else {})
    assert done.returncode == 0 and [output.split() for output in done] == [["left"]] * 2, done.report()


def _left(folder: str) -> None:
    import sys
    import threading
    import time

    sys.path.insert(0, folder)
    sys.argv[1:] = ["2"]
    import graph_call_steps as steps
    import tensorflow as tf

    from pycollective.hvd import basics
    from pycollective.tensorflow import graph_calls

    basics.init()

    def repeat(function):
        while True:
            function()

    def silent(*_):
        """Threads that print when Python ends abort the process."""

    threading.excepthook = silent
    tf.function(lambda: steps.reduced(tf.ones([]), "first"))()
    bodies = [tf.function(lambda: steps.reduced(tf.ones([4]), "function"))]
    if not graph_calls.why_not():
        bodies.append(steps.jitted(lambda: steps.reduced(tf.ones([4]), "compiled")))
    for body in bodies:
        body()
    for body in bodies:
        threading.Thread(target=repeat, args=[body], daemon=True).start()
    if basics.rank() == 0:  # no other rank starts it
        function = tf.function(lambda: steps.reduced(tf.ones([4]), "pending"))
        threading.Thread(target=function, daemon=True).start()
    time.sleep(1)
    print("left", flush=True)
