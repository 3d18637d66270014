"""Random arguments for the functions of `pycollective._core`: plausible, wrong and hostile ones.

A function's docstring gives its parameters' names and types, so that new functions are covered automatically.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz.random_inputs import Foreign, Picker
from pycollective import _core
from pycollective.comm.planner import ScheduleKey, schedule_for
from pycollective.engine.operation import Item
from pycollective.schedule.compiler.schedule import Placement
from pycollective.schedule.language import registry

INTEGERS = (
    0, 1, -1, 2, 3, 4, 7, 8, 9, 10, 63, 64, 100, 255, 256, 300, 4096, 1 << 16, 1 << 20, (1 << 31) - 1, 1 << 31,
    -(1 << 31), (1 << 32) + 1, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, -(1 << 63), 1 << 64, -(1 << 70),
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e18, 1e308, float("inf"), -float("inf"), float("nan"), 3)
STRINGS = (
    "", "x", "sum", "avg", "prod", "min", "band", "land", "float32", "float64", "int8", "bool", "bfloat16", "uint8",
    "memfd", "local", "posix_shm", "local:0", "memfd:1:2:3", "memfd:99999999999999999999:0:1", "posix_shm:x:y",
    "allreduce", "allgather", "broadcast", "ring", "direct", "\0", "é" * 100, "x" * 5000, "\ud800",
)  # fmt: skip
DTYPES = ("float32", "float64", "int8", "int32", "uint8", "uint64", "bool", "float16", "complex64", "O", "S4", "V3",
          ">f4", "M8[s]", "i4,f8")  # fmt: skip
WAITS = (0.0, 0.001, 0.01, -1.0, -0.0, float("nan"), "x", (), 1e-300)
"""For a timeout: none that would make the test wait."""
OPERATORS = ("sum", "avg", "prod", "min", "max", "band", "lor", "no such", None, 3)
COUNTS = ([4], [2, 2], [1] * 4, [1 << 62] * 4, [4, 4], [1024], [1024] * 2, [1 << 63] * 2, [512] * 2)


class Hostile:
    """Returns a random value for every attribute."""

    def __init__(self, pick: Callable[[], Any]) -> None:
        self.__dict__["pick"] = pick

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__dlpack__", "__array_interface__"):
            raise AttributeError(name)
        return self.__dict__["pick"]()


class Arguments(Picker):
    """Picks arguments. `pool` has objects of each class of the module by the class's name, and arrays under "array"."""

    def __init__(self, seed: str, pool: dict[str, list[Any]]) -> None:
        super().__init__(seed)
        self.pool = pool
        self.junk_probability = 0.15
        self.theme: tuple[str, int] | None = None

    def begin(self, parameters: int) -> None:
        """A new call: how wild its arguments are, and whether its arrays match each other."""
        some = 1 / (1 + parameters)
        self.junk_probability = self.one((0.0, 0.0, 0.0, some, some, 0.3))
        arrays = (self.one(("float32", "uint8", "int64", "float16")), self.one((4, 1024)))
        self.theme = arrays if self.chance(0.6) else None

    def integer(self) -> Any:
        if self.chance(0.6):
            return self.one(INTEGERS[:8])
        return self.one(INTEGERS) if self.chance(0.8) else self.rng.randrange(-(1 << 66), 1 << 66)

    def integers(self) -> Any:
        if self.chance(0.05):
            return [self.one(INTEGERS)] * self.one((1, 1000, 100_000))
        return [self.integer() for _ in range(self.one((0, 1, 1, 2, 2, 3, 4, 4, 9)))]

    def array(self) -> Any:
        if self.theme is not None and self.chance(0.9):
            dtype, count = self.theme
            shared = [x for x in self.pool["array"] if x.dtype == dtype and x.size >= count and x.flags.c_contiguous]
            if shared and self.chance(0.5):
                return self.one(shared).reshape(-1)[:count]
            made = np.ones(2 * count, dtype)
            return made[::2] if self.chance(0.2) else made[:count]
        if self.chance(0.5):
            return self.one(self.pool["array"])
        dtype = np.dtype(self.one(DTYPES))
        shape = self.one(((), (0,), (1,), (4,), (7,), (2, 3), (1, 0, 5), (1200,), (2,) * 12))
        made: Any = np.zeros(shape, dtype)
        if self.chance(0.15):
            made.flags.writeable = False
        if made.ndim and self.chance(0.2):
            made = made[:: self.one((2, -1, 3))]
        if self.chance(0.1) and dtype.itemsize > 1 and not dtype.hasobject:
            made = np.frombuffer(bytearray(dtype.itemsize * 5 + 1), np.uint8)[1:].view(dtype)
        if self.chance(0.1):
            made = np.broadcast_to(made, (3, *made.shape))
        return _core.HostBuffer(made, True) if self.chance(0.1) and _core.dtype_name(dtype) else made

    def table(self) -> Any:
        """A schedule's table, mostly modified."""
        size = self.one((1, 2, 2, 3))
        name = self.one(("allreduce", "broadcast", "reduce", "allgather", "alltoall", "reduce_scatter"))
        rooted = 0 if name in ("broadcast", "reduce") else None
        placement = self.one(Placement)
        if placement.inplace and name not in ("allreduce", "broadcast"):
            placement = Placement.STAGED
        topology = registry.get(self.one(("direct", "ring", "tree")))
        try:
            key = ScheduleKey(topology, name, size, rooted, placement, False)
            table = np.array(schedule_for(key).table(0), np.int32)
        except Exception:  # not every topology supports every collective
            table = np.array([2, 1, 0, 1, 1, 0, 0, 0, 0, 0], np.int32)
        for _ in range(self.one((0, 0, 1, 1, 2, 5))):
            value = self.integer()
            if abs(value) < 1 << 31:
                table[self.rng.randrange(len(table) if self.chance(0.5) else 10)] = value
        if self.chance(0.1):
            table = table[: self.rng.randrange(len(table))]
        if self.chance(0.1):
            return self.one((table[::-1], table[::2], table.astype(np.float32), table.astype(np.int64), table[None]))
        return table

    def planner(self) -> Any:
        """A team's planner: often one that returns another plan than requested."""
        sound = self.one(self.pool["planner"])
        if self.chance(0.4):
            return sound

        def answer(*request: Any) -> Any:
            try:
                made = list(sound(*request))
            except Exception:
                made = [None, "direct", 0, 0, 0, "sum"]
            place = self.rng.randrange(7)
            if place == 0:
                made[0] = self.schedule()
            elif place == 2:
                made[2] = self.one((0, 1, 9, 10, 11, -1, 255, 300, "sum"))
            elif place in (1, 4, 5):  # not 3, the address of a function, which cannot be validated
                made[place] = self.anything()
            elif place == 6:
                return self.one((made[:5], [], None, made + [0], "sum"))
            return tuple(made)

        return answer

    def schedule(self) -> Any:
        for _ in range(5):
            try:
                return _core.Schedule(self.table())
            except (ValueError, TypeError):
                pass
        return self.one(self.pool["Schedule"])

    def item(self) -> Any:
        """An operation for the engine."""
        if self.chance(0.15):
            return Hostile(self.anything)
        made = Item(self.one(("allreduce",) * 6 + ("adasum", "broadcast", "allgather", "barrier", "join", "x")),
                    self.one(("a", "b", "c", "x" * 300)) + str(self.rng.randrange(5)))  # fmt: skip
        made.x = self.array()
        made.out = made.x if self.chance(0.6) else self.array()
        made.op = self.one(OPERATORS) if self.chance(0.3) else "sum"
        if self.chance(0.3):
            made.prescale, made.postscale = self.one(FLOATS), self.one(FLOATS)
        for name in ("priority", "root", "device", "element", "nbytes", "place", "x", "out", "name"):
            if self.chance(0.04):
                setattr(made, name, self.anything())
        return made

    def junk(self) -> Any:
        return self.one((None, (), [], {}, object(), b"x", b"", range(3), int, ValueError("x"), lambda *_: None, 1j,
                         True, slice(0), memoryview(b"xxxxxxxx"), bytearray(16)))  # fmt: skip

    def uninitialised(self) -> Any:
        kind = self.one([c for c in vars(_core).values() if isinstance(c, type)])
        return kind.__new__(kind)

    def member(self) -> Any:
        return self.one(self.pool[self.one([name for name in self.pool if self.pool[name]])])

    def anything(self) -> Any:
        makers = (self.integer, lambda: self.one(FLOATS), lambda: self.one(STRINGS), self.integers, self.array,
                  self.junk, self.junk, self.member, self.uninitialised, self.table,
                  lambda: Foreign(self.junk()), lambda: Hostile(self.junk),
                  lambda: np.dtype(self.one(DTYPES)))  # fmt: skip
        return self.one(makers)()

    def of(self, name: str, kind: str) -> Any:
        """An argument for a parameter, mostly a valid one."""
        if name == "timeout" or (name == "seconds" and "float" in kind.lower()):
            return self.one(WAITS)
        if self.chance(self.junk_probability):
            return self.anything()
        found = re.search(r"_core\.(\w+)", kind)
        if found and self.pool.get(found[1]):
            return self.one(self.pool[found[1]])
        by_name: dict[str, Callable[[], Any]] = {
            **dict.fromkeys(("x", "out", "array", "buffer"), self.array), "shape": self.integers, "table": self.table,
            "sources": lambda: [self.array() for _ in range(self.one((0, 1, 2, 3, 1100)))], "planner": self.planner,
            "outs": lambda: [self.array() for _ in range(self.one((0, 1, 1, 2)))], "op": lambda: self.one(OPERATORS),
            "items": lambda: [self.item() for _ in range(self.one((0, 1, 1, 1, 2, 3)))], "threads": lambda: True,
            "topology": lambda: self.one((None, "ring", "direct", "tree", 3)),
            "scale": lambda: self.one((None, None, (1.0, 1.0), (self.one(FLOATS), self.one(FLOATS)))),
            "counts": lambda: self.one((None, self.integers(), *COUNTS)),
            "carrier": lambda: self.one((*self.pool["Board"], *self.pool["Rounds"])),
            "dtype": lambda: np.dtype(self.one(DTYPES)), "team": lambda: self.one(self.pool["Team"]),
            "rows": lambda: [(self.integer(), self.one((None, "ring", 3))) for _ in range(self.one((0, 1, 3)))],
            "number": lambda: self.one((0, 10, 11, 12, -1, 64, 65, 1 << 20)),
            "topologies": lambda: self.one(([None], [None], [], ["ring", None])),
            "rank": lambda: self.one((0, 0, 1, 2, -1)), "root": lambda: self.one((0, 0, 1, -1, 5)),
            "collective": lambda: self.one(range(-1, 12)), "size": lambda: self.one((1, 2, 2, 3, 0, self.integer())),
            "segment": lambda: self.one(self.pool["Segment"]), "id": lambda: self.one(range(1, 9)),
            "stride": lambda: self.one((1 << 13, 4096, self.integer())), "buffers": lambda: self.one((1, 2, 0, -1)),
            "bytes": lambda: self.one((4096, 100, 0, self.integer())),
            "slots": lambda: self.one((8, 1, self.integer())),
            "scratch_bytes": lambda: self.one((1 << 16, 0, self.integer())),
            "world_ranks": lambda: self.one(([0], [0, 1], self.integers())),
            "warn_seconds": lambda: self.one((0.0, 1.0, self.one(FLOATS))),
            "shutdown_seconds": lambda: self.one(WAITS[:3]), "cycle_seconds": lambda: self.one(FLOATS),
            "kind": lambda: self.one(("local", "memfd", "posix_shm", "x")),
            "spin_us": lambda: self.one((0.0, 2.0, -1.0, float("nan"))), "yield_us": lambda: self.one((0.0, 50.0, "x")),
        }  # fmt: skip
        if name in by_name and kind != "str":
            return by_name[name]()
        if "bool" in kind:
            return self.chance(0.5)
        if "Sequence" in kind:
            return self.integers()
        if "SupportsInt" in kind:
            return self.integer()
        if "SupportsFloat" in kind:
            return self.one(FLOATS)
        if kind == "str" and self.pool.get("token") and self.chance(0.3):
            return self.one(self.pool["token"])
        if kind == "str":
            return self.one(OPERATORS[:7] if name == "op" else STRINGS)
        return self.anything()


def parameters(function: Any) -> list[tuple[str, str]]:
    """(name, type) of a function's parameters without `self`, from its docstring; of any type if it has none."""
    lines = (getattr(function, "__doc__", None) or "").splitlines() or [""]
    inside = re.match(r"\w+\((.*)\) ->", lines[0])
    if inside is None:
        return [("", "")] * 2
    parts = re.split(r", (?=\w+: )", inside[1]) if inside[1] else []
    pairs = [part.split(" = ")[0].partition(": ")[::2] for part in parts]
    return [(name, kind) for name, kind in pairs if name != "self"]
