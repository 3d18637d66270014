"""Types of public signatures: what collectives accept and return.

    Array            an array whose type is kept in results: NumPy's, torch's, CuPy's, those of array-API libraries
    SupportsDLPack   anything with __dlpack__: accepted as input and as `out`; results are NumPy arrays
    ArrayLike        either, or any argument of numpy.asarray: numbers and sequences of numbers

A collective returns `out` itself if given, an array of x's type if x is an Array, else a NumPy array.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, TypeVar

import numpy.typing

__all__ = ["Array", "ArrayLike", "SupportsDLPack"]


class SupportsDLPack(Protocol):
    """An array that exports its memory through DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """A capsule, as in the DLPack specification."""
        ...


class Array(SupportsDLPack, Protocol):
    """A DLPack array whose elements can be set: its library can create arrays that a collective writes to.

    Immutable arrays (JAX) are not Arrays: their results are NumPy arrays.
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
"""Types that a collective accepts as x."""

A = TypeVar("A", bound=Array)
Out = TypeVar("Out", bound=SupportsDLPack)
T = TypeVar("T")
