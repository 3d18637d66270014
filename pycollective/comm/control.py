"""Control messages: what ranks exchange in addition to the data of their calls.

Encoded as MessagePack by msgspec, decoded into the type expected by the receiver. Decoding creates numbers, strings
and the structures declared for them; unlike pickle it cannot execute code.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from pycollective import errors
from pycollective.errors import CommunicatorError, Error, PeerLostError

T = TypeVar("T")


class Codec(Generic[T]):
    """Encodes and decodes messages of one type."""

    def __init__(self, kind: Any) -> None:
        """`kind`: the type, structs, dataclasses, containers and plain values."""
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(kind)

    def encode(self, message: T) -> bytes:
        """Raises TypeError for a value that cannot be encoded."""
        return self._encoder.encode(message)

    def decode(self, data: bytes, sender: int) -> T:
        """The message encoded by `sender`; CommunicatorError, which names it, for one of another type."""
        try:
            message: T = self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CommunicatorError(f"a control message of rank {sender} cannot be decoded: {error}") from None
        return message

    def decode_all(self, data: list[bytes]) -> list[T]:
        """One message from each rank."""
        return [self.decode(each, rank) for rank, each in enumerate(data)]


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """An error, as it is sent to other ranks."""

    kind: str  # the name of its class, or of its nearest base class, in pycollective.errors
    text: str
    rank: int = -1  # Error.rank; -1: None

    @classmethod
    def of(cls, error: Error) -> Fault:
        """The message for an error."""
        kind = next(base.__name__ for base in type(error).__mro__ if getattr(errors, base.__name__, None) is base)
        return cls(kind, str(error), -1 if error.rank is None else error.rank)

    def error(self) -> Error:
        """The error, to be raised here."""
        kind = getattr(errors, self.kind, None)
        if not isinstance(kind, type) or not issubclass(kind, Error):
            return CommunicatorError(self.text)
        error: Error = PeerLostError(self.text, self.rank) if kind is PeerLostError else kind(self.text)
        if self.rank >= 0:
            error.rank = self.rank
        return error
