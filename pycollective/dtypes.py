"""The element types and the reduction operators: one table of each, shared by Python and C++.

Standard library only, and no import of the package: the build runs this file, `python pycollective/dtypes.py HEADER`,
to write the same tables for C++ (see csrc/dtype/table.h). The storage and arithmetic of elements are defined there,
in convert.h and operators.h.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["boolean", "signed_integer", "unsigned_integer", "real", "complex"]
Taken = Literal["bool", "integer", "real", "complex"]
"""Kinds of elements that operators distinguish."""
_LETTERS = {"boolean": "b", "signed_integer": "i", "unsigned_integer": "u", "real": "f", "complex": "c"}


@dataclass(frozen=True, slots=True)
class Dtype:
    """An element type."""

    name: str  # in NumPy and everywhere else
    itemsize: int  # bytes
    kind: Kind
    stored_as: str  # the C++ type
    dlpack: int  # DLPack's type code (kDLInt, ...)
    extended: bool = False  # provided to NumPy by ml_dtypes
    compiled: bool = True  # operators written in Python can be compiled for it, by numba

    @property
    def typestr(self) -> str:
        """Its name in the array interfaces of NumPy and CUDA; empty if they have none."""
        if self.extended:
            return ""
        return f"{'|' if self.itemsize == 1 else '<'}{_LETTERS[self.kind]}{self.itemsize}"


@dataclass(frozen=True, slots=True)
class Operator:
    """A named reduction operator."""

    name: str
    functor: str  # the struct in csrc/dtype/operators.h that implements it
    takes: tuple[Taken, ...]  # kinds of elements for which it is defined
    meaning: str  # what it computes


_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6

# fmt: off
DTYPES: dict[str, Dtype] = {row.name: row for row in (
    Dtype("bool", 1, "boolean", "::pc::boolean", _BOOL),
    Dtype("int8", 1, "signed_integer", "int8_t", _INT),
    Dtype("int16", 2, "signed_integer", "int16_t", _INT),
    Dtype("int32", 4, "signed_integer", "int32_t", _INT),
    Dtype("int64", 8, "signed_integer", "int64_t", _INT),
    Dtype("uint8", 1, "unsigned_integer", "uint8_t", _UINT),
    Dtype("uint16", 2, "unsigned_integer", "uint16_t", _UINT),
    Dtype("uint32", 4, "unsigned_integer", "uint32_t", _UINT),
    Dtype("uint64", 8, "unsigned_integer", "uint64_t", _UINT),
    Dtype("float16", 2, "real", "::pc::float16", _FLOAT, compiled=False),
    Dtype("bfloat16", 2, "real", "::pc::bfloat16", _BFLOAT, extended=True, compiled=False),
    Dtype("float32", 4, "real", "float", _FLOAT),
    Dtype("float64", 8, "real", "double", _FLOAT),
    Dtype("float8_e4m3fn", 1, "real", "::pc::float8_e4m3fn", 10, extended=True, compiled=False),
    Dtype("float8_e5m2", 1, "real", "::pc::float8_e5m2", 12, extended=True, compiled=False),
    Dtype("float8_e8m0fnu", 1, "real", "::pc::float8_e8m0fnu", 14, extended=True, compiled=False),
    Dtype("complex64", 8, "complex", "::pc::complex64", _COMPLEX, compiled=False),
    Dtype("complex128", 16, "complex", "::pc::complex128", _COMPLEX, compiled=False),
)}
"""Every element type that collectives take, by name; their order gives their numbers in the core."""

OPERATORS: dict[str, Operator] = {row.name: row for row in (
    Operator("sum", "Sum", ("bool", "integer", "real", "complex"), "a + b (logical or for bool)"),
    Operator("avg", "Sum", ("integer", "real", "complex"), "the sum divided by the number of ranks"),
    Operator("prod", "Product", ("bool", "integer", "real", "complex"), "a * b (logical and for bool)"),
    Operator("min", "Minimum", ("bool", "integer", "real"), "the smaller; NaN wins"),
    Operator("max", "Maximum", ("bool", "integer", "real"), "the larger; NaN wins"),
    Operator("band", "BitAnd", ("bool", "integer"), "bitwise and"),
    Operator("bor", "BitOr", ("bool", "integer"), "bitwise or"),
    Operator("bxor", "BitXor", ("bool", "integer"), "bitwise exclusive or"),
    Operator("land", "LogicalAnd", ("bool", "integer", "real"), "1 where both are nonzero, else 0"),
    Operator("lor", "LogicalOr", ("bool", "integer", "real"), "1 where either is nonzero, else 0"),
)}
# fmt: on
"""Every named operator, by name; their order gives their numbers in the core."""


# -- for C++ -----------------------------------------------------------------------------------------------------------


def header() -> str:
    """The tables as the X macros that csrc/dtype/table.h and csrc/bindings use."""
    head = ["// Generated from pycollective/dtypes.py; do not edit.", "#pragma once"]
    return "\n".join([*head, *_macros(), "", ""])


def _macros() -> Iterator[str]:
    yield "\n// X(name, C++ type, kind)"
    yield "#define PC_DTYPES(X) \\"
    yield from (f"  X({_enumerator(row)}, {row.stored_as}, {row.kind}) \\" for row in DTYPES.values())
    yield "\n// X(name, bytes, DLPack's type code, name in the array interfaces)"
    yield "#define PC_EXCHANGED_TYPES(X) \\"
    for row in DTYPES.values():
        yield f'  X({_enumerator(row)}, {row.itemsize}, {row.dlpack}, "{row.typestr}") \\'
    yield "\n// X(name, functor in operators.h, kinds it takes, what it computes)"
    yield "#define PC_OPERATORS(X) \\"
    for one in OPERATORS.values():
        yield f'  X({one.name}, {one.functor}, {" | ".join(f"takes_{kind}" for kind in one.takes)}, "{one.meaning}") \\'


def _enumerator(row: Dtype) -> str:
    return "bool_" if row.name == "bool" else row.name  # a keyword


if __name__ == "__main__":
    Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    Path(sys.argv[1]).write_text(header())
