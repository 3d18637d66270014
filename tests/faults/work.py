"""The work of ranks while one of them is killed or stopped, and what they report.

A workload is a function `step(turn)` that all ranks call repeatedly; the random choices are the same on all.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from calls import call
from fuzz.sequences import PATHS

from pycollective import Communicator

DEADLINE = 2.5
"""Seconds that calls wait for their peers."""
SIZES = (1, 100, 5000, 70_000, 500_000)
Step = Callable[[int], None]


@dataclass
class Raised:
    """What a rank's call raised.

    Attributes:
        kinds: the names of the error's classes.
        text: its message. at: time.monotonic() when it was raised.
        again: seconds that the next call took to raise; negative: it did not.
    """

    kinds: tuple[str, ...]
    text: str
    at: float
    again: float


@dataclass
class Result:
    """What a trial found. `seconds`: from the fault until each survivor raised. `problems`: deviations."""

    trial: Any
    seconds: dict[int, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def tell(results: Iterable[Result], limits: dict[str, float]) -> list[Result]:
    """Print each result, and for each kind of fault how many survivors have raised within its limit."""
    told = []
    for result in results:
        told.append(result)
        worst = max(result.seconds.values(), default=0)
        print(f"{result.trial}: {worst:.2f} s{''.join(f'{chr(10)}  {text}' for text in result.problems)}", flush=True)
    for fault, limit in limits.items():
        seconds = [each for result in told if result.trial.fault == fault for each in result.seconds.values()]
        soon = sum(each <= limit for each in seconds)
        print(f"{fault}: {len(seconds)} survivors, {soon} within {limit:g} s, worst {max(seconds, default=0):.2f} s")
    return told


def endure(link: Any, step: Step, survive: Callable[[], object]) -> None:
    """Works until that raises, reports it, and when asked to continue does what survivors do."""
    raised: Raised | None = None
    for turn in itertools.count():
        try:
            step(turn)
        except Exception as error:
            at = time.monotonic()
            kinds = tuple(kind.__name__ for kind in type(error).__mro__)
            raised = Raised(kinds, str(error), at, _again(step, turn + 1))
            break
        if turn == 2:
            link.send("busy")
    link.send(raised and astuple(raised))  # ranks load this file under another name
    if link.recv() == "survive":
        survive()
        link.send("survived")


def _again(step: Step, turn: int) -> float:
    started = time.monotonic()
    try:
        step(turn)
    except Exception:
        return time.monotonic() - started
    return -1.0


def of_communicator(comm: Communicator, link: Connection, kind: str, seed: int) -> None:
    """Calls of a communicator: blocking, several at a time, or messages. Survivors shrink it and continue."""
    endure(link, step_of(comm, kind, seed), lambda: work_on(comm.shrink(0.7)))


def step_of(comm: Communicator, kind: str, seed: int) -> Step:
    """The workload of a kind."""
    random.seed(seed)
    steps = {"collective": _collectives, "nonblocking": _nonblocking, "messages": _messages, "engine": _engine}
    return {**steps, "staged": _staged, "groups": _groups}[kind](comm, random.Random(seed))


def work_on(fresh: Communicator) -> None:
    """Calls of survivors."""
    for turn in range(100):
        x = np.full(1 + 400 * turn, fresh.rank + turn)
        total = sum(rank + turn for rank in range(fresh.size))
        assert (fresh.allreduce(x, topology="ring" if turn % 2 else "direct") == total).all()
        time.sleep(0.002)


def _collectives(comm: Communicator, choice: random.Random) -> Step:
    windows = [comm.empty(SIZES[-1], np.float32) for _ in range(2)]
    plain = [np.empty(SIZES[-1], np.float32) for _ in range(2)]

    def step(turn: int) -> None:
        name, topology = choice.choice(PATHS)
        count, place, root = choice.choice(SIZES), choice.choice((windows, plain)), choice.randrange(comm.size)
        x = place[0][:count]
        x[:] = comm.rank + turn
        out = place[1][:count] if name in ("allreduce", "broadcast") else None
        _check(name, call(comm, name, x, root, out, topology=topology), comm.size, turn, root)

    return step


def _check(name: str, got: Any, size: int, turn: int, root: int) -> None:
    if name in ("allreduce", "reduce_scatter") and len(got):
        assert got[0] == got[-1] == sum(rank + turn for rank in range(size)), (name, got, turn)
    elif name == "broadcast":
        assert got[0] == got[-1] == root + turn, (name, got, turn)
    elif name == "allgather":
        assert [got[0], got[-1]] == [turn, size - 1 + turn], (name, got, turn)


def _nonblocking(comm: Communicator, choice: random.Random) -> Step:
    def step(turn: int) -> None:
        handles = []
        for _ in range(choice.randrange(1, 6)):
            (name, topology), root = choice.choice(PATHS), choice.randrange(comm.size)
            x = np.full(choice.choice(SIZES[:-1]), comm.rank + turn, np.float32)
            handles.append((name, root, call(comm, f"i{name}", x, root, topology=topology)))
        for name, root, handle in handles:
            _check(name, handle.result(), comm.size, turn, root)

    return step


def _messages(comm: Communicator, choice: random.Random) -> Step:
    def step(turn: int) -> None:
        count = choice.choice(SIZES)
        to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        sent = comm.isend(np.full(count, float(comm.rank + turn)), to)
        assert comm.recv(np.empty(count), source)[-1] == source + turn
        sent.wait()

    return step


def _groups(comm: Communicator, choice: random.Random) -> Step:
    """Communicators and engines are made and freed, among calls."""
    from pycollective.engine import Engine

    def step(turn: int) -> None:
        what = choice.randrange(4)
        if what == 0:
            parity = comm.split(comm.rank % 2)
            assert parity is not None and parity.allreduce(np.ones(3))[0] == parity.size
            parity.free()
        elif what == 1:
            comm.dup().free()
        elif what == 2:
            Engine(comm).close()
        else:
            assert comm.allreduce(np.full(choice.choice(SIZES), 1.0))[-1] == comm.size

    return step


def _staged(comm: Communicator, choice: random.Random) -> Step:
    """On arrays of the emulated GPU."""
    from gpu import emulation
    from gpu.device import get, put

    os.environ["PYCOLLECTIVE_CUDA_HOSTS"] = "staged"
    emulation.install()

    def step(turn: int) -> None:
        (name, topology), root = choice.choice(PATHS), choice.randrange(comm.size)
        x = put(np.full(choice.choice(SIZES), comm.rank + turn, np.float32))
        got = call(comm, name, x, root, topology=topology)
        _check(name, got if got is None else get(got), comm.size, turn, root)

    return step


def _engine(comm: Communicator, choice: random.Random) -> Step:
    from pycollective.engine import Engine, Item

    engine = Engine(comm)
    mine = random.Random(comm.rank)

    def step(turn: int) -> None:
        items = []
        for number in range(choice.randrange(1, 12)):
            x = np.full(choice.choice(SIZES[:-1]), float(comm.rank + turn))
            kind = choice.choice(("allreduce", "allreduce", "allgather", "broadcast", "barrier"))
            name = f"{kind} {number}"
            items.append(Item(kind, name, None if kind == "barrier" else x, root=0 if kind == "broadcast" else -1))
        mine.shuffle(items)
        if choice.random() < 0.2:
            engine.join()
        works = [work for item in items for work in engine.submit([item])]
        for item, work in zip(items, works, strict=True):
            got = work.wait()
            if item.collective == "allreduce":
                assert got[0] == got[-1] == sum(rank + turn for rank in range(comm.size))

    return step


def of_hvd(hvd: Any, seed: int) -> None:
    """Calls of a training script."""
    import torch

    choice, mine = random.Random(seed), random.Random(hvd.rank())

    def step(turn: int) -> None:
        count = choice.choice(SIZES[:-1])
        tensors = {f"{i}": torch.full((count,), float(hvd.rank() + turn)) for i in range(choice.randrange(1, 8))}
        names = [*tensors]
        mine.shuffle(names)
        handles = [hvd.allreduce_async_(tensors[name], name=name, op=hvd.Sum) for name in names]
        total = sum(rank + turn for rank in range(hvd.size()))
        assert all(hvd.synchronize(handle)[-1] == total for handle in handles)
        other = choice.randrange(5)
        if other == 0:
            hvd.join()
        elif other == 1:
            hvd.barrier()
        elif other == 2:
            hvd.allgather(torch.ones(hvd.rank() + 1))
        else:
            hvd.broadcast_(torch.ones(count), 0)

    endure(hvd.link, step, hvd.shutdown)


def of_c10d(world: Any, seed: int) -> None:
    """Calls of torch.distributed's users."""
    import torch.distributed as dist

    endure(world.link, c10d_step(world.rank, world.size, random.Random(seed)), dist.destroy_process_group)


def c10d_step(rank: int, size: int, choice: random.Random) -> Step:
    """Calls of torch's default process group."""
    import torch
    import torch.distributed as dist

    unfinished: list[torch.Tensor] = []  # of a turn that raised: a late message does not end the group

    def step(turn: int) -> None:
        if not unfinished:
            count, what = choice.choice(SIZES[:-1]), choice.randrange(6)
            unfinished.append(torch.full((count,), float(rank + turn)))
            other_call(unfinished[0], what)
        x = unfinished[0]
        dist.all_reduce(x.fill_(rank + turn))
        assert x[-1] == sum(one + turn for one in range(size))
        unfinished.clear()

    def other_call(x: torch.Tensor, what: int) -> None:
        if what == 0:
            works = [dist.all_reduce(x.clone(), async_op=True) for _ in range(3)]
            for work in works:
                work.wait()
        elif what == 1:
            dist.all_to_all_single(torch.empty(size), torch.ones(size))
        elif what == 2:
            dist.all_gather([torch.empty_like(x) for _ in range(size)], x)
        elif what == 3:
            dist.broadcast(x, choice.randrange(size))
        elif what == 4:
            sent = dist.isend(x, (rank + 1) % size)
            dist.recv(torch.empty_like(x), (rank - 1) % size)
            sent.wait()

    return step
