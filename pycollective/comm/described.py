"""Signatures and docstrings of a communicator's methods, as help(), inspect and notebooks show them.

Methods take the shared keyword arguments as `**options`, which costs nothing in a call without any. Type checkers read
from the annotation which ones there are; here the same annotation gives the function its signature, and the docstring
of the options is merged into its `Args`. A nonblocking form has the blocking one's, except for `Returns`.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any, ParamSpec, TypeAlias, TypeVar

from pycollective.comm.arguments.options import DEFAULTS, Calling, Moving, Options
from pycollective.comm.handle import Handle

_Class = TypeVar("_Class", bound=type)
_P = ParamSpec("_P")
_Result = TypeVar("_Result")
_SECTION = re.compile(r"^(Args|Returns|Raises):\n((?: +.*\n|\n(?= ))*)", re.MULTILINE)
_Kinds: TypeAlias = tuple[type, ...]
"""A class of options, and those that it inherits from."""
_KINDS: dict[str, _Kinds] = {
    "Unpack[Calling]": (Calling,),
    "Unpack[Moving]": (Moving, Calling),
    "Unpack[Options]": (Options, Moving, Calling),
}


class _Annotation(str):
    """The text of an annotation, shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


class Text:
    """A docstring in parts: `summary`, the text after it, and the sections (Args, Returns, Raises) by name.

    `documentation`: None where Python has dropped docstrings (`python -OO`).
    """

    def __init__(self, documentation: str | None) -> None:
        text = inspect.cleandoc(documentation or "") + "\n"
        self.sections = {found[1]: textwrap.dedent(found[2]).strip("\n") for found in _SECTION.finditer(text)}
        self.summary, _, body = _SECTION.sub("", text).partition("\n")
        self.body = body.strip("\n")

    def add(self, section: str, *lines: str) -> None:
        """Append lines to a section."""
        self.sections[section] = "\n".join(part for part in (self.sections.get(section, ""), *lines) if part)

    def __str__(self) -> str:
        parts = [self.summary, self.body]
        for name in ("Args", "Returns", "Raises"):
            if name in self.sections:
                parts.append(f"{name}:\n" + textwrap.indent(self.sections[name], "    "))
        return "\n\n".join(part for part in parts if part)


def described(cls: _Class) -> _Class:
    """Give the methods of a class, and their overloads, full signatures and docstrings."""
    for method in vars(cls).values():
        if inspect.isfunction(method) and not method.__name__.startswith("_"):
            signature, taken = _expanded(method)
            method.__signature__ = signature  # type: ignore[attr-defined]
            if taken:
                text = Text(method.__doc__)
                text.add("Args", *_lines(taken))
                text.add("Raises", "Exception: as every collective, see Communicator.")
                method.__doc__ = str(text)
    return cls


def nonblocking(method: Callable[_P, _Result]) -> Callable[_P, Handle[_Result]]:
    """The nonblocking form of a described method: a function of the same parameters, to be defined by the core."""
    blocking: Any = method
    name = blocking.__name__
    form: Any = FunctionType(blocking.__code__, blocking.__globals__, f"i{name}", blocking.__defaults__)
    form.__kwdefaults__, form.__signature__ = blocking.__kwdefaults__, inspect.signature(blocking)
    form.__qualname__ = f"Nonblocking.i{name}"
    when = "at once"
    if any(parameter.endswith("counts") for parameter in form.__signature__.parameters):
        when = "after an exchange of counts"
    text = Text(blocking.__doc__)
    text.body = f"`{name}`: {text.summary}" + (f"\n\n{text.body}" if text.body else "")
    text.summary = f"Nonblocking `{name}`: same arguments; a Handle {when}, for what it returns."
    returned = text.sections.get("Returns", "None")
    text.sections["Returns"] = f"a Handle immediately. Its result() waits and then returns:\n{returned}"
    form.__doc__ = str(text)
    made: Callable[_P, Handle[_Result]] = form
    return made


def _expanded(method: Callable[..., Any]) -> tuple[inspect.Signature, _Kinds]:
    """The signature with the options expanded, and the classes of the options."""
    signature = inspect.signature(method)
    parameters: list[inspect.Parameter] = []
    taken: _Kinds = ()
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            taken = _KINDS[parameter.annotation]
            parameters += _parameters(taken[0])
        else:
            parameters.append(parameter.replace(annotation=_shown(parameter.annotation)))
    result = _shown(signature.return_annotation)
    return signature.replace(parameters=parameters, return_annotation=result), taken


def _shown(annotation: Any) -> Any:
    return _Annotation(annotation) if isinstance(annotation, str) else annotation


def _parameters(taken: type) -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, kind, default=DEFAULTS[name]) for name in DEFAULTS if name in taken.__annotations__]


def _lines(taken: _Kinds) -> list[str]:
    """The docstrings of the options, as lines for Args."""
    texts = (inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2] for kind in taken)
    return [textwrap.dedent(text).rstrip() for text in texts]
