"""``python -m bench.alignments``: what copies and reductions cost, by where their arrays begin within a page.

Caches compare the low bits of addresses, so that some pairs of alignments can be much slower than others; measurements
on arrays at one alignment miss that.  The tool measures input and output at every multiple of 64 bytes within a page,
and at random other places, on one core.  A copy is a broadcast on a communicator of one rank; a reduction is the
executor's own vector code on two inputs, the second at another place, with the stores of an allreduce on two ranks.

Pairs are compared with those measured within the same moment, in random order, because a processor's clock can change
meanwhile.  All are measured several times; then the slowest and the fastest again in turns, which decide, by medians.
The exit code is 1 if the worst exceeds the best by more than ``LIMIT``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from time import perf_counter, perf_counter_ns
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from pycollective.cli import outputs
from pycollective.cli.commands import Command, refusing
from pycollective.cli.options import Json
from pycollective.cli.units import format_size, format_time, parse_sizes
from pycollective.comm.arguments.arrays import numpy_dtype
from pycollective.dtypes import DTYPES

from .measurement.measure import clock_cost
from .options import chosen, new_app
from .peers.ceiling import streams
from .workload.cases import element_size
from .workload.plan import PAGE

__all__ = ["LIMIT", "Cost", "costs", "offset_pairs"]

SCHEMA = "pycollective-alignments/1"
LIMIT = 1.3
LINE = 64
_CALL_NS = 3_000
"""A measurement repeats its call for about so long."""
_ROUNDS = 4
_MOMENT = 24
"""So many pairs are compared with each other."""
_SUSPECTS = 50
"""At most so many of the slowest and of the fastest pairs are measured again."""
_TURNS = 15
"""At least so often, if four of each are not too many for that."""

Call = Callable[[], object]
Place = tuple[int, int]

app = new_app()


@dataclass(frozen=True)
class Cost:
    """One operation at one size.

    Attributes:
        best, worst: seconds of a call, at ``best_at`` and ``worst_at``: where input and output begin in a page, bytes.
        pairs: how many pairs of places were measured.
    """

    operation: str
    bytes: int
    best: float
    best_at: Place
    worst: float
    worst_at: Place
    pairs: int

    @property
    def ratio(self) -> float:
        return self.worst / self.best


def offset_pairs(width: int, most: int, seed: int = 1) -> list[Place]:
    """Places within a page for input and output, multiples of the element size: every pair of cache lines' begins, or
    a random choice, and as many pairs of random places; at most ``most``, in random order.
    """
    generator = np.random.default_rng(seed)
    lines = [(source, target) for source in range(0, PAGE, LINE) for target in range(0, PAGE, LINE)]
    chosen = [lines[i] for i in generator.permutation(len(lines))[: max(1, most // 2)]]
    others = generator.integers(0, PAGE // width, (len(chosen), 2)) * width
    pairs = [(0, 0), *chosen, *((int(source), int(target)) for source, target in others)]
    unique = list(dict.fromkeys(pairs))
    return [unique[i] for i in generator.permutation(len(unique))]


class Arrays:
    """Two inputs and an output of a size and type that can begin anywhere in a page."""

    def __init__(self, nbytes: int, dtype: str) -> None:
        self._kind = numpy_dtype(dtype)
        self._bytes = nbytes // self._kind.itemsize * self._kind.itemsize
        self._held = [np.ones(self._bytes + 2 * PAGE, np.uint8) for _ in range(3)]

    def at(self, role: int, offset: int) -> NDArray[Any]:
        """Input 0 or 1, or the output (2)."""
        held = self._held[role]
        begin = -held.ctypes.data % PAGE + offset
        return held[begin : begin + self._bytes].view(self._kind)


def _copy(comm: Any, arrays: Arrays, place: Place) -> Call:
    x, out = arrays.at(0, place[0]), arrays.at(2, place[1])
    return lambda: comm.broadcast(x, 0, out)


def _sum(arrays: Arrays, place: Place) -> Call:
    combine: Any = importlib.import_module("pycollective._core").combine
    second = (sum(place) * 7919) % PAGE // 64 * 64 + place[0] % 64  # another line
    sources, targets = [arrays.at(0, place[0]), arrays.at(1, second)], [arrays.at(2, place[1])]
    streamed = streams(targets[0].nbytes, len(sources))
    return lambda: combine("sum", sources, targets, streamed)


def costs(operation: str, nbytes: int, seconds: float, comm: Any) -> Cost:
    """Measure one operation: "copy", or "sum TYPE".

    Args:
        nbytes: of each array.
        seconds: how long to measure, about.
        comm: a communicator of one rank.
    """
    dtype = "uint8" if operation == "copy" else operation.split()[1]
    arrays = Arrays(nbytes, dtype)

    def make(place: Place) -> Call:
        return _copy(comm, arrays, place) if operation == "copy" else _sum(arrays, place)

    one = max(1, _shortest(make((0, 0)), 1, 20))
    block = max(1, _CALL_NS // one)
    affordable = seconds * 1e9 / ((2 * block + 1) * one + 6_000)  # measurements
    pairs = offset_pairs(element_size(dtype), max(20, int(affordable / _ROUNDS / 1.5)))
    suspects = min(_SUSPECTS, len(pairs) // 2, max(4, int(affordable / 3 / _TURNS / 2)))
    generator = np.random.default_rng(2)
    fastest = dict.fromkeys(pairs, np.inf)
    for _ in range(_ROUNDS):
        for moment in _moments(pairs, generator):
            taken = {place: _shortest(make(place), block, 2) for place in moment}
            base = float(np.median(list(taken.values())))
            fastest.update({place: min(fastest[place], time / base) for place, time in taken.items()})
    ranked = sorted(pairs, key=fastest.__getitem__)
    again = ranked[:suspects] + ranked[-suspects:]
    turns: list[list[int]] = []
    end = perf_counter() + seconds / 3
    while len(turns) < _TURNS or perf_counter() < end:
        found = {again[i]: _shortest(make(again[i]), block, 2) for i in generator.permutation(len(again))}
        turns.append([found[place] for place in again])
    times = np.array(turns) / block
    relative = np.median(times / np.median(times, axis=1, keepdims=True), axis=0)
    best, worst = int(np.argmin(relative)), int(np.argmax(relative))
    shortest = float(np.median(times[:, best])) / 1e9
    longest = shortest * float(relative[worst] / relative[best])
    return Cost(operation, nbytes, shortest, again[best], longest, again[worst], len(pairs))


def _moments(pairs: Sequence[Place], generator: np.random.Generator) -> Iterator[list[Place]]:
    order = [pairs[i] for i in generator.permutation(len(pairs))]
    count = max(1, len(order) // _MOMENT)
    return (order[i::count] for i in range(count))


def _shortest(call: Call, block: int, attempts: int) -> int:
    """Nanoseconds of a block of calls, the shortest of some attempts after a first that fills the caches."""
    call()
    shortest = 1 << 62
    repetitions = range(block)
    for _ in range(attempts):
        start = perf_counter_ns()
        for _ in repetitions:
            call()
        shortest = min(shortest, perf_counter_ns() - start - clock_cost())
    return max(1, shortest)


@app.command(cls=Command)
def main(
    sizes: Annotated[str, typer.Option(help="bytes of an array")] = "64K,1M,16M",
    dtype: Annotated[str, typer.Option(help="element types of the sums")] = "float32,bfloat16,float64",
    seconds: Annotated[float, typer.Option(min=0.01, help="for each operation and size, about")] = 3.0,
    limit: Annotated[float, typer.Option(help="the worst may cost so many times the best")] = LIMIT,
    json: Json = None,
) -> None:
    """Measure copies and sums at many alignments; exit code 1 where one costs much more than the best."""
    with refusing():
        operations = ["copy", *(f"sum {word}" for word in chosen(dtype, DTYPES, "element type"))]
        wanted = parse_sizes(sizes)
        outputs.check(None, json)
    found: list[Cost] = []

    def measure(comm: Any) -> None:
        for operation, nbytes in product(operations, wanted):
            found.append(costs(operation, nbytes, seconds, comm))
            if json != outputs.STDOUT:
                typer.echo(_line(found[-1], limit))

    importlib.import_module("pycollective").local_world(1).run(measure)
    outputs.write_json(json, SCHEMA, {"limit": limit, "rows": [{**asdict(one), "ratio": one.ratio} for one in found]})
    raise typer.Exit(any(one.ratio > limit for one in found))


def _line(cost: Cost, limit: float) -> str:
    best = f"{format_time(cost.best)} at {cost.best_at}"
    worst = f"{format_time(cost.worst)} at {cost.worst_at}"
    verdict = "  SLOW" if cost.ratio > limit else ""
    name = f"{cost.operation}, {format_size(cost.bytes)}"
    return f"{name:<22} {cost.ratio:.2f}x  best {best}, worst {worst}, of {cost.pairs} pairs{verdict}"


if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}.alignments")
