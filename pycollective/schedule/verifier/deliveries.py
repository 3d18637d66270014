"""Messages between hosts while a schedule is played: sent, posted by the receiver, delivered in order."""

from __future__ import annotations

from collections import deque

from pycollective.schedule.compiler.schedule import Schedule
from pycollective.schedule.compiler.steps import RECV, Step
from pycollective.schedule.verifier.progress import Clock

Message = tuple[int, int, int, int, int]
"""(sender, receiver, call, tile, index of the send step)."""


class Deliveries:
    """A message is delivered when it has been sent, its destination is posted, and all those before it are delivered:
    one whose destination is not posted blocks those behind it from the same sender."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._waiting: dict[tuple[int, int], deque[Message]] = {}  # sent, by (sender, receiver)
        self._posted: dict[Message, Clock] = {}  # what the receiver knew then
        self._sent: dict[Message, Clock] = {}  # what the sender knew then
        self._delivered: set[Message] = set()
        self._receipts = {
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

    def receipt(self, sender: int, index: int, receiver: int) -> int:
        """The index of the recv step for a message."""
        return self._receipts[sender, index, receiver]
