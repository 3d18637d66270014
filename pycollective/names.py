"""The nearest of the known names, for messages about one that is not known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn


def meant(name: str, known: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> str:
    """`; did you mean allreduce?` for "Allreduce", "all_reduce" or "allrduce"; "" if no known name is near.

    Args:
        elsewhere: names of other libraries, and what they are called here.
    """
    import difflib  # init() does not load it

    names = {_plain(one): one for one in known}
    given = _plain(name)
    theirs = {_plain(one): ours for one, ours in (elsewhere or {}).items()}
    found = names.get(given) or names.get(_plain(theirs.get(given, name)))
    near = found or next((names[one] for one in difflib.get_close_matches(given, names, n=1)), "")
    return f"; did you mean {near}?" if near else ""


def unannotated(cls: type, name: str) -> str:
    """`; annotate it: columns: int = 4` for an attribute that is no field of a dataclass for this reason alone."""
    value = getattr(cls, name, callable)
    return "" if callable(value) else f"; annotate it: {name}: {type(value).__name__} = {value!r}"


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


class Elsewhere:
    """A name of another library as an attribute that a class lacks: the AttributeError has ours.

    `__getattr__` would answer every name, but makes each attribute and method of the class slower.
    """

    def __init__(self, name: str, ours: str) -> None:
        self._name, self._ours = name, ours

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}; did you mean {self._ours}?")


class NoAttribute(AttributeError):
    """An attribute that does not exist. Its message is made when it is read: most are only probed, as by hasattr.

    Args:
        owner: what lacks it, for the message. hint: makes the end of the message.
    """

    def __init__(self, owner: str, name: str, hint: Callable[[], str]) -> None:
        super().__init__(name=name, obj=None)
        self._owner, self._unknown, self._hint = owner, name, hint

    def __str__(self) -> str:
        hint = "" if self._unknown.startswith("_") else self._hint()
        return f"{self._owner} has no attribute {self._unknown!r}{hint}"
