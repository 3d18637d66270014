"""The public names of the package: those that the reference documents and the tests check.

All names in `__all__` of the modules below, with the public methods and properties of classes. Modules that need torch
are excluded: their interface is that of Horovod or torch.distributed, and documented there.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

MODULES = (
    "pycollective",
    "pycollective.typing",
    "pycollective.graphs",
    "pycollective.schedule",
    "pycollective.schedule.drawing",
    "pycollective.optim",
    "pycollective.optim.schedules",
)


NOT_CONSTRUCTED = {"pycollective.Communicator", "pycollective.Handle", "pycollective.Explanation"}


@dataclass(frozen=True)
class Name:
    """A public name.

    Attributes:
        module: the module to import it from.
        path: the name in that module; "Class.member" for a member.
        value: the object; for a property the property itself.
    """

    module: str
    path: str
    value: Any

    @property
    def full(self) -> str:
        """The name as written after `import`."""
        return f"{self.module}.{self.path}"

    @property
    def kind(self) -> str:
        """One of "class", "error", "function", "property" or "constant"."""
        if isinstance(self.value, type):
            return "error" if issubclass(self.value, Exception) else "class"
        if isinstance(self.value, (property, functools.cached_property)):
            return "property"
        return "function" if inspect.isroutine(self.value) else "constant"

    @property
    def doc(self) -> str:
        """Its docstring, for a class with that of its constructor; empty if it has none."""
        if self.kind == "constant":
            return ""
        own = inspect.getdoc(self.value) or ""
        constructor = vars(self.value).get("__init__") if self.kind == "class" else None
        return "\n\n".join(part for part in (own, getattr(constructor, "__doc__", None)) if part)

    @property
    def callable(self) -> bool:
        """Whether users call it: some classes are created by functions only."""
        if self.kind == "class":
            made = issubclass(self.value, Enum) or getattr(self.value, "_is_protocol", False)
            return not made and self.full not in NOT_CONSTRUCTED
        return self.kind == "function"

    def signature(self) -> inspect.Signature:
        """For a class that of its constructor, for a method without self.

        Raises:
            ValueError, TypeError: it has none.
        """
        found = inspect.signature(self.value)
        parameters = [p for p in found.parameters.values() if p.name != "self"]
        return found.replace(parameters=parameters)


def public(module: str) -> Iterator[Name]:
    """The public names of a module, in the order of its `__all__`; members follow their class."""
    found = importlib.import_module(module)
    for name in found.__all__:
        value = getattr(found, name)
        if inspect.ismodule(value):
            continue
        yield Name(module, name, value)
        if isinstance(value, type) and not issubclass(value, Exception):
            for member in sorted(_members(value)):
                yield Name(module, f"{name}.{member}", inspect.getattr_static(value, member))


def _members(cls: type) -> set[str]:
    """Methods and properties that are defined in the class or in one of our base classes."""
    return {
        name
        for base in cls.__mro__
        if base.__module__.startswith("pycollective")
        for name, member in vars(base).items()
        if not name.startswith("_")
        and hasattr(base, name)  # other libraries' names raise an error with ours
        and (inspect.isroutine(member) or isinstance(member, (property, staticmethod)))
    }
