"""How a communicator's calls are put on their way: to the core, to MPI where ranks span hosts, or to a GPU."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pycollective import _core, checks
from pycollective.comm import arrays, calls
from pycollective.comm.calls import KIND, Call
from pycollective.comm.handle import Handle
from pycollective.comm.options import ALLOWED, Moving, Options, waiting
from pycollective.comm.planner import SendPlanner
from pycollective.comm.rail_calls import RailCalls
from pycollective.errors import MismatchError
from pycollective.schedule.collectives import CALLS

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pycollective.comm.communicator import Communicator

_BARRIER, _SEND = KIND["barrier"], KIND["send"]
_ROWS = tuple(CALLS.values())


class Starting(ABC):
    """The part of a communicator that its collectives, blocking or not, are written on."""

    rank: int
    size: int
    _backend: _core.Team | RailCalls
    _call: Callable[..., Any]
    _channels: dict[tuple[int, int], _core.Team]

    @abstractmethod
    def allgather(self, x: Any, out: Any = None, **options: Unpack[Moving]) -> Any:
        """See Communicator.allgather."""

    @abstractmethod
    def allgatherv(
        self, x: Any, counts: Sequence[int] | None = None, out: Any = None, **options: Unpack[Moving]
    ) -> Any:
        """See Communicator.allgatherv."""

    @abstractmethod
    def irecv(self, out: Any, source: int, *, timeout: float | None = None) -> Handle[Any]:
        """See Communicator.irecv."""

    def _run(self, call: Call, options: Any) -> Any:
        call.out, _ = self._launch(call, options, False)
        return call.out

    def _start(self, call: Call, options: Any) -> Handle[Any]:
        value, flight = self._launch(call, options, True)
        return Handle(flight, value)

    def _launch(self, call: Call, options: Options, nonblocking: bool) -> tuple[Any, Any]:
        """(what the call returns, its flight if nonblocking)."""
        if options:
            _check_options(call, options)
        in_stream = call.kind == _BARRIER and options.get("stream") is not None
        if in_stream or arrays.on_device(call.x) or arrays.on_device(call.out):
            from pycollective.comm.cuda.calls import launch

            try:
                return launch(cast("Communicator", self), call, options, nonblocking)
            except Exception as error:
                _name_call(error, options.get("name"))
                raise
        if options:
            _check_host_options(options)
        out = call.out
        if out is None and call.shape is not None:
            if call.x is None:
                raise TypeError("x is missing")
            out = arrays.new_like(call.x, call.shape)
            if not _ROWS[call.kind].has_result(self.rank):
                arrays.clear(out)
        source = None if call.x is None else arrays.strided(call.x)  # packed when the call's turn has come
        target = None if out is None else arrays.writable(out)
        before, after = options.get("prescale"), options.get("postscale")
        scale = None
        if before is not None or after is not None:
            scale = (_factor(before, "prescale"), _factor(after, "postscale"))
        try:
            flight = self._call(
                call.kind, source, target, options.get("op", "sum"), options.get("topology"), index(call.root),
                call.counts, scale, options.get("timeout"), nonblocking, call.note or None,
            )  # fmt: skip
        except Exception as error:
            _name_call(error, options.get("name"))
            raise
        return (None if call.shape is None else out), flight

    def _alltoallv(self, x: Any, send: Sequence[int], receive: Sequence[int] | None, out: Any, options: Moving) -> Call:
        shape = arrays.shape_of(x)
        sent = calls.numbers(send, "send_counts", self.size)
        if sum(sent) != (shape[0] if shape else 1):
            raise ValueError(f"send_counts {sent} do not cut an array of shape {shape} for {self.size} ranks")
        expected = [-1] * self.size if receive is None else calls.numbers(receive, "recv_counts", self.size)
        if max(expected) >= 1 << 63:
            raise ValueError(f"recv_counts {expected} are more rows than any array has")
        mine = np.array([*sent, *expected], np.int64)
        said = self.allgather(mine, **waiting(options)).reshape(self.size, 2, self.size)
        for receiver, wanted in enumerate(said[:, 1]):
            for sender in range(self.size):
                if wanted[sender] not in (-1, said[sender, 0, receiver]):
                    raise MismatchError(
                        f"alltoallv: rank {sender} sends {said[sender, 0, receiver]} rows to rank {receiver}, "
                        f"which expects {wanted[sender]}"
                    )
        return calls.alltoall(x, out, self.rank, self.size, said[:, 0].tolist())

    def _transfer(self, source: int, dest: int, x: Any, out: Any, timeout: float | None, nonblocking: bool) -> Any:
        """A message to `dest` (`out` is None) or one from `source`; x and out as the core takes them, or an ndarray."""
        channel = self._channels.get((source, dest)) if type(source) is type(dest) is int else None
        if channel is None:
            peer = self._peer(source, "source") if out is not None else self._peer(dest, "dest")
            if isinstance(self._backend, RailCalls):
                action = self._backend.send if out is None else self._backend.receive
                data = arrays.readable(x) if out is None else arrays.writable(out)
                return (
                    self._backend.background(action, data, peer, timeout)
                    if nonblocking
                    else action(data, peer, timeout)
                )
            self._backend.require_open()
            channel = self._channels.get((source, dest))
            if channel is None:
                channel = self._backend.channel(source, dest, SendPlanner(int(out is not None)))
                self._channels[source, dest] = channel
        flight = channel.call(_SEND, x, out, "sum", None, 0, None, None, timeout, nonblocking)
        if flight is NotImplemented:
            arrays.writable(out)  # raises
        return flight

    def _peer(self, rank: Any, name: str) -> int:
        """Another rank's number."""
        number = calls.rank_number(rank, name)
        if not 0 <= number < self.size or number == self.rank:
            raise ValueError(f"{name} {number} is not another rank of this communicator of {self.size}")
        return number

    def _exchange(self, data: bytes, operation: str = "an exchange of bytes") -> list[bytes]:
        """Collective allgather of bytes of any length.

        Args:
            operation: what needs it, with whatever else the ranks must agree on.

        Raises:
            MismatchError: the ranks are in different operations.
        """
        if isinstance(self._backend, RailCalls):  # compares no fingerprints, so the text travels with the data
            return self._exchange_named(data, operation)
        length = calls.allgather(np.array([len(data)], np.int64), None, (1,) * self.size)
        lengths = [int(n) for n in self._run(replace(length, note=f"for {operation}"), {})]
        mine = calls.allgather(np.frombuffer(data, np.uint8), None, lengths)
        return _cut(self._run(replace(mine, note=f"for {operation}"), {}), lengths)

    def _exchange_named(self, data: bytes, operation: str) -> list[bytes]:
        name = operation.encode()
        mine = np.frombuffer(name + b"\0" + data, np.uint8)
        lengths = [int(n) for n in self.allgather(np.array([len(mine)], np.int64))]
        messages = [message.split(b"\0", 1) for message in _cut(self.allgatherv(mine, lengths), lengths)]
        for rank, (other, _) in enumerate(messages):
            if other != name:
                raise MismatchError(f"rank {self.rank} calls {operation}, rank {rank} calls {other.decode()}")
        return [message for _, message in messages]


def _check_options(call: Call, options: Options) -> None:
    if not options.keys() <= ALLOWED:
        raise TypeError(f"unknown keyword arguments: {', '.join(sorted(options.keys() - ALLOWED))}")
    row = _ROWS[call.kind]
    if not row.reduces and options.keys() & {"op", "prescale", "postscale"}:
        raise TypeError("op, prescale and postscale are for collectives that reduce")
    op = options.get("op")
    if isinstance(op, str) and op == "avg" and not row.averages:
        raise ValueError(f"{row.name} does not take operator avg: the ranks' results have different numbers of inputs")


def _check_host_options(options: Options) -> None:
    for name in ("stream", "max_channels"):
        if options.get(name) is not None:
            raise ValueError(f"{name} is for GPU arrays; these are in CPU memory")
    if options.get("name") is not None:
        checks.text(options.get("name"), "name")


def _factor(given: Any, name: str) -> float:
    """A factor that was left out is 1; infinite ones and NaN follow IEEE arithmetic."""
    if given is None:
        return 1.0
    return given if type(given) is float else checks.number(given, name, finite=False, nan=True)


def _cut(joined: Any, lengths: Sequence[int]) -> list[bytes]:
    """The pieces of these lengths that an array of bytes is made of."""
    ends = itertools.accumulate(lengths)
    whole = joined.tobytes()
    return [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _name_call(error: Exception, name: str | None) -> None:
    if name is not None and hasattr(error, "add_note"):
        error.add_note(f"in the call named {checks.brief(name)}")
