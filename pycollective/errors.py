"""All errors raised by pycollective itself, in one hierarchy."""

from __future__ import annotations

import builtins
from collections.abc import Iterable


class Error(RuntimeError):
    """Base of all errors of this package.

    Attributes:
        rank: the rank that led to it, in the communicator of the call, where the ranks' own messages tell; else None.
    """

    rank: int | None = None


class ProgramError(Error):
    """A topology's program breaks a rule of the language; the message names the statement's file and line."""

    def __init__(self, message: str) -> None:
        from pycollective import notebook

        where, colon, rest = message.partition(": ")
        super().__init__(notebook.place(where) + colon + rest)


class VerificationError(Error):
    """A compiled schedule is wrong: a bad result, a race, a deadlock or a false claim about order.

    Attributes:
        message: what is wrong, without the lines.
        lines: "file:line" of each statement whose steps the message names.
    """

    def __init__(self, message: str, lines: Iterable[str] = ()) -> None:
        from pycollective import notebook

        self.message, self.lines = message, tuple(dict.fromkeys(filter(None, lines)))
        places = ", ".join(map(notebook.statement, self.lines))
        super().__init__(f"{message} [{places}]" if places else message)


class TopologyError(Error, ValueError):
    """An unknown topology, a collective that a topology lacks, or invalid parameters."""


class MismatchError(Error):
    """Ranks called different collectives, or the same one with mismatched arguments."""


class TimeoutError(Error, builtins.TimeoutError):
    """The deadline passed; the message names the missing ranks and the call.

    Its text contains the word "timeout", which callers of torch.distributed look for.
    """

    def __str__(self) -> str:
        text = super().__str__()
        return text if text.startswith(_LATE) else _LATE + text


_LATE = "the timeout has passed: "


class PeerLostError(Error):
    """The process of a peer has ended, or its host does not answer.

    Attributes:
        rank: the rank that was lost, in the communicator of the call.
    """

    rank: int

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[type[PeerLostError], tuple[str, int]]:
        return type(self), (str(self), self.rank)  # the default would forget the rank when pickled


class CommunicatorError(Error):
    """A communicator that was freed or poisoned, or a call that it does not support."""


class NestedCallError(CommunicatorError):
    """A thread called a collective from within another one: in a signal handler, a callback or a finalizer.

    It would wait for itself. Nothing was sent, and the communicator remains usable.
    """

    @classmethod
    def on(cls, communicator: str) -> NestedCallError:
        """The error as the core raises it, for a communicator's name."""
        return cls(
            f"a collective was called on communicator {communicator!r} from within another one of the same thread "
            "(a signal handler, callback or finalizer)"
        )


class BootstrapError(Error):
    """The ranks could not find each other."""
