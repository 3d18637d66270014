"""Checks of arguments: each returns the value, or raises an error that states its name, its value and what is expected.

The error is a TypeError for a value of another type, else a ValueError, unless the function states otherwise.
They are called where a public function begins, and on paths sensitive to a dozen nanoseconds only after a failure.
A bool is not a number here: True as a rank or a count is a mistake that Python would not detect.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from operator import index
from typing import Any, NoReturn, TypeVar

_T = TypeVar("_T")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def shown(value: Any) -> str:
    """A value and its type for an error message, of bounded length: `'x' (str)`, `a float32 array of shape (4,)`."""
    kind = type(value).__name__
    try:
        if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type):
            return f"{kind} of shape {tuple(value.shape)!s:.60} and dtype {value.dtype!s:.40}"
    except Exception:
        return f"an object of type {kind}"
    return brief(value) if value is None or isinstance(value, type) else f"{brief(value)} ({kind})"


def brief(value: Any) -> str:
    """repr(value), of bounded length, without addresses; never fails."""
    try:
        found = _ADDRESS.sub("", repr(value))
    except Exception:  # an integer with too many digits, or a repr that raises
        return f"<{type(value).__name__}>"
    return found if len(found) <= 80 else found[:77] + "..."


def refuse_type(name: str, expected: str, value: Any) -> NoReturn:
    raise TypeError(f"{name} must be {expected}, not {shown(value)}") from None


def refuse_value(name: str, expected: str, value: Any) -> NoReturn:
    raise ValueError(f"{name} must be {expected}, not {shown(value)}") from None


def integer(value: Any, name: str, least: int | None = None, most: int | None = None) -> int:
    """An integer of any library, from `least` to `most`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)
    except Exception:  # TypeError, or any error of a foreign __index__
        refuse_type(name, _range(least, most), value)
    if (least is not None and number < least) or (most is not None and number > most):
        refuse_value(name, _range(least, most), value)
    return number


LONGEST = 1e6
"""Seconds: longer waits of sockets end here, as their clocks have no more than 24 days."""


def seconds(value: Any, name: str) -> float:
    """How long to wait for other ranks: 0 or more, at most LONGEST; infinity is allowed."""
    return min(number(value, name, 0, finite=False), LONGEST)


def number(
    value: Any,
    name: str,
    least: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
    finite: bool = True,
    nan: bool = False,
) -> float:
    """A real number of any library, as a float: at least `least`, and within (above, below).

    Infinity is out of range unless not `finite`, and NaN unless `nan`.
    """
    try:
        if isinstance(value, (bool, str, bytes, bytearray)):
            raise TypeError
        real = float(value)
    except OverflowError:
        refuse_value(name, "a number that a float can hold", value)
    except Exception:  # TypeError, or any error of a foreign __float__
        refuse_type(name, _real(least, above, below, finite), value)
    if math.isnan(real):
        if not nan:
            refuse_value(name, _real(least, above, below, finite), value)
    elif (
        (finite and math.isinf(real))
        or (least is not None and real < least)
        or (above is not None and real <= above)
        or (below is not None and real >= below)
    ):
        refuse_value(name, _real(least, above, below, finite), value)
    return real


def text(value: Any, name: str) -> str:
    """A string that can be sent: without lone surrogates."""
    if not isinstance(value, str):
        refuse_type(name, "a string", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        refuse_value(name, "a string that UTF-8 can encode", ascii(value))
    return value


def path(value: Any, name: str) -> str:
    """The path of a file."""
    try:
        made = os.fsdecode(value)
        os.fsencode(made)
    except UnicodeError:
        refuse_value(name, "a path that the file system can encode", ascii(value))
    except Exception:
        refuse_type(name, "a path (a string or os.PathLike)", value)
    if not made or "\0" in made:
        refuse_value(name, "a path, not empty and without null characters", value)
    return made


def choice(value: Any, name: str, among: Collection[Any]) -> Any:
    """One of a few values; ValueError for any other."""
    try:
        if value in among:
            return value
    except Exception:  # not hashable, or a comparison that does not return a bool
        pass
    refuse_value(name, f"one of {', '.join(map(str, among))}", value)


def items(value: Any, name: str, of: str = "values") -> list[Any]:
    """The items of a list, tuple, array or any other iterable, but not of a string or a mapping."""
    if not isinstance(value, (str, bytes, bytearray, Mapping)):
        try:
            return list(value)
        except Exception:
            pass
    refuse_type(name, f"a sequence of {of}", value)


def integers(
    value: Any, name: str, least: int | None = None, most: int | None = None, *, count: int | None = None
) -> list[int]:
    """A sequence of integers, each from `least` to `most`; `count` of them if given."""
    found = [integer(each, f"{name}[{i}]", least, most) for i, each in enumerate(items(value, name, "integers"))]
    if count is not None and len(found) != count:
        raise ValueError(f"{name} must have {count} integers, not {len(found)}: {shown(value)}")
    return found


def instance(value: _T | Any, name: str, kind: type[_T] | tuple[type, ...], expected: str) -> Any:
    """An instance of a class; `expected` describes it in the error."""
    if not isinstance(value, kind):
        refuse_type(name, expected, value)
    return value


def function(value: Any, name: str, expected: str = "a function") -> Any:
    """A callable."""
    if not callable(value):
        refuse_type(name, expected, value)
    return value


def flag(value: Any, name: str) -> bool:
    """True or False, also of another library; 0 and 1 are accepted."""
    if isinstance(value, bool):
        return value
    try:
        if value in (0, 1) and not isinstance(value, float):
            return bool(value)
    except Exception:
        pass
    refuse_type(name, "True or False", value)


def mapping(value: Any, name: str, keys: Iterable[str] = ()) -> Mapping[str, Any]:
    """A mapping with strings for keys, all of `keys` among them; KeyError if one is missing."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        refuse_type(name, "a dict with strings for keys", value)
    if missing := [key for key in keys if key not in value]:
        raise KeyError(f"{name} must have the keys {', '.join(keys)}; it lacks {', '.join(missing)}")
    return value


def _range(least: int | None, most: int | None) -> str:
    if least is None:
        return "an integer" if most is None else f"an integer of at most {brief(most)}"
    return f"an integer of at least {least}" if most is None else f"an integer from {least} to {brief(most)}"


def _real(least: float | None, above: float | None, below: float | None, finite: bool) -> str:
    bounds = (("at least", least), ("above", above), ("below", below))
    given = [f"{word} {bound:g}" for word, bound in bounds if bound is not None]
    return f"a {'finite ' if finite else ''}number{', ' if given else ''}{' and '.join(given)}"
