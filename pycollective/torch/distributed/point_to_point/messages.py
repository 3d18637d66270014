"""send and recv with tags, from one rank or from any: matches messages with receives."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pycollective import _core
from pycollective.comm.arguments.numbers import rank_number
from pycollective.comm.communicator import Communicator
from pycollective.errors import CommunicatorError, Error, PeerLostError, TimeoutError
from pycollective.torch.distributed import health
from pycollective.torch.distributed.point_to_point.mailbox import Announcements

_EAGER_LOOKS, _LOOK = 20, 1e-4
"""How often, and each time for how many seconds, a waiting receive polls for its message before it sleeps."""
_NAP, _LONGEST_NAP = 20e-6, 1e-3
_REST_AFTER = 1.0
"""Seconds without messages after which the background thread stops looking for work."""


@dataclass(eq=False, slots=True)
class Send:
    """A send in progress; a PendingCall."""

    box: Messages
    dest: int
    tag: int
    data: Any
    handle: Any = None

    def test(self) -> bool:
        return self.box.started(self) and self.handle.test()

    def wait(self, timeout: float | None = None) -> None:
        if self.handle is None:
            self.box.wait_for(self, self.box.timeout if timeout is None else timeout)
        self.handle.wait(timeout)


@dataclass(eq=False, slots=True)
class Receive:
    """A receive in progress; a PendingCall. source None: any.

    Attributes:
        data: memory for the message, a HostBuffer of bytes.
        sender: the sending rank, once known.
    """

    box: Messages
    source: int | None
    tag: int
    data: Any
    sender: int = -1
    handle: Any = None
    spare: Any = None
    error: Exception | None = None

    def test(self) -> bool:
        return self.box.started(self) and self.handle.test()

    def wait(self, timeout: float | None = None) -> None:
        if self.handle is None:
            self.box.wait_for(self, self.box.timeout if timeout is None else timeout)
        if self.error is not None:
            raise self.error
        self.handle.wait(timeout)
        if self.spare is not None:
            _tensor(self.data).copy_(self.spare)
            self.spare = None

    def wants(self, source: int, tag: int) -> bool:
        return self.tag == tag and self.source in (None, source)


@dataclass(slots=True)
class _Stray:
    """A message that had no matching receive when a later one was wanted."""

    source: int
    tag: int
    data: Any
    handle: Any


@dataclass
class Messages:
    """The messages of one process group; all methods are thread-safe.

    Args:
        comm: transfers them.
        mailbox: announces them.
        timeout: of a message, in seconds.
    """

    comm: Communicator
    mailbox: Announcements
    timeout: float
    _unsent: list[Send] = field(default_factory=list)
    _wanted: list[Receive] = field(default_factory=list)
    _strays: list[_Stray] = field(default_factory=list)
    _turn: threading.RLock = field(default_factory=threading.RLock)
    _work: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _resting: bool = False
    _closed: bool = False

    def send(self, data: Any, dest: int, tag: int) -> Send:
        """Start sending a HostBuffer of bytes."""
        self._check_peer(dest)
        send = Send(self, dest, tag, data)
        with self._turn:
            if dest == self.comm.rank:
                self._keep(_tensor(data).clone(), tag)
                send.handle = _Nothing()
                return send
            if not self._unsent and not self._closed and self.mailbox.room(dest):
                self._start(send)
            else:
                self._unsent.append(send)
                self._advance()
        self._push_on(send)
        return send

    def receive(self, data: Any, source: int | None, tag: int) -> Receive:
        """Start receiving into a HostBuffer of bytes, from `source`, or with None from any rank."""
        if source is not None:
            self._check_peer(source)
        receive = Receive(self, source, tag, data)
        with self._turn:
            stray = next((s for s in self._strays if receive.wants(s.source, s.tag)), None) if self._strays else None
            if stray is not None:
                self._strays.remove(stray)
                self._land(receive, stray.source, stray.data.numel(), stray)
            else:
                self._wanted.append(receive)
                self._advance()
        self._push_on(receive)
        return receive

    def started(self, one: Send | Receive) -> bool:
        """Return whether the transfer of a message has started (or failed); polls once."""
        if one.handle is None:
            with self._turn:
                self._advance()
        return one.handle is not None

    def wait_for(self, one: Send | Receive, seconds: float) -> None:
        """Block until the transfer of a message has started.

        Raises:
            TimeoutError: not started after `seconds`; it may still start. PeerLostError: it never will.
            CommunicatorError: closed. Any error that has ended the group.
        """
        until, looks, nap = time.monotonic() + seconds, 0, _NAP
        while not self.started(one):
            if self._closed:
                raise CommunicatorError("the process group was destroyed")
            looks += 1
            if looks < _EAGER_LOOKS:
                self._look_out(one)
                continue
            self._require_sender(one)
            if time.monotonic() > until:
                raise TimeoutError(f"{self._described(one)} in time")
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)

    def _look_out(self, one: Send | Receive) -> None:
        """Return when `started(one)` may have changed, or after a moment."""
        if isinstance(one, Send):
            self.mailbox.await_room(one.dest, _LOOK)
        elif one.source is None:
            self.mailbox.await_next([rank for rank in range(self.comm.size) if rank != self.comm.rank], _LOOK)
        elif one.source != self.comm.rank:
            self.mailbox.await_next([one.source], _LOOK)

    def close(self) -> None:
        """Match no more messages; pending waits raise."""
        self._closed = True
        with self._work:
            self._work.notify_all()
        if self._thread is not None:
            self._thread.join(1.0)
        with self._turn:
            self.mailbox.close()

    # -- inside: under _turn -----------------------------------------------------------------------------------

    def _keep(self, data: Any, tag: int) -> None:
        """A message to this rank itself, which needs no transfer."""
        stray = _Stray(self.comm.rank, tag, data, _Nothing())
        receive = next((r for r in self._wanted if r.wants(stray.source, tag)), None)
        if receive is None:
            self._strays.append(stray)
        else:
            self._wanted.remove(receive)
            self._land(receive, stray.source, data.numel(), stray)

    def _advance(self) -> None:
        if self._closed:
            return
        if not self._unsent and len(self._wanted) == 1 and self._wanted[0].source is not None:  # most often
            self._drain(self._wanted[0].source)
            return
        full: set[int] = set()  # destinations without free entries; later messages to them must not overtake
        for send in [*self._unsent]:
            if send.dest in full or not self.mailbox.room(send.dest):
                full.add(send.dest)
                continue
            self._unsent.remove(send)
            self._start(send)
        for source in {r.source for r in self._wanted}:
            for one in range(self.comm.size) if source is None else (source,):
                self._drain(one)

    def _start(self, send: Send) -> None:
        self.mailbox.announce(send.dest, send.tag, send.data.count)
        data = send.data
        send.handle = self.comm.isend(data, send.dest, timeout=self.timeout) if data.count else _Nothing()

    def _drain(self, source: int) -> None:
        """Take what `source` has announced while any receive may match it."""
        if source == self.comm.rank:
            return
        while announced := self.mailbox.next(source):
            if all(r.source not in (None, source) for r in self._wanted):
                return
            self.mailbox.take(source)
            tag, nbytes = announced
            receive = next((r for r in self._wanted if r.wants(source, tag)), None)
            if receive is not None:
                self._wanted.remove(receive)
                self._land(receive, source, nbytes, None)
            else:
                room = torch.empty(nbytes, dtype=torch.uint8)
                self._strays.append(_Stray(source, tag, room, self._irecv(_core.HostBuffer(room), source)))

    def _land(self, receive: Receive, source: int, nbytes: int, stray: _Stray | None) -> None:
        receive.sender = source
        if nbytes != receive.data.count:
            if stray is None:
                unused = _core.HostBuffer(torch.empty(nbytes, dtype=torch.uint8))
                self._irecv(unused, source)  # to remove it from the channel
            wanted = receive.data.count
            receive.error = ValueError(f"a message of {nbytes} bytes from rank {source} for a tensor of {wanted}")
            receive.handle = _Nothing()
        elif stray is not None:
            receive.spare, receive.handle = stray.data, stray.handle
        else:
            receive.handle = self._irecv(receive.data, source)

    def _irecv(self, room: Any, source: int) -> Any:
        return self.comm.irecv(room, source, timeout=self.timeout) if room.count else _Nothing()

    # -- inside ------------------------------------------------------------------------------------------------

    def _check_peer(self, peer: int) -> None:
        if type(peer) is not int:
            rank_number(peer, "peer")
        if not 0 <= peer < self.comm.size:
            raise ValueError(f"{peer} is not a rank of this process group of {self.comm.size}")
        if self._closed:
            raise CommunicatorError("the process group was destroyed")

    def _require_sender(self, one: Send | Receive) -> None:
        backend = self.comm.backend
        backend.check()
        if self.started(one):
            return
        peer = one.dest if isinstance(one, Send) else one.source
        peers = [peer] if peer is not None else [rank for rank in range(self.comm.size) if rank != self.comm.rank]
        lost = peers and all(backend.team.gone(each) or backend.team.departed(each) for each in peers)
        if lost and not self.started(one):  # it may have announced messages before it exited
            error = PeerLostError(f"rank {peers[0]} is gone; {self._described(one)}", peers[0])
            if not backend.team.departed(peers[0]):  # fatal for the group
                health.give_up(backend, error)
            raise error

    def _described(self, one: Send | Receive) -> str:
        if isinstance(one, Send):
            return f"rank {one.dest} has not taken the messages before the one with tag {one.tag}"
        sender = "no rank" if one.source is None else f"rank {one.source}"
        return f"{sender} has sent {'no' if one.source is not None else 'a'} message with tag {one.tag}"

    def _push_on(self, one: Send | Receive) -> None:
        """Make sure that a message progresses even while no thread waits for it."""
        if one.handle is not None:
            return
        if self._thread is None:
            with self._work:
                if self._thread is None:
                    self._start_thread(one)
        elif self._resting:  # otherwise it looks by itself: waking it costs more than a small message
            with self._work:
                self._work.notify()

    def _start_thread(self, one: Send | Receive) -> None:
        thread = threading.Thread(target=self._loop, name="pycollective-messages", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system refuses another one
            with self._turn:
                if one.handle is None:
                    waiting: list[Any] = self._unsent if isinstance(one, Send) else self._wanted
                    waiting.remove(one)  # or it would run later
                    raise
        else:
            self._thread = thread

    def _loop(self) -> None:
        nap, used = _LONGEST_NAP, time.monotonic()
        while not self._closed:
            if self._unsent or self._wanted:
                try:
                    with self._turn:
                        if not self._closed:
                            self._advance()
                except Error:  # has ended the group: callers that wait for a message raise it
                    return
                nap, used = _LONGEST_NAP, time.monotonic()
            elif time.monotonic() - used < _REST_AFTER:
                nap = 2 * _LONGEST_NAP
            else:
                with self._work:
                    self._resting = True
                    self._work.wait_for(lambda: self._closed or self._unsent or self._wanted)
                    self._resting = False
            time.sleep(nap)


def _tensor(data: Any) -> Any:
    """A uint8 tensor over the memory of a HostBuffer of bytes."""
    return torch.from_numpy(data.array(np.dtype(np.uint8)))


class _Nothing:
    """The handle of an empty message: its announcement is sufficient."""

    def test(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> None:
        pass
