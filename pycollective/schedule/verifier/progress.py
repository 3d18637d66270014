"""What ranks publish, know and send while a schedule is played: vector clocks, and messages between hosts.

Every step has a counter value. A clock holds, for each rank, the last counter that is known to have been published.
"""

from __future__ import annotations

from collections import deque

from pycollective.schedule.compiler.schedule import Schedule
from pycollective.schedule.compiler.steps import RECV, Step, Wait, describe_step

Clock = list[int]
Message = tuple[int, int, int, int, int]
"""(sender, receiver, call, tile, index of the send step)."""


class Progress:
    """Counters and clocks of all ranks, and the names of steps in errors.

    Attributes:
        tiles: the number of tiles in a call, and `iterations` of the loop over them.
        call_span: the increment of a counter per call, including entry.
        clocks: what each rank knows of the others.
        counters: the last one that each rank has published.
        moved: whether a rank has published anything; reset by the user.
    """

    def __init__(self, schedule: Schedule, tiles: int) -> None:
        self.schedule = schedule
        self.tiles = tiles
        self.iterations = tiles + schedule.depth - 1
        self.call_span = self.iterations * schedule.stride + 1
        self.clocks: list[Clock] = [[-1] * schedule.size for _ in range(schedule.size)]
        self.published: list[dict[int, Clock]] = [{} for _ in range(schedule.size)]
        self.counters = [-1] * schedule.size
        self.moved = False

    def now(self, rank: int) -> Clock:
        """What a rank knows, including its own progress."""
        return join(self.clocks[rank], self.clocks[rank], rank, self.counters[rank])

    def publish(self, rank: int, counter: int) -> None:
        """A rank shows that it has reached a counter, with what it knows."""
        self.published[rank][counter] = self.clocks[rank]
        self.counters[rank] = counter
        self.moved = True

    def learn(self, rank: int, wait: Wait, base: int, tile_base: int) -> bool:
        """Add what the peer knew when it published the awaited step, if it has, and if that is not known already."""
        counter = tile_base + wait.count if wait.count else base
        if self.clocks[rank][wait.peer] < counter:
            theirs = self.published[wait.peer].get(counter)
            if theirs is None:
                return False
            self.clocks[rank] = join(self.clocks[rank], theirs, wait.peer, counter)
        return True

    def counter(self, rank: int, index: int, call: int, tile: int) -> int:
        """The counter value of a step of a tile."""
        iteration = tile + self.schedule.ranks[rank].steps[index].lag
        return call * self.call_span + iteration * self.schedule.stride + index + 1

    def index(self, counter: int) -> int:
        """The index of the step for a counter value."""
        return (counter % self.call_span - 1) % self.schedule.stride

    def name(self, rank: int, counter: int) -> str:
        """The step of a counter value, in words."""
        return step_name(self.schedule, rank, self.index(counter))

    def line(self, rank: int, counter: int) -> str:
        """ "file:line" of the statement that the step executes."""
        return self.schedule.line(rank, self.index(counter))


class Deliveries:
    """A message is delivered when it has been sent, its destination is posted, and all those before it are delivered:
    one whose destination is not posted blocks those behind it from the same sender."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._waiting: dict[tuple[int, int], deque[Message]] = {}  # sent, by (sender, receiver)
        self._posted: dict[Message, Clock] = {}  # what the receiver knew then
        self._sent: dict[Message, Clock] = {}  # what the sender knew then
        self._delivered: set[Message] = set()
        # by sender, index of the send step and receiver, the index of the recv step
        self.receipts = {
            (step.sources[0].rank, schedule.index(step.sources[0].place), rank): index
            for rank, mine in enumerate(schedule.ranks)
            for index, step in enumerate(mine.steps)
            if step.kind == RECV
        }

    def message(self, rank: int, step: Step, call: int, tile: int) -> Message:
        """What a recv step of `rank` receives."""
        sender = step.sources[0]
        return sender.rank, rank, call, tile, self.schedule.index(sender.place)

    def send(self, rank: int, index: int, call: int, tile: int, clock: Clock) -> None:
        """A rank that knows `clock` sends the messages of a send step."""
        for target in self.schedule.ranks[rank].steps[index].targets:
            message = rank, target.rank, call, tile, index
            self._sent[message] = clock
            self._waiting.setdefault((rank, target.rank), deque()).append(message)
            self._deliver(rank, target.rank)

    def post(self, message: Message, clock: Clock) -> None:
        """The receiver, which knows `clock`, gives the message its destination; only the first time counts."""
        if message not in self._posted:
            self._posted[message] = clock
            self._deliver(message[0], message[1])

    def _deliver(self, sender: int, receiver: int) -> None:
        waiting = self._waiting.get((sender, receiver), deque())
        while waiting and waiting[0] in self._posted:
            self._delivered.add(waiting.popleft())

    def received(self, message: Message) -> tuple[Clock, Clock] | None:
        """What the sender knew when it sent a message, and the receiver when it posted it; None: not delivered."""
        return (self._sent[message], self._posted[message]) if message in self._delivered else None


def step_name(schedule: Schedule, rank: int, index: int) -> str:
    """A step in words."""
    return f"step {index} of rank {rank} ({describe_step(schedule.ranks[rank].steps[index])})"


def join(one: Clock, other: Clock, peer: int, counter: int) -> Clock:
    """The clock of `one` after it has learned that `peer`, whose clock was `other`, has reached `counter`."""
    joined = [a if a > b else b for a, b in zip(one, other, strict=True)]  # faster than map(max, ...)
    joined[peer] = counter
    return joined
