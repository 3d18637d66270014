"""A reference interpreter: it executes compiled schedules and programs over Python integers.

It shares only the data classes with the compiler and the verifier, and it is as adversarial as an executor can
be: ranks advance one memory access at a time in a random order, no rank sees unpublished steps, memory
starts as garbage, and a rank that leaves a call finds its buffers overwritten by its caller. Between hosts, a message
is read at any time after it was sent, and written at any time after that to a place that has been posted.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from pycollective.schedule import COLLECTIVES, IN, OUT, Placement, Program, Schedule, Step, Wait

Combine = Callable[[int, int], int]
Scale = Callable[[int], int]
Inputs = dict[tuple[int, int, int], int]
"""By (rank, chunk, tile)."""

Condition = tuple[int, int] | Callable[[], bool] | None
"""What a rank waits for: (peer, counter), anything else, or nothing."""

GARBAGE = -(10**9)


class Stuck(Exception):
    """No rank can move."""


def hashed(left: int, right: int) -> int:
    """An operator whose result identifies every order and grouping of its operands."""
    return hash((left, right))


def inputs_for(schedule: Schedule | Program, tiles: int, call: int = 0) -> Inputs:
    """A different number for everything that a rank holds initially."""
    chunks = schedule.chunks if isinstance(schedule, Schedule) else schedule.chunk_count
    starts, root = COLLECTIVES[schedule.collective].starts, schedule.root or 0
    return {
        (rank, chunk, tile): 1 + rank + 100 * chunk + 100_000 * tile + 10_000_000 * call
        for rank in range(schedule.size)
        for chunk in range(chunks)
        if starts(rank, chunk, schedule.size, root)
        for tile in range(tiles)
    }


def run_program(program: Program, inputs: Inputs, tiles: int, combine: Combine = hashed) -> Inputs:
    """The values that sequential execution leaves in the result locations."""
    memory = dict(inputs)
    for tile in range(tiles):
        for statement in program.statements:
            values = [memory[source, statement.chunk, tile] for source in statement.sources]
            result = values[0]
            for value in values[1:]:
                result = combine(result, value)
            for rank in statement.destinations:
                memory[rank, statement.chunk, tile] = result
    ends, root = COLLECTIVES[program.collective].ends, program.root or 0
    return {place: value for place, value in memory.items() if ends(place[0], place[1], program.size, root)}


@dataclass
class Message:
    """One that has been sent: from where, and its content once the link has taken it."""

    key: tuple[int, int]
    chunk: int
    tile: int
    slot: int
    place: int
    taken: int | None = None


@dataclass
class Interpreter:
    """Runs calls of one schedule back to back under a random interleaving of single memory accesses."""

    schedule: Schedule
    tiles: int
    seed: int
    combine: Combine = hashed
    prescale: Scale = int  # unchanged
    postscale: Scale = int
    same_array: bool = False

    def __post_init__(self) -> None:
        schedule = self.schedule
        self.random = Random(self.seed)
        self.same_array |= schedule.placement is Placement.INPLACE
        self.collective = COLLECTIVES[schedule.collective]
        self.buffers: dict[tuple[int, int, int, int], int] = {}  # (rank, place, chunk, tile)
        self.scratch: dict[tuple[int, int, int], int] = {}  # (rank, slot, cell)
        self.progress = [-1] * schedule.size
        self.slots_used = [0] * schedule.size
        self.last_use: dict[tuple[int, int], int] = {}  # (rank, slot): base of the tile that used it last
        self.slots = max(2, schedule.depth)
        self.iterations = self.tiles + schedule.depth - 1
        self.links: dict[tuple[int, int], deque[Message]] = {}
        self.posted: dict[tuple[int, int, int], tuple[int, int]] = {}  # by message and receiver: (place, slot)
        self.delivered: set[tuple[int, int, int]] = set()  # messages and receivers

    def run(self, calls: list[Inputs]) -> list[Inputs]:
        """The outputs that each rank saw on leaving, of each call, by (rank, chunk, tile)."""
        self.inputs, self.outputs = calls, [{} for _ in calls]
        waiting = {rank: self.play(rank) for rank in range(self.schedule.size)}
        conditions: dict[int, Condition] = dict.fromkeys(waiting)
        weights = [self.random.choice((1, 1, 8, 100)) for _ in range(self.schedule.size)]  # some ranks are slow
        wire = self.random.choice((1, 8, 100))
        while waiting:
            able = [rank for rank in waiting if self.is_met(conditions[rank])]
            links = [pair for pair in self.links if self.moves(pair)]
            if not able and not links:
                raise Stuck(str(conditions))
            speeds = [*(weights[rank] for rank in able), *(wire for _ in links)]
            (chosen,) = self.random.choices([*able, *links], speeds)
            if isinstance(chosen, tuple):
                self.move(chosen)
                continue
            try:
                conditions[chosen] = next(waiting[chosen])
            except StopIteration:
                del waiting[chosen]
        return self.outputs

    def is_met(self, condition: Condition) -> bool:
        if condition is None or callable(condition):
            return condition is None or condition()
        return self.progress[condition[0]] >= condition[1]

    def play(self, rank: int) -> Iterator[Condition]:
        """One rank, access by access. Yields the condition that it waits for, or None."""
        mine, stride = self.schedule.ranks[rank], self.schedule.stride
        for number in range(len(self.inputs)):
            base = number * (self.iterations * stride + 1)
            self.enter(rank, number)
            self.progress[rank] = base
            first = self.slots_used[rank]
            for iteration in range(self.iterations):
                if iteration < self.tiles:
                    slot = (first + iteration) % self.slots
                    self.slots_used[rank] += 1
                    if (rank, slot) in self.last_use:
                        yield from (self.condition(wait, 0, self.last_use[rank, slot]) for wait in mine.readers)
                        yield functools.partial(self.has_sent, rank, slot)
                    self.last_use[rank, slot] = base + iteration * stride
                    for step in mine.steps:
                        if step.early:
                            self.post(rank, step, base + iteration * stride, slot)
                for index, step in enumerate(mine.steps):
                    tile = iteration - step.lag
                    if not 0 <= tile < self.tiles:
                        continue
                    tile_base, slot = base + tile * stride, (first + tile) % self.slots
                    if step.kind == "recv":
                        key = self.post(rank, step, tile_base, slot)
                        yield functools.partial(self.delivered.__contains__, key)
                    else:
                        yield from (self.condition(wait, base, tile_base) for wait in step.waits)
                        counter = base + iteration * stride + index + 1
                        if step.kind == "send":
                            self.send(rank, step, counter, tile, slot)
                        else:
                            yield from self.execute(rank, index, tile, slot)
                    if step.consumed:
                        self.progress[rank] = base + iteration * stride + index + 1
                    yield None
            last = base + (self.tiles - 1) * stride
            yield from (self.condition(wait, base, last) for wait in mine.exit_waits)
            yield functools.partial(self.has_sent, rank)
            self.leave(rank, number)
            yield None

    # Messages

    def send(self, rank: int, step: Step, counter: int, tile: int, slot: int) -> None:
        for target in step.targets:
            message = Message((rank, counter), step.chunk, tile, slot, step.sources[0].place)
            self.links.setdefault((rank, target.rank), deque()).append(message)

    def post(self, rank: int, step: Step, tile_base: int, slot: int) -> tuple[int, int, int]:
        source = step.sources[0]
        key = source.rank, tile_base + source.place, rank
        self.posted.setdefault(key, (step.targets[0].place, slot))
        return key

    def has_sent(self, rank: int, slot: int | None = None) -> bool:
        """Whether the links have taken all messages of a rank, or those from a slot."""
        return all(
            message.taken is not None or (slot is not None and (message.place < 0 or message.slot != slot))
            for (sender, _), messages in self.links.items()
            if sender == rank
            for message in messages
        )

    def moves(self, pair: tuple[int, int]) -> bool:
        messages = self.links[pair]
        return bool(messages) and (
            any(message.taken is None for message in messages) or (*messages[0].key, pair[1]) in self.posted
        )

    def move(self, pair: tuple[int, int]) -> None:
        """Take the next message, or deliver the first one that has been taken."""
        messages, receiver = self.links[pair], pair[1]
        first = messages[0]
        key = (*first.key, receiver)
        if first.taken is not None and key in self.posted and self.random.random() < 0.5:
            place, slot = self.posted[key]
            self.write(receiver, place, first.chunk, first.tile, slot, first.taken)
            self.delivered.add(key)
            messages.popleft()
            return
        for message in messages:
            if message.taken is None:
                message.taken = self.read(pair[0], message.place, message.chunk, message.tile, message.slot)
                return

    @staticmethod
    def condition(wait: Wait, base: int, tile_base: int) -> tuple[int, int]:
        return wait.peer, tile_base + wait.count if wait.count else base

    def execute(self, rank: int, index: int, tile: int, slot: int) -> Iterator[None]:
        step = self.schedule.ranks[rank].steps[index]
        scales = self.collective.reduces and (len(step.sources) > 1 or step.complete)
        values = []
        for source in step.sources:
            value = self.read(source.rank, source.place, step.chunk, tile, slot)
            values.append(self.prescale(value) if scales and source.initial else value)
            yield None
        result = values[0]
        for value in values[1:]:
            result = self.combine(result, value)
        if step.complete:
            result = self.postscale(result)
        for target in step.targets:
            self.write(target.rank, target.place, step.chunk, tile, slot, result)
            yield None

    def read(self, rank: int, place: int, chunk: int, tile: int, slot: int) -> int:
        if place >= 0:
            return self.scratch.get((rank, slot, place), GARBAGE)
        return self.buffers.get(self.address(rank, place, chunk, tile), GARBAGE)

    def write(self, rank: int, place: int, chunk: int, tile: int, slot: int, value: int) -> None:
        assert place != IN, "inputs are never written"
        if place >= 0:
            self.scratch[rank, slot, place] = value
        else:
            self.buffers[self.address(rank, place, chunk, tile)] = value

    def address(self, rank: int, place: int, chunk: int, tile: int) -> tuple[int, int, int, int]:
        return rank, OUT if self.same_array else place, chunk, tile

    def enter(self, rank: int, call: int) -> None:
        """The caller prepares its buffers."""
        for (owner, chunk, tile), value in self.inputs[call].items():
            if owner == rank:
                self.buffers[self.address(rank, IN, chunk, tile)] = value

    def leave(self, rank: int, call: int) -> None:
        """The caller takes the result, and reuses its buffers."""
        ends, root = self.collective.ends, self.schedule.root or 0
        for chunk in range(self.schedule.chunks):
            for tile in range(self.tiles):
                if ends(rank, chunk, self.schedule.size, root):
                    self.outputs[call][rank, chunk, tile] = self.read(rank, OUT, chunk, tile, 0)
                for place in (IN, OUT):
                    self.buffers[self.address(rank, place, chunk, tile)] = GARBAGE * 2
