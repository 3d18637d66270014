"""The backend of ranks that share memory: processes of one host, or threads of one process."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import _core, settings
from pycollective.comm.explain import Explanation, explain_on_host
from pycollective.comm.group import Group
from pycollective.comm.host.core_team import make_team, segment_bytes, set_patience
from pycollective.comm.host.cores import are_enough, cpu_quota, usable_cores
from pycollective.comm.host.segments import Exchange, scratch_bytes, setting, share_segment
from pycollective.comm.host.shrink import shrink
from pycollective.comm.planner import Planner
from pycollective.comm.request import CallRequest
from pycollective.errors import CommunicatorError, Error, MismatchError, PeerLostError, TimeoutError
from pycollective.schedule.collectives import JOINING, NUMBERS

if TYPE_CHECKING:
    from pycollective.comm.hosts.network import Network

_JOINING, _SEND = NUMBERS[JOINING], NUMBERS["send"]
_HUGE_PAGE, _PAGE = 2 << 20, 4096
MOST_WINDOW_BYTES = 1 << 62
"""Well below overflow of a byte count; more than can be mapped."""


class HostTeam:
    """One rank's part of a communicator whose ranks share memory: a Backend for arrays in host memory.

    Args:
        team: the core's part.
        group: the ranks.
        own_cores: whether every rank has a core of its own, which decides how it waits.

    Attributes:
        network: what this process connects with ranks of other hosts; None if there are none.
        outgoing, incoming: the channels for messages to and from other ranks, for those used so far.
    """

    network: Network | None = None

    def __init__(self, team: _core.Team, group: Group, own_cores: bool) -> None:
        set_patience(team, own_cores)
        self.team, self.group, self.own_cores = team, group, own_cores
        self.outgoing: dict[int, _core.Team] = {}
        self.incoming: dict[int, _core.Team] = {}
        self._windows = itertools.count()
        self._limit = threading.local()

    # -- calls ---------------------------------------------------------------------------------------------------------

    def run(self, request: CallRequest) -> None:
        self._call(request, False)

    def start(self, request: CallRequest) -> Any:
        return self._call(request, True)

    def _call(self, r: CallRequest, nonblocking: bool) -> Any:
        kind = NUMBERS.get(r.collective)
        if kind is None or kind == _SEND:
            channel = self.channel(r.root, sends=r.out is None)
            return channel.call(_SEND, r.x, r.out, "sum", None, 0, None, None, r.timeout, nonblocking)
        note = r.note or None
        arguments = (
            kind, r.x, r.out, r.op, r.topology, r.root, r.counts, r.scale, r.timeout, nonblocking, note, r.step,
        )  # fmt: skip
        return self.team.call(*arguments, r.copies) if r.copies else self.team.call(*arguments)

    def channel(self, peer: int, sends: bool) -> _core.Team:
        """The team of two ranks that carries this rank's messages to a peer, or those from it."""
        channels = self.outgoing if sends else self.incoming
        channel = channels.get(peer)
        if channel is None:
            self.team.require_open()
            sender, receiver = (self.group.rank, peer) if sends else (peer, self.group.rank)
            planner = Planner(int(not sends), 2, hosts=self.group.nodes.hosts_of((sender, receiver)))
            made = self.team.channel(sender, receiver, planner)
            channel = channels.setdefault(peer, made)
        return channel

    def exchange(self, data: bytes, operation: str = "an exchange of bytes") -> list[bytes]:
        """Collective allgather of bytes of any length, in rank order.

        Args:
            operation: its purpose, with anything else that the ranks must agree on.

        Raises:
            MismatchError: the ranks called different operations.
        """
        size, note = self.group.size, f"for {operation}"
        lengths = np.empty(size, np.int64)
        self._allgather(np.array([len(data)], np.int64), lengths, (1,) * size, note)
        counts = tuple(int(length) for length in lengths)
        joined = np.empty(sum(counts), np.uint8)
        self._allgather(np.frombuffer(data, np.uint8), joined, counts, note)
        return [piece.tobytes() for piece in np.split(joined, np.cumsum(counts)[:-1])]

    def _allgather(self, x: Any, out: Any, counts: tuple[int, ...], note: str) -> None:
        self.team.call(_JOINING, x, out, "sum", None, -1, counts, None, self._seconds_left(), False, note)

    @contextlib.contextmanager
    def limited(self, seconds: float | None) -> Iterator[None]:
        """Let this thread's exchanges, and what consists of them, take so long together; None: each as a call."""
        self._limit.deadline = None if seconds is None else time.monotonic() + seconds
        try:
            yield
        finally:
            self._limit.deadline = None

    def _seconds_left(self) -> float | None:
        deadline: float | None = getattr(self._limit, "deadline", None)
        return None if deadline is None else max(0.0, round(deadline - time.monotonic(), 3))

    # -- windows -------------------------------------------------------------------------------------------------------

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Collective: an array that all ranks of the same host can address."""
        nbytes = part_bytes(shape, dtype.itemsize, self.group.size)
        number = self.window_number(shape, str(dtype))
        unit = _HUGE_PAGE if nbytes >= _HUGE_PAGE else _PAGE
        stride = max(unit, -(-nbytes // unit) * unit)
        here = self.group.nodes.ranks()
        segment = self._share_here(here, stride * len(here))  # a part for each rank of the host
        window: _core.Window = self.team.window(segment, number, stride, stride)
        return window.array(dtype, list(shape))

    def window_number(self, shape: tuple[int, ...], dtype: str) -> int:
        """Collective: the number of a new window; MismatchError if shapes or dtypes differ between ranks."""
        self.team.require_turn()  # before taking a number, so that numbers agree on all ranks
        number = next(self._windows)
        self.exchange(b"", f"empty({shape}, {dtype}), window {number}")
        return number

    def share(self, nbytes: int) -> _core.Segment | None:
        """Collective: a zero-filled segment of shared memory; None if the ranks share none."""
        return self._share_here(range(self.group.size), nbytes)

    def _share_here(self, members: Sequence[int], nbytes: int) -> _core.Segment:
        segment = share_segment(self.exchange, self.group.rank, members, nbytes, self.group.threads)
        assert segment is not None  # this rank is a member
        return segment

    # -- other groups of ranks -----------------------------------------------------------------------------------------

    def split(self, members: Sequence[int], name: str) -> HostTeam | None:
        """Collective over all ranks: a backend of the ranks `members`, in this order; None if there are none."""
        part = self.group.part(members, name) if members else None
        return connect(self.exchange, self.group.rank, members, part, self.group.threads, self.own_cores)

    def shrink(self, timeout: float) -> HostTeam:
        """A backend of the ranks that are still alive; see Communicator.shrink."""
        team, members = shrink(self.team, self.group, timeout)
        return HostTeam(team, self.group.part(members, f"{self.group.name}/shrunk"), self.own_cores)

    # -- errors and shutdown -------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.team.require_sound()

    def fail(self, error: Error, culprit: int = -1) -> None:
        """End the communicator on every rank that can be reached: they raise `error`, at the latest in their next call.

        A lost peer, a mismatch and a missed deadline leave calls in flight that have all they need to complete; other
        errors end them too. `culprit`: the rank that caused the error; -1: none.
        """
        if self.team.poisoned:
            return
        text = str(error)
        if culprit < 0 and error.rank is not None:
            culprit = error.rank
        if isinstance(error, PeerLostError):
            self.team.report_lost(error.rank, text)
        elif isinstance(error, MismatchError):
            self.team.report_mismatch(culprit, text)
        elif isinstance(error, TimeoutError):
            self.team.report_timeout(culprit, text)
        else:
            self.team.give_up(text)

    def fail_all(self, error: Error) -> None:
        """Fail the communicator's calls and the messages between its ranks."""
        for team in (self.team, *self.outgoing.values(), *self.incoming.values()):
            team.give_up(str(error))

    def lost_peer(self) -> int | None:
        """A rank whose process has ended without closing the communicator, as far as this rank can tell."""
        for rank in range(self.group.size):
            if rank != self.group.rank and self.team.gone(rank) and not self.team.departed(rank):
                return rank
        return None

    def close(self) -> None:
        parts = (*self.outgoing.values(), *self.incoming.values(), self.team)
        for part in parts:  # all or none
            part.require_closable()
        for part in parts:
            part.close()

    # -- information ---------------------------------------------------------------------------------------------------

    def explain(self, collective: str, nbytes: int, topology: Any) -> Explanation:
        """How a call would be executed."""
        found = explain_on_host(self.group, self.own_cores, collective, nbytes, topology)
        if not _core.heap_bytes()[0]:
            return found
        problem = self.team.heap_problem
        shared = f"as other arrays: {problem}" if problem else "as those from comm.empty, but staged in the first calls"
        return replace(found, shared=shared)


def connect(
    exchange: Exchange,
    position: int,
    members: Sequence[int],
    group: Group | None,
    threads: bool = False,
    own_cores: bool = True,
) -> HostTeam | None:
    """Collective: this rank's part of a new communicator of the ranks at `members`; None for a non-member.

    Args:
        exchange, position, members: as for share_segment.
        group: of the members; None for a non-member.
        threads: whether the ranks are threads of this process.
        own_cores: False: the ranks are some of more ranks than there are cores.
    """
    # The first member's settings apply: ranks with different tiles would execute different steps.
    mine = (scratch_bytes(), setting("PYCOLLECTIVE_TILE"), setting("PYCOLLECTIVE_STAGED_TILE"), sorted(usable_cores()))
    received = [json.loads(text) for text in exchange(json.dumps(mine).encode())]
    scratch, tile, staged_tile, _ = received[members[0] if members else position]
    own_cores = own_cores and are_enough([frozenset(received[m][3]) for m in members], cpu_quota())
    nbytes = segment_bytes(len(members), int(scratch), threads) if members else 0
    segment = share_segment(exchange, position, members, nbytes, threads)
    team = None
    if segment is not None:
        assert group is not None
        team = make_team(segment, group, int(scratch))
        if group.world_ranks[group.rank] == 0:  # one process per job, also without init()
            settings.warn_of_unknown(stacklevel=4)
        team.tile_bytes = (tile, staged_tile)
    exchange(b"")  # every rank has recorded its presence
    if team is None or group is None:
        return None
    team.watch_peers()
    return HostTeam(team, group, own_cores)


def part_bytes(shape: tuple[int, ...], itemsize: int, size: int) -> int:
    """Bytes of each rank's part of a window; CommunicatorError for more than can be mapped."""
    nbytes = math.prod(shape) * itemsize
    if nbytes * size > MOST_WINDOW_BYTES:
        raise CommunicatorError(f"{nbytes} bytes for each of {size} ranks are more than can be mapped")
    return nbytes
