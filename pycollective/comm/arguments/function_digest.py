"""A digest of what a Python function computes: equal on ranks with the same source and the same values read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np


def digest(parts: Iterable[bytes]) -> int:
    """64-bit digest of byte strings."""
    import hashlib  # the first call loads it, not init()

    hashed = hashlib.blake2b(digest_size=8)
    for part in parts:
        hashed.update(part)
    return int.from_bytes(hashed.digest(), "little")


def digest_of(function: Callable[..., Any]) -> int:
    """64-bit digest of a function: its code, and the current values that it reads from outside."""
    return digest([repr(_content(function, set())).encode()])


def _content(value: Any, seen: set[int]) -> object:
    """A value's content, without any address: equal on every rank that made it from the same source.

    For functions: the code and everything that it reads, recursively. `seen`: functions being visited.
    """
    value = getattr(value, "py_func", value)  # the function that numba compiled
    if isinstance(value, FunctionType):
        if id(value) in seen:
            return value.__qualname__
        seen.add(id(value))
        code, outside = value.__code__, value.__globals__
        read = {name: _content(outside[name], seen) for name in sorted(_globals_of(code)) if name in outside}
        cells = tuple(_content(cell.cell_contents, seen) for cell in value.__closure__ or ())
        defaults = [_content(each, seen) for each in (value.__defaults__, value.__kwdefaults__)]
        return _code_content(code), read, cells, *defaults
    if isinstance(value, functools.partial):
        return _content((value.func, value.args, value.keywords), seen)
    if isinstance(value, np.ndarray | np.generic):
        items = _content(value.tolist(), seen) if value.dtype.hasobject else value.tobytes()
        return str(value.dtype), value.shape, items
    if isinstance(value, tuple | list):
        return type(value).__name__, [_content(item, seen) for item in value]
    if isinstance(value, set | frozenset):
        return type(value).__name__, sorted(repr(_content(item, seen)) for item in value)
    if isinstance(value, Mapping):
        return type(value).__name__, [(_content(key, seen), _content(item, seen)) for key, item in value.items()]
    if isinstance(value, ModuleType | type) or callable(value):
        return getattr(value, "__module__", ""), getattr(value, "__qualname__", getattr(value, "__name__", ""))
    if repr(value) == object.__repr__(value):  # contains the object's address
        return type(value).__qualname__, _content(getattr(value, "__dict__", {}), seen)
    return type(value).__name__, repr(value)


def _globals_of(code: CodeType) -> set[str]:
    """Names of the globals that a function reads, including functions defined inside it."""
    import dis

    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_globals_of(constant) for constant in code.co_consts if isinstance(constant, CodeType)))


def _code_content(code: CodeType) -> tuple[object, ...]:
    constants = tuple(_code_content(c) if isinstance(c, CodeType) else _content(c, set()) for c in code.co_consts)
    return code.co_code, code.co_names, constants
