"""Interleaved measurement: rounds in which every candidate runs once, in a balanced order, in the same processes.

A candidate's turn is a block of calls that begins after a barrier.  Every rank writes its input before each call, which
is timed by itself (less the cost of reading the clock), so writing is not timed; without fresh inputs the block is
timed as a whole.  Candidates share their buffers, so all use the same memory.  Disturbances of a round (another
process, a slower clock) affect all candidates of that round, which is why comparisons pair the times of a round.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from pycollective.comm.arguments.arrays import numpy_dtype

from ..peers import Array, Call, Peer, prepare
from ..peers.tensors import as_tensor
from ..ranks.world import World, first_problem
from ..workload.data import count_wrong, fill_input, poison
from ..workload.plan import PAGE, Budget, Candidate, Conditions
from .stats import balanced_order

__all__ = ["Buffers", "Measured", "NotMeasured", "OutOfMemory", "Timed", "clock_cost", "measure", "take_rounds"]

_MOST_REPETITIONS = 1_000_000
_MOST_TIMED = 200_000
"""Calls of a turn that are timed one by one."""
_SYNCHRONISED = 16 << 10
"""Bytes of input from which ranks that have written it wait for each other, as writing takes them unequally long."""

Allocate = Callable[[int], Array]
"""Bytes -> a flat uint8 array; collective."""


class OutOfMemory(Exception):
    """This machine has too little memory for the buffers of a case."""


@dataclass(frozen=True)
class Measured:
    """Seconds per call in each round (the slowest rank's), and the wrong elements on all ranks (None: not checked).

    ``p99``: seconds that 99 % of the calls did not exceed, of the slowest rank; None if calls were not timed singly.
    ``offsets``: bytes after a page boundary at which input and output began.
    """

    candidate: Candidate
    seconds: list[float]
    repetitions: int
    wrong: int | None
    p99: float | None = None
    offsets: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class NotMeasured:
    """A candidate that failed, or whose library does not support this case."""

    candidate: Candidate
    reason: str
    supported: bool = True


class Buffers:
    """A send and a receive buffer for each path, grown on demand and shared by all candidates."""

    def __init__(self, world: World, allocate: dict[str, Allocate], conditions: Conditions) -> None:
        self.world, self.conditions, self._allocate = world, conditions, allocate
        self._held: dict[tuple[str, str], Array] = {}

    def pair(self, candidate: Candidate, in_place: bool) -> tuple[Array, Array]:
        """Flat (send, recv) arrays of the case; the same array twice if the candidate works in place."""
        case = candidate.case
        kind = numpy_dtype(case.dtype)
        first, second = self.conditions.offsets(case)
        recv = self._get(candidate.path, "recv", case.recv_count * kind.itemsize, second).view(kind)
        if in_place:
            return recv, recv
        return self._get(candidate.path, "send", case.send_count * kind.itemsize, first).view(kind), recv

    def _get(self, path: str, role: str, wanted: int, offset: int) -> Array:
        """`wanted` bytes that begin `offset` bytes after a page boundary."""
        nbytes = wanted + offset + PAGE
        held = self._held.get((path, role))
        if held is None or held.nbytes < nbytes:
            self._held.pop((path, role), None)
            del held
            if nbytes * self.world.size > 0.8 * min(self.world.share(_free_memory())):
                raise OutOfMemory(f"no memory for {self.world.size} buffers of {nbytes / 2**20:.0f} MiB")
            held = self._allocate[path](nbytes)
            held[:] = 0  # touch every page before timing
            self._held[path, role] = held
        begin = -held.ctypes.data % PAGE + offset
        return held[begin : begin + wanted]


def _free_memory() -> float:
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return float(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return float("inf")  # not Linux: let the allocation itself fail


def measure(
    group: Sequence[Candidate], peers: Mapping[tuple[str, str], Peer], buffers: Buffers, budget: Budget
) -> list[Measured | NotMeasured]:
    """Measure a group of candidates against each other; collective, the same list on every rank.

    ``peers[library, topology]`` are the available libraries.
    """
    world = buffers.world
    runs = [_ready(candidate, peers[candidate.library, candidate.topology], buffers) for candidate in group]
    ready = [run for run in runs if isinstance(run, _Run)]
    before, after = (1, 1) if budget.checks is None else (budget.checks, 0)
    for run in ready:
        run.check(world, before)
    times = take_rounds(world, ready, budget)
    for run, seconds in zip(ready, times, strict=True):
        run.finish(world, seconds)
        run.check(world, after)
    return [run if isinstance(run, NotMeasured) else run.measured() for run in runs]


class Timed:
    """A contender that takes turns with others: a call without arguments, collective."""

    most_repetitions = _MOST_REPETITIONS

    def __init__(self, call: Call) -> None:
        self.call, self.repetitions = call, 1

    def block(self) -> int:
        """Nanoseconds of one block of repetitions on this rank."""
        call, repetitions = self.call, range(self.repetitions)
        start = perf_counter_ns()
        for _ in repetitions:
            call()
        return perf_counter_ns() - start


class _Run(Timed):
    """A candidate that is ready to be called.

    ``write(number)`` writes the input of a call; None for a candidate that is timed as a block.  ``quartile``: see
    Conditions.
    """

    def __init__(
        self,
        candidate: Candidate,
        call: Call,
        send: Array,
        recv: Array,
        checked: bool,
        write: Callable[[int], object] | None,
        quartile: bool,
    ) -> None:
        super().__init__(call)
        self._quartile = quartile
        self.candidate, self.send, self.recv, self.checked, self.write = candidate, send, recv, checked, write
        self.wrong: int | None = None
        self.p99: float | None = None
        self.seconds: list[float] = []
        self._turns: list[NDArray[np.int64]] = []
        if write is not None:
            self.most_repetitions = _MOST_TIMED

    def block(self) -> int:
        if self.write is None:
            return super().block()
        write, call, clock, taken = self.write, self.call, perf_counter_ns, list[int]()
        note = taken.append
        for number in range(self.repetitions):
            write(number)
            start = clock()
            call()
            note(clock() - start)
        turn = np.maximum(np.array(taken, np.int64) - clock_cost(), 1)
        self._turns.append(turn)
        return int(turn.sum())

    def finish(self, world: World, seconds: list[float]) -> None:
        """Take over the seconds per call of each round.  Collective."""
        self.seconds = seconds
        if self.write is not None:
            turns = self._turns[-len(seconds) :]  # those before served the calibration
            if self._quartile:
                last = np.max(world.share(np.stack(turns)), axis=0)  # a call has completed when its last rank has
                self.seconds = [float(quarter) / 1e9 for quarter in np.percentile(last, 25, axis=1)]
            calls = np.concatenate(turns)
            self.p99 = max(world.share(float(np.percentile(calls, 99, method="inverted_cdf")))) / 1e9
            self._turns.clear()

    def check(self, world: World, calls: int) -> None:
        """Count the wrong elements of this many calls, each on fresh inputs and a poisoned output."""
        for _ in range(calls):
            self.wrong = (self.wrong or 0) + self._check_once(world)

    def _check_once(self, world: World) -> int:
        case, rank = self.candidate.case, world.rank
        poison(self.recv)
        if not case.kind.single_buffer:
            fill_input(self.send, rank, case.dtype)
        elif rank == case.root:
            fill_input(self.recv, rank, case.dtype)
        world.barrier()
        self.call()
        wrong = count_wrong(self.recv, case, rank) if self.checked else 0
        if self.send is self.recv:
            self.recv[:] = 0  # otherwise repeated sums in place would overflow
        return sum(world.share(wrong))

    def measured(self) -> Measured:
        offsets = self.send.ctypes.data % PAGE, self.recv.ctypes.data % PAGE
        return Measured(self.candidate, self.seconds, self.repetitions, self.wrong, self.p99, offsets)


@functools.cache
def clock_cost() -> int:
    """Nanoseconds between two readings of the clock with nothing in between: the median of many."""
    pairs = [(perf_counter_ns(), perf_counter_ns()) for _ in range(10_000)]
    return int(np.median([after - before for before, after in pairs]))


def _ready(candidate: Candidate, peer: Peer, buffers: Buffers) -> _Run | NotMeasured:
    """The candidate ready to run or, if that failed on any rank, the same :class:`NotMeasured` on all."""
    run: _Run | None = None
    problem = ""
    if not peer.supports(candidate.case):
        return NotMeasured(candidate, f"{peer.name} does not have it", supported=False)
    try:
        run = _prepare(candidate, peer, buffers)
    except Exception as error:  # any error: the other candidates continue
        problem = str(error) or type(error).__name__
    problem = first_problem(buffers.world, problem)
    return NotMeasured(candidate, problem) if run is None or problem else run


def _prepare(candidate: Candidate, peer: Peer, buffers: Buffers) -> _Run:
    case, conditions = candidate.case, buffers.conditions
    in_place = candidate.in_place or case.kind.single_buffer or case.collective in peer.always_in_place
    send, recv = buffers.pair(candidate, in_place)
    given, taken = send, recv
    if candidate.arrays == "torch":
        taken = as_tensor(recv)
        given = taken if in_place else as_tensor(send)
    write = _writer(buffers.world, send) if conditions.fresh else None
    run = _Run(candidate, prepare(peer, case, given, taken), send, recv, peer.checked, write, conditions.quartile)
    run.call()  # the first call may compile, connect or refuse
    return run


def _writer(world: World, array: Array) -> Callable[[int], object]:
    """A function that overwrites an input with harmless values, which differ from call to call."""
    fill = array.view(np.uint8).fill
    values = (0x3E, 0x3F) if array.dtype.kind not in "biu" else (0, 1)  # floats of all types: between 0 and 2

    def write(number: int) -> None:
        fill(values[number & 1])

    def write_together(number: int) -> None:
        fill(values[number & 1])
        world.barrier()

    return write if array.nbytes < _SYNCHRONISED else write_together


def take_rounds(world: World, runs: Sequence[Timed], budget: Budget) -> list[list[float]]:
    """Seconds per call for each run and round; repetitions and rounds are agreed with the other ranks."""
    for run in runs:
        for _ in range(budget.warmup or 0):
            run.call()
    rounds = _prepare_rounds(world, runs, budget)
    taken = np.zeros((len(runs), rounds), np.int64)
    for index in range(rounds):
        for turn in balanced_order(len(runs), index):
            world.barrier()
            taken[turn, index] = runs[turn].block()
    slowest = np.max(world.share(taken), axis=0)  # a collective has completed when its last rank has
    return [[int(ns) / 1e9 / run.repetitions for ns in times] for run, times in zip(runs, slowest, strict=True)]


def _prepare_rounds(world: World, runs: Sequence[Timed], budget: Budget) -> int:
    """Set the repetitions of a block; returns the number of rounds within the budget."""
    if budget.calls is not None:
        for run in runs:
            run.repetitions = budget.calls
        return 1
    blocks = [_calibrate(world, run, budget.block_s) for run in runs]
    if not runs or sum(blocks) <= 0:
        return budget.rounds
    return min(budget.rounds, max(budget.least_rounds, int(budget.group_s / sum(blocks))))


def _calibrate(world: World, run: Timed, block_s: float) -> float:
    """Set the repetitions that fill a block; returns the block's seconds.  Also warms the call up."""
    while True:
        seconds = _block_everywhere(world, run)
        if seconds < 10 * block_s:
            seconds = min(seconds, _block_everywhere(world, run), _block_everywhere(world, run))
        if seconds >= block_s / 2 and not _stalled(world, run, seconds, block_s):
            break
        if run.repetitions >= run.most_repetitions:
            break
        more = int(run.repetitions * min(10.0, max(2.0, block_s / max(seconds, 1e-7))))
        run.repetitions = min(more, run.most_repetitions)
    call_s = seconds / run.repetitions
    # three at least where that is not much more, so that skew after the barrier hardly matters
    run.repetitions = min(max(round(block_s / call_s), 3 if call_s < block_s else 1), run.most_repetitions)
    return call_s * run.repetitions


def _stalled(world: World, run: Timed, seconds: float, block_s: float) -> bool:
    """Return whether a block was delayed because a rank waited for its core: twice the calls hardly take longer."""
    if seconds > 5 * block_s:
        return False
    run.repetitions *= 2
    longer = _block_everywhere(world, run)
    run.repetitions //= 2
    return longer < 1.4 * seconds


def _block_everywhere(world: World, run: Timed) -> float:
    world.barrier()
    return float(max(world.share(run.block()))) / 1e9
