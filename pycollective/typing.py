"""Types of public signatures: what collectives take, and what they return for it.

    Array            an array that is returned as its own kind: NumPy's, torch's, CuPy's, those of array-API libraries
    SupportsDLPack   anything with __dlpack__: taken as input and as `out`; results are NumPy arrays
    ArrayLike        either, or what numpy.asarray takes: numbers and sequences of numbers

A collective returns `out` itself where it is given, an array of x's kind where x is an Array, else a NumPy array.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, TypeVar

import numpy.typing

__all__ = ["Array", "ArrayLike", "SupportsDLPack"]


class SupportsDLPack(Protocol):
    """An array that exports its memory by DLPack, whatever else it can do."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """A capsule, as the DLPack specification has it."""
        ...


class Array(SupportsDLPack, Protocol):
    """A DLPack array whose elements can be set: its library can make arrays that a collective writes to.

    Immutable arrays (JAX) are none: for them results are NumPy arrays.
    """

    @property
    def shape(self) -> Any:
        """Its extents."""
        ...

    @property
    def dtype(self) -> Any:
        """Its element type."""
        ...

    def __setitem__(self, key: Any, value: Any, /) -> None:
        """Set elements."""
        ...


ArrayLike: TypeAlias = SupportsDLPack | numpy.typing.ArrayLike
"""What a collective takes as x."""

A = TypeVar("A", bound=Array)
Out = TypeVar("Out", bound=SupportsDLPack)
T = TypeVar("T")
