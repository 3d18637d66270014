"""Makes random calls to everything in `pycollective._core`: python -m fuzz.random_private_calls SEED BLOCKS NOTE FIRST

Each block of calls has a separate world: communicators of one rank and of two ranks that are threads, their windows, an
engine. Every call is written to the file NOTE before it is made, so that the parent process can report the one that
ended this process.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz.random_arguments import Arguments, parameters
from fuzz.random_driver import Note, make_blocks
from pycollective import _core
from pycollective.comm.planner import Planner
from pycollective.engine.operation import Item
from pycollective.schedule.collectives import NUMBERS

CALLS = 25
"""Calls of a block."""
SCRATCH = 1 << 16
PART = 1 << 14
MEMORY = 4 << 30

UNCHECKED = frozenset({"Team.__init__"})
"""Reviewed: functions that take an address, which cannot be validated. Their docstrings contain "unchecked", and here
they get only valid addresses."""

PROTOCOLS: dict[str, Callable[[Any], Any]] = {
    "memoryview": lambda x: bytes(memoryview(x)[:64]), "copy": copy.copy, "pickle": pickle.dumps, "repr": repr,
    "hash": hash, "equal": lambda x: x == x, "length": len, "array": np.asarray, "buffer": _core.HostBuffer,
}  # fmt: skip


class World:
    """Valid objects of every class, for a block of calls."""

    def __init__(self, size: int) -> None:
        segment = _core.Segment.create("local", _core.Team.segment_bytes(size, SCRATCH))
        planners = [Planner(rank, size) for rank in range(size)]
        self.teams = [
            _core.Team(segment, rank, size, SCRATCH, list(range(size)), "world", True, planners[rank])
            for rank in range(size)
        ]
        memory = _core.Segment.create("local", PART * size)
        windows = [team.window(memory, 0, PART, PART) for team in self.teams]
        arrays = [window.array(np.dtype(dtype), [1024]) for window in windows for dtype in ("float32", "uint8")]
        arrays += [np.ones(4), np.ones(4, np.float32), np.ones((2, 2), np.int32), np.zeros(3000, np.uint8)]
        boards = _core.Segment.create("local", _core.Board.segment_bytes(size, 8))
        board = _core.Board(boards, 0, size, 8)
        board.prepare()
        buffer = windows[0].array(np.dtype(np.uint8), [PART])
        engine = _core.Engine(self.teams[0], board, buffer, 2, None, lambda *_: None, 0.0, 0.0)
        engine.tune(1 << 20, 0.001)
        works = engine.submit([Item("allreduce", "sound", np.ones(4), np.ones(4))], False)
        ledger = _core.Ledger(_core.Segment.create("local", _core.Ledger.segment_bytes(size)), 0, size)
        shared = _core.Segment.create("memfd", 8192)
        nothing = np.empty(0, np.uint8)
        handle = self.teams[0].call(NUMBERS["barrier"], nothing, nothing, "sum", None, -1, None, None, 0.01, True)
        channels = [self.teams[0].channel(0, 1, Planner(0, 2))] if size > 1 else []
        self.pool: dict[str, list[Any]] = {
            "Segment": [segment, memory, boards, shared], "token": [segment.token(), shared.token()],
            "Team": self.teams + channels, "Window": windows, "array": arrays, "Engine": [engine], "Work": works,
            "Board": [board], "Rounds": [_core.Rounds(0, list(range(size)), 1 << 20, 0.001)],
            "Ledger": [ledger], "Handle": [handle], "planner": [planners[0]],
            "Schedule": [planners[0]("allreduce", None, 32, -1, 0, "sum", "float32")[0]],
            "Layout": [_core.Layout.split(100, 3, 4)], "HostBuffer": [_core.HostBuffer(np.ones(4))],
        }  # fmt: skip


def targets() -> list[tuple[str, Any]]:
    """(name, function) of everything, found by introspection; (name, None) for non-functions."""
    found: list[tuple[str, Any]] = []
    for name, value in vars(_core).items():
        if isinstance(value, type):
            found += [(f"{name}.{word}", None) for word in PROTOCOLS]
            for word, member in vars(value).items():
                if word != "__init__" and word.startswith("__"):
                    continue
                if isinstance(member, staticmethod):
                    member = getattr(value, word)
                if callable(member) or isinstance(member, property):
                    found.append((f"{name}.{word}", member))
        elif callable(value):
            found.append((name, value))
    return sorted(found, key=lambda pair: pair[0])


def make_call(name: str, function: Any, pick: Arguments, note: Note, world: World) -> None:
    """One call. Its exceptions are ignored."""
    owner, _, word = name.rpartition(".")
    kind = getattr(_core, owner) if owner else None
    if pick.chance(0.95):
        subject = pick.one(world.pool.get(owner, [])) if kind else None
    else:
        subject = pick.one((kind.__new__(kind), None, pick.anything())) if kind else None
    if function is None:
        note(f"{word} of {show(subject)}")
        PROTOCOLS[word](subject)
        return
    if isinstance(function, property):
        note(f"{name} of {show(subject)}")
        if function.fset is not None and pick.chance(0.5):
            function.fset(subject, pick.anything())
        else:
            function.fget(subject)
        return
    if word == "loop":  # returns once the engine is closed
        note(f"{name} of {show(subject)}")
        kind.close(subject)
    wanted = parameters(function)
    pick.begin(len(wanted))
    arguments = [pick.of(*parameter) for parameter in wanted]
    if name in UNCHECKED:
        arguments[-1] = pick.planner()
    if pick.chance(0.03):
        arguments = [pick.anything() for _ in range(pick.one((0, 1, 2, 3, 9)))]
    note(f"{name}({show(subject)}, {', '.join(map(show, arguments))})")
    if not kind or not hasattr(function, "__func__"):  # a function or a static method
        keep(world, function(*arguments))
    elif word == "__init__":
        keep(world, kind(*arguments) if pick.chance(0.9) else function(subject, *arguments))
    elif name == "Team.call" and len(world.teams) > 1 and pick.chance(0.6) and len(arguments) > 3:
        both_ranks(world, arguments)
    else:
        keep(world, function(subject, *arguments))


def show(argument: Any) -> str:
    """A short description of an argument. `repr` of a list of arrays takes seconds."""
    if isinstance(argument, np.ndarray):
        return f"<{argument.dtype} {argument.shape} strides {argument.strides}>"
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(map(show, argument[:4]))}{f', ... {len(argument)}' * (len(argument) > 4)}]"
    return f"{argument!r:.80}"


def both_ranks(world: World, arguments: list[Any]) -> None:
    """One call on both ranks, with separate arrays."""
    own = [array.copy() if isinstance(array, np.ndarray) else array for array in arguments[1:3]]

    def other() -> None:
        with contextlib.suppress(Exception):
            world.teams[1].call(arguments[0], *own, *arguments[3:])

    thread = threading.Thread(target=other)
    thread.start()
    try:
        keep(world, world.teams[0].call(*arguments))
    finally:
        thread.join()


def keep(world: World, made: Any) -> None:
    """Keep an object made by a call, for later calls."""
    for each in made if isinstance(made, list) and len(made) < 9 else [made]:
        kind = "array" if isinstance(each, np.ndarray) else type(each).__name__
        if kind in world.pool and kind != "planner" and len(world.pool[kind]) < 12:
            world.pool[kind].append(each)


def main(seed: str, blocks: int, path: str, first: int) -> None:
    everything = targets()

    def block(number: int, note: Note) -> None:
        world = World(1 + number % 2)
        pick = Arguments(f"{seed}/{number}", world.pool)
        for _ in range(CALLS):
            name, function = pick.one(everything)
            with contextlib.suppress(Exception):
                make_call(name, function, pick, note, world)
        note("the end of the calls")
        world.pool.clear()

    make_blocks(block, blocks, path, first, MEMORY)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
