"""The messages with which an engine's ranks agree on several hosts, in rounds, like those of Horovod's controller.

In every round all ranks exchange what they have submitted since the last one. `_core.Rounds` cuts the same batches from
it on every rank, by the rules that also apply in shared memory (csrc/engine/negotiation/policy.h), and the engine runs
them. Each operation takes a round trip longer than in shared memory.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import msgspec

from pycollective import _core
from pycollective.comm.control import Codec, Fault
from pycollective.comm.hosts.control_channel import ControlChannel
from pycollective.engine import clocks
from pycollective.errors import CommunicatorError, Error, PeerLostError

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator
    from pycollective.engine.settings import Settings

LONGEST_PAUSE = 0.01
"""Seconds between rounds while no operation is in progress."""
_SHORTEST_PAUSE = 1e-4
"""Seconds until the next round if a caller waits for operations that other ranks have not announced."""
_DOUBLED = 10
"""How often a pause may be doubled."""
_LOOK_SECONDS = 0.25
"""Seconds between looks for faults during a batch."""


class RoundMessage(msgspec.Struct, array_like=True):
    """A rank's message in a round."""

    announced: list[bytes | int]  # operations submitted since the last round; those announced before, by number
    tuned: tuple[int, float] | None  # fusion threshold in bytes and cycle time in seconds; None: unchanged
    closing: bool  # the rank has shut its engine down
    fault: Fault | None  # an error that ends the engine on all ranks
    refused: list[tuple[str, str]]  # names of operations whose submission was refused since the last round, and why


_ROUNDS: Codec[RoundMessage] = Codec(RoundMessage)


class RoundExchange:
    """A thread that exchanges the messages, until a rank closes its engine or a fault ends all."""

    def __init__(self, comm: Communicator, rounds: _core.Rounds, settings: Settings) -> None:
        """Collective. `rounds`: those of the engine whose communicator is `comm`."""
        self._comm, self._rounds = comm, rounds
        self._channel = ControlChannel(comm.backend, "rounds")
        self._limit = min(_core.timeout_of(None), settings.stall_shutdown_time or float("inf"))
        self._capacity = settings.cache_capacity
        # The same on all ranks.
        self._known: dict[bytes, int] = {}
        self._numbered: list[bytes] = []
        self._thread = threading.Thread(target=self._loop, name=f"pycollective rounds {comm.name}", daemon=True)

    def start(self) -> None:
        """Begin the first round."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the last round."""
        self._thread.join()

    def _loop(self) -> None:
        quiet = 0
        try:
            while (news := self._round()) is not None:
                quiet = 0 if news else min(quiet + 1, _DOUBLED)
                self._pause(quiet)
                self._await_batches()
            self._channel.close()
        except Exception as error:
            self._break(error if isinstance(error, Error) else CommunicatorError(f"{type(error).__name__}: {error}"))

    def _pause(self, quiet: int) -> None:
        """Wait for the next round. `quiet`: the number of rounds in which no rank had news."""
        cycle = self._rounds.cycle_seconds
        if not self._rounds.waiting:
            self._rounds.await_news(min(max(cycle, _SHORTEST_PAUSE) * 2**quiet, LONGEST_PAUSE))
        elif self._rounds.awaited:
            self._rounds.await_news(min(_SHORTEST_PAUSE * 2**quiet, cycle))
        else:
            self._rounds.await_caller(cycle)  # what is submitted meanwhile is fused

    def _await_batches(self) -> None:
        """What is submitted during a batch is announced after it, and fused."""
        while not self._rounds.await_batches(_LOOK_SECONDS):
            self._comm.backend.check()
        self._comm.backend.check()

    def _round(self) -> bool | None:
        """One exchange and its consequences: whether a rank had news; None: this was the last round."""
        mine = self._message()
        began = clocks.now()
        answers = self._channel.exchange(
            _ROUNDS.encode(mine), self._limit, lambda silent: self._rounds.note_silence(silent, began)
        )
        messages = _ROUNDS.decode_all(answers)
        self._learn(messages)
        self._rounds.cut()
        for rank, message in enumerate(messages):
            fault = message.fault
            if fault is None and message.closing:
                text = f"rank {rank} has shut its engine down, or its program has ended"
                fault = Fault("CommunicatorError", text, rank)
            if fault is not None:
                self._rounds.end(fault.kind, fault.text, fault.rank)
                return None
        return any(message.announced for message in messages)

    def _message(self) -> RoundMessage:
        announced, refused, tuned, closing, ending = self._rounds.take_news()
        fault = None if ending is None else Fault(*ending)
        failure = _core.Team.failure() if closing else ""
        if failure:
            rank = self._comm.rank
            fault = Fault.of(PeerLostError(f"rank {rank} is gone (its program has failed: {failure})", rank))
        return RoundMessage([self._known.get(one, one) for one in announced], tuned, closing, fault, refused)

    def _learn(self, messages: list[RoundMessage]) -> None:
        numbered = self._numbered
        if len(numbered) > self._capacity:
            self._known, self._numbered = {}, []
        for rank, message in enumerate(messages):
            if message.tuned is not None:
                self._rounds.tune(*message.tuned)
            for name, why in message.refused:
                self._rounds.refuse(rank, name, why)
            for one in message.announced:
                if isinstance(one, bytes):
                    self._note(rank, one)
                elif 0 <= one < len(numbered):
                    self._note(rank, numbered[one])
                else:
                    raise CommunicatorError(f"rank {rank} has announced an operation by the unknown number {one}")

    def _note(self, rank: int, announcement: bytes) -> None:
        if announcement not in self._known:  # from now on its number is sufficient
            self._known[announcement] = len(self._numbered)
            self._numbered.append(announcement)
        try:
            self._rounds.announce(rank, announcement)
        except ValueError as error:
            raise CommunicatorError(f"invalid announcement of rank {rank}: {error}") from None

    def _break(self, error: Error) -> None:
        """Handle an error after which neither this rank nor the others can continue."""
        self._comm.backend.fail(error)
        self._channel.send_error(error)
        fault = Fault.of(error)
        self._rounds.end(fault.kind, fault.text, fault.rank)
