"""Expected results of reductions: the exact value with a bound on its rounding, and the bits in rank order.

The bounds follow Higham, "Accuracy and Stability of Numerical Algorithms", chapters 3 and 4: every operation has a
relative error of at most u, the unit roundoff. The 16- and 8-bit types compute a step in float32 and round once to
their own precision when they store it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
finfo: Any = ml_dtypes.finfo

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
REALS = (*NARROW, "float32", "float64")
DTYPES = ("bool", *INTEGERS, *REALS)
OPERATORS = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "land", "lor")
RANKS = (1, 2, 3, 5, 8)
SMALL = (0, 1, 7, 1000)
LARGE = (1 << 20) + 3
TOPOLOGIES = ("direct", "star", "ring", "tree", "wheel", "halving_doubling", "random")
IN_RANK_ORDER = ("direct", "star")
"""Topologies that promise to reduce every element in rank order, and do it in one step."""


def numpy_type(name: str) -> np.dtype[Any]:
    """The NumPy dtype of one of our element types."""
    return np.dtype(getattr(ml_dtypes, name) if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2") else name)


def takes(op: str, name: str) -> bool:
    """Whether the operator is defined for the type."""
    if op in ("band", "bor", "bxor"):
        return name not in REALS
    return not (op == "avg" and name == "bool")


def exact(name: str, values: Array) -> Array:
    """The values in a type that holds them, their sums and small products without significant rounding."""
    if name == "float64":
        return values.astype(np.longdouble)
    return values.astype(np.float64).astype(np.longdouble)


# -- contributions -------------------------------------------------------------------------------------------------


def contributions(name: str, op: str, n: int, count: int) -> Array:
    """Contributions of n ranks: shape (n, count), different for every argument, reproducible.

    For real numbers, sums and products of the elements at even positions are exact in any order, so that not even the
    coarse 8-bit types can hide a missing contribution; the others are general.
    """
    random = np.random.default_rng(zlib.crc32(f"{name}/{op}/{n}/{count}".encode()))
    shape = (n, count)
    if name == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if name in INTEGERS:
        return _integers(random, name, op, shape)
    kind = numpy_type(name)
    if op in ("land", "lor"):
        values = random.choice([-0.0, 1.0, -2.0, np.nan], p=_mostly(op, n), size=shape)
    elif op in ("min", "max"):
        values = random.uniform(-200, 200, shape)
        values[:, 3::50] = random.choice([np.nan, 1.0, -3.0], size=values[:, 3::50].shape)
        if name != "float8_e4m3fn":  # without infinities
            values[:, 4::50] = random.choice([np.inf, -np.inf, 0.0], size=values[:, 4::50].shape)
    elif op == "prod":
        values = random.uniform(0.75, 1.5, shape) * random.choice([-1, 1], size=shape)
        values[:, ::2] = random.choice([0.5, 1.0, -1.0, 2.0], size=values[:, ::2].shape)
    else:
        values = random.uniform(-16, 16, shape)
        values[:, ::2] = random.integers(-1, 2, values[:, ::2].shape)
    return values.astype(kind)


def _integers(random: np.random.Generator, name: str, op: str, shape: tuple[int, int]) -> Array:
    limits = np.iinfo(name)
    low, high = int(limits.min), int(limits.max)
    n = shape[0]
    if op == "avg":  # sums that fit: topologies that store partial sums would wrap
        low, high = -(-low // n), high // n
    values = random.integers(low, high, shape, dtype=name, endpoint=True)
    if op in ("land", "lor"):
        values = np.where(random.random(shape) < _mostly(op, n)[0], 0, values | 1).astype(name)
    if op != "avg" and shape[1] > 6:
        values[:, 5], values[:, 6] = low, high  # wraps, in sums and products
    return values


def _mostly(op: str, n: int) -> list[float]:
    """Probabilities of (0, three other values) so that both results of a logical operator are equally likely."""
    zero = 0.5 ** (1 / n) if op == "lor" else 1 - 0.5 ** (1 / n)
    return [zero, *[(1 - zero) / 3] * 3]


# -- the reference -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """The expected result of a reduction, and its rounding error bound (0 for exact types)."""

    value: Array
    bound: Array

    def __getitem__(self, part: slice | Array) -> Reference:
        return Reference(self.value[part], self.bound[part])

    def error(self, got: Array) -> str:
        """Why `got` is wrong, or an empty string."""
        if got.shape != self.value.shape:
            return f"shape {got.shape} instead of {self.value.shape}"
        if got.dtype.kind in "biu":
            wrong = got != self.value
        else:
            found = exact(str(got.dtype), got)
            both = np.isnan(found) & np.isnan(self.value)
            with np.errstate(invalid="ignore"):
                wrong = ~(both | (found == self.value) | (np.abs(found - self.value) <= self.bound))
        if not wrong.any():
            return ""
        at = int(np.flatnonzero(wrong)[0])
        return f"{int(wrong.sum())} wrong, first [{at}]: {got[at]} instead of {self.value[at]} +- {self.bound[at]}"


def reference(name: str, op: str, xs: Array, prescale: float = 1.0, postscale: float = 1.0) -> Reference:
    """The reduction of the contributions xs of shape (n, count)."""
    n = len(xs)
    if name in REALS:
        return _real(name, op, xs, prescale, postscale)
    if op == "avg":  # sums of 64 bits, rounded toward zero
        total = xs.sum(axis=0, dtype=object)
        value = np.array([abs(int(v)) // n * (1 if v >= 0 else -1) for v in total], dtype=xs.dtype)
    else:
        value = _integral(op, xs)
    return Reference(value, np.zeros(value.shape))


def _integral(op: str, xs: Array) -> Array:
    if op in ("land", "lor"):
        truth: Array = (xs != 0).all(axis=0) if op == "land" else (xs != 0).any(axis=0)
        return truth.astype(xs.dtype)
    function = {
        "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
        "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
    }[op]  # fmt: skip
    reduced: Array = function.reduce(xs, axis=0, dtype=xs.dtype)
    return reduced


def unit_roundoff(name: str) -> tuple[np.longdouble, np.longdouble]:
    """(of storage, of computation) of an element; a type that computes in its own precision rounds once, not twice."""
    if name in NARROW:
        return np.longdouble(finfo(numpy_type(name)).eps) / 2, np.longdouble(2.0**-24)
    return np.longdouble(np.finfo(name).eps) / 2, np.longdouble(0)


def _real(name: str, op: str, xs: Array, prescale: float, postscale: float) -> Reference:
    n = len(xs)
    wide = exact(name, xs) * np.longdouble(prescale)
    nothing = np.zeros(wide.shape[1:], np.longdouble)
    if op in ("land", "lor"):
        return Reference(_integral(op, wide), nothing)
    store, compute = unit_roundoff(name)
    rounding = (1 + store) * (1 + compute)
    scalings = (op == "avg") + (prescale != 1.0) + (postscale != 1.0)
    extra = rounding * (1 + compute + store) ** scalings - 1  # of the scaling and the final store
    if op in ("min", "max"):
        with np.errstate(invalid="ignore"):
            value = (np.minimum if op == "min" else np.maximum).reduce(wide, axis=0) * np.longdouble(postscale)
        return Reference(value, np.abs(value) * extra if scalings else nothing)
    if op == "prod":
        value = wide.prod(axis=0) * np.longdouble(postscale)
        spread = np.abs(value) * ((rounding * (1 + store)) ** (2 * n) - 1 if prescale != 1 else rounding ** (n - 1) - 1)
    else:
        factor = np.longdouble(postscale) / (n if op == "avg" else 1)
        value = wide.sum(axis=0) * factor
        spread = np.abs(wide).sum(axis=0) * abs(factor) * (rounding ** (n - 1 + (prescale != 1.0)) - 1)
    if prescale == 1.0:
        spread[::2] = 0  # see contributions(): these are exact before the scaling
    if scalings:
        smallest = float(finfo(numpy_type(name)).smallest_subnormal)
        spread = spread + np.abs(value) * extra + smallest / 2
    return Reference(value, spread)


def in_rank_order(name: str, op: str, xs: Array, prescale: float = 1.0, postscale: float = 1.0) -> Array:
    """The exact bits of a reduction of real numbers in rank order, in one step: ((x0 + x1) + x2) + ..., then scaled."""
    n, kind = len(xs), numpy_type(name)
    scaled = (op == "avg" and n > 1) or prescale != 1.0 or postscale != 1.0
    if n == 1 and not scaled and op not in ("land", "lor"):
        return np.array(xs[0])
    compute = np.float64 if name == "float64" else np.float32
    with np.errstate(all="ignore"):
        acc: Array = _first(op, xs[0].astype(compute) * compute(prescale))
        for x in xs[1:]:
            acc = _apply(op, acc, x.astype(compute) * compute(prescale))
        if scaled:
            acc = acc / compute(n if op == "avg" else 1) * compute(postscale)
        return acc.astype(kind)


def _first(op: str, a: Array) -> Array:
    return (a != 0).astype(a.dtype) if op in ("land", "lor") else a


def _apply(op: str, a: Array, b: Array) -> Array:
    if op in ("sum", "avg"):
        return a + b
    if op == "prod":
        return a * b
    if op == "min":
        return np.where((a < b) | np.isnan(a), a, b)
    if op == "max":
        return np.where((a > b) | np.isnan(a), a, b)
    truth: Array = (a != 0) & (b != 0) if op == "land" else (a != 0) | (b != 0)
    return truth.astype(a.dtype)


def same_bits(a: Array, b: Array) -> bool:
    """Equal byte for byte, except that all NaNs are equal."""
    if a.tobytes() == b.tobytes():
        return bool(a.shape == b.shape)
    if a.dtype.kind in "biu" or a.shape != b.shape:
        return False
    a, b = a.copy(), b.copy()
    for array, nan in ((a, np.isnan(a)), (b, np.isnan(b))):
        array[nan] = np.nan
    return a.tobytes() == b.tobytes()
