"""Random programs in which threads, finalizers and first calls come in any order: right results, and no hang."""

from __future__ import annotations

import gc
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from engine.operations import SECONDS
from processes import IMPORTABLE
from seeds import choices, seeds

import pycollective
from pycollective import Communicator, local_world
from pycollective.engine import Engine, Item, Settings, engine

pytestmark = pytest.mark.fuzz


@pytest.mark.parametrize("seed", seeds(6))
def test_threads_that_submit_with_few_slots(seed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names take the slots of others all the time; each thread has names of its own, and the ranks' threads race."""
    choice = choices(seed)
    ranks, threads, flying = choice.randint(2, 3), choice.randint(2, 4), choice.randint(1, 4)
    slots = threads * flying + choice.choice((1, 2, 20))
    monkeypatch.setattr(engine, "LEAST_SLOTS", slots)
    settings = Settings(cache_capacity=1, cycle_time=choice.choice((0.0, 1e-3)))
    hosts = choice.choice(((), tuple(rank % 2 for rank in range(ranks))))

    def body(comm: Communicator) -> None:
        made = Engine(comm, settings)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda number: submit_and_check(made, seed, number, flying), range(threads)))
        made.close()

    local_world(ranks, hosts=hosts).run(body)


def submit_and_check(made: Engine, seed: str, thread: int, flying: int) -> None:
    """Random operations, at most `flying` at a time."""
    choice = choices(seed, thread)
    pending: deque[tuple[Any, float, int]] = deque()
    for turn in range(150):
        name, count = f"thread {thread} {choice.randrange(50)} {turn % flying}", choice.choice((1, 100, 3000))
        x = np.full(count, float(made.rank + turn))
        expected = float(sum(rank + turn for rank in range(made.size)))
        if len(pending) == flying:
            check(*pending.popleft())
        pending.append((made.submit([Item("allreduce", name, x)])[0], expected, count))
    for each in pending:
        check(*each)


def check(work: Any, expected: float, count: int) -> None:
    got = work.wait(SECONDS)
    assert got.tolist() == [expected] * count, (work.name, got, expected)


class Memory(bytearray):
    """Memory of an array: the thread that is the last to release it calls `end`."""

    end: Callable[[], None]

    def __del__(self) -> None:
        self.end()


ENDS: dict[str, Callable[[Communicator], Callable[[], object]]] = {
    "free": lambda comm: comm.dup().free,
    "free a group": lambda comm: comm.split(0).free,
    "close an engine": lambda comm: Engine(comm).close,
    "drop a window": lambda comm: [comm.empty(1000)].clear,
    "drop a handle": lambda comm: [comm.iallreduce(np.ones(10))].clear,
    "wait for a handle": lambda comm: comm.iallreduce(np.ones(10)).wait,
    "wait for a work": lambda comm: Engine(comm).submit([Item("allreduce", "x", np.ones(3))])[0].wait,
    "collect": lambda comm: gc.collect,
}


@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_finalizers_that_call(seed: str) -> None:
    """On whatever thread, inside whatever call: they work or raise an error of ours, and later calls are right."""
    wrong: list[object] = []

    def body(comm: Communicator) -> None:
        choice = choices(seed)  # the same on all ranks
        made = Engine(comm)
        for turn in range(25):
            name, place = choice.choice(sorted(ENDS)), choice.choice(("call", "job", "engine", "callback", "cycle"))
            end = ENDS[name](comm)

            def finish(end: Callable[[], object] = end, what: tuple[str, str] = (name, place)) -> None:
                try:
                    end()
                except pycollective.Error:
                    pass
                except BaseException as error:
                    wrong.append((what, error))

            memory = Memory(80)
            memory.end = finish
            x = np.frombuffer(memory)
            x[...] = 1
            release(comm, made, place, x, turn)
            del x, memory
            assert comm.allreduce(np.ones(3)).tolist() == [comm.size] * 3
            assert made.run([Item("allreduce", "after", np.ones(3))])[0].tolist() == [comm.size] * 3
        made.close()

    local_world(2).run(body)
    assert not wrong, wrong


def release(comm: Communicator, made: Engine, place: str, x: Any, turn: int) -> None:
    """Give an array to a call of a kind, which may be the last to hold it."""
    if place == "call":
        comm.allreduce(x)
    elif place == "job":
        handle = comm.iallreduce(x)
        del x
        assert handle.result().tolist() == [comm.size] * 10
    elif place == "engine":
        work = made.submit([Item("allreduce", f"{turn}", x)])[0]
        del x
        work.wait(SECONDS)
    elif place == "callback":
        work = made.submit([Item("allreduce", f"{turn}", np.ones(3))])[0]
        work.when_done(lambda x=x: None)
        del x
        work.wait(SECONDS)
    else:
        cycle: list[Any] = [x]
        cycle.append(cycle)


FIRST = [
    "import numpy.random",
    "import pycollective.optim",
    "import pycollective.schedule",
    "pc.local_world(2).run(lambda comm: comm.allreduce(np.ones(3)))",
    "pc.local_world(2).run(lambda comm: comm.iallreduce(np.ones(3)).result())",
    "pc.local_world(2).run(lambda comm: comm.allgather_object(comm.rank))",
    "pc.local_world(2).run(lambda c: c.isend(np.ones(3), 1 - c.rank).wait() or c.recv(np.ones(3), 1 - c.rank))",
    "pc.local_world(2, hosts=(0, 1)).run(lambda comm: comm.allreduce([1, 2]))",
    "pc.local_world(2).run(lambda comm: comm.empty((2, 3), 'float32').sum())",
    "import pycollective.schedule; pc.schedule.verify_topology('ring', (2, 3))",
    "import pycollective.schedule; pc.schedule.simulate('tree', 'broadcast', 4, 1000)",
    "from pycollective.engine import Engine; pc.local_world(2).run(lambda comm: Engine(comm).close())",
    "pc.op(lambda a, b: a if a > b else b)",
    "pc.local_world(2).run(lambda comm: comm.explain('allreduce', 100))",
]  # fmt: skip
# Not a package in one thread and a part of it in another: Python's import locks do not allow for that.
WITH_TORCH = [
    "import torch",
    "import pycollective.torch",
    "import torch; pc.local_world(2).run(lambda comm: comm.allreduce(torch.ones(3)))",
]
SCRIPT = """
import json, sys, threading
import numpy as np, pycollective as pc
wrong, start = [], threading.Barrier(len(sys.argv) - 1)
def run(text):
    start.wait()
    try: exec(text, {"np": np, "pc": pc})
    except BaseException as error: wrong.append(f"{text}: {type(error).__name__}: {error}")
threads = [threading.Thread(target=run, args=(text,)) for text in sys.argv[1:]]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(wrong))
"""


@pytest.mark.parametrize("seed", seeds(3))
def test_first_calls_of_several_threads(seed: str) -> None:
    choice = choices(seed)
    possible = FIRST + WITH_TORCH * choice.randrange(2) if importlib.util.find_spec("torch") else FIRST
    texts = [choice.choice(possible) for _ in range(choice.randint(2, 5))]
    with tempfile.TemporaryDirectory() as elsewhere:  # not the source tree
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, *texts], cwd=elsewhere, capture_output=True, text=True, timeout=120,
            env={**IMPORTABLE, "PYCOLLECTIVE_TIMEOUT": "20"},
        )  # fmt: skip
    assert done.returncode == 0, f"{texts}\n{done.stderr}"
    assert json.loads(done.stdout) == [], texts
