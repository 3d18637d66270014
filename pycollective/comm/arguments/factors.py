"""The factors of a call, compared by their bits: NaN equals itself and 0.0 differs from -0.0, as in the core."""

from __future__ import annotations

import struct


class Factors(tuple[float, float]):
    """The factors on each contribution and on the result: part of a plan's key, on which ranks must agree."""

    __slots__ = ()

    def _bits(self) -> bytes:
        return struct.pack("2d", *self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and len(other) == 2 and self._bits() == struct.pack("2d", *other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._bits())
