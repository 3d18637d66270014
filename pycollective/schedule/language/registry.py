"""The registry of topologies: registration, lookup, parameters, and loading from user files."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, TypeVar

from pycollective import checks, notebook
from pycollective.errors import ProgramError, TopologyError
from pycollective.names import meant, unannotated
from pycollective.schedule.collectives import COLLECTIVES
from pycollective.schedule.language import user_files
from pycollective.schedule.language.rank_counts import Multiple, RankCounts, declared, refusal

KiB = 1024
"""Bytes."""
MiB = 1024 * KiB
"""Bytes."""

Order = Literal["rank", "fixed", "chunk"]
ORDERS: tuple[Order, ...] = ("rank", "fixed", "chunk")

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class TopologyInfo:
    """What is known about a topology without running it: its row in the tables.

    Attributes:
        name: its registered name.
        cls: the class.
        small: messages of at most this many bytes use the `<collective>_small` variants.
        order: "rank" (every element is reduced in rank order, left to right), "fixed" (one order for all elements)
            or "chunk" (the order depends on the chunk). The verifier proves it.
        collectives: the collectives that it implements.
        doc: the first line of its documentation.
        ranks: the rule for the number of ranks; None: any.
    """

    name: str
    cls: type
    small: int
    order: Order
    collectives: tuple[str, ...]
    doc: str
    ranks: RankCounts | None = None

    def _repr_html_(self) -> str | None:
        return _shown_in_notebooks(self.cls)


_NAME = re.compile(r"[\w+-]+")  # unambiguous in name(parameter=value) and FILE.py:name
_registered: dict[str, TopologyInfo] = {}
_homes: dict[str, str] = {}  # by name: FILE:CLASS
_former: weakref.WeakSet[type] = weakref.WeakSet()  # replaced classes
_loaded = False
_loading = threading.RLock()  # of users' files: ranks may be threads, which call with the same one at once
_parsing = threading.Lock()  # threads that parse at once fail before Python 3.11.8 (cpython issue 106905)
_OWN = "pycollective.topologies"


def topology(
    name: str, *, small: int = 0, order: Order = "chunk", ranks: object = None, replace: bool = False
) -> Callable[[type[_T]], type[_T]]:
    """Register a class as the topology `name`.

    Its methods are named after collectives and take a `Program`, and `root` if the collective has one. The class
    becomes a frozen dataclass if it is not one: the field `hub: int = 0` allows `Wheel(hub=3)` and "wheel(hub=3)".
    (Write `@dataclass(frozen=True)` yourself for type checkers to know these arguments.)

    Args:
        name: the name of the topology.
        small: size in bytes up to which the `<collective>_small` variants are used.
        order: the declared order of reduction, see `TopologyInfo`; proved by the verifier.
        ranks: the supported numbers of ranks: a number, several, `multiple_of(4)`, `multiple_of("parameter")`, or a
            function of the number (or of the topology and the number) whose docstring describes the rule; None: any.
        replace: replace the topology registered under the name, if any.

    Returns:
        a class decorator.

    Raises:
        TypeError, ValueError: `ranks` is none of these.
        TopologyError: the name is taken or has invalid characters, the order is unknown, the class has no collective,
            or has its own __init__ with parameters.
    """
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise TopologyError(f"topology {checks.shown(name)}: a name is made of letters, digits, _, + and -")
    small = checks.integer(small, "small", 0)
    if not isinstance(order, str) or order not in ORDERS:
        raise TopologyError(f"topology {name!r}: order {order!r} is none of {', '.join(ORDERS)}")

    counts = declared(ranks)
    replace = checks.flag(replace, "replace")

    def register(cls: type[_T]) -> type[_T]:
        checks.instance(cls, f"what is decorated as the topology {name!r}", type, "a class")
        collectives = tuple(collective for collective in COLLECTIVES if callable(getattr(cls, collective, None)))
        if not collectives:
            raise TopologyError(f"topology {name!r} has none of the collectives {', '.join(COLLECTIVES)}")
        for collective in collectives:
            _check_parameters(cls, collective)
        made = _as_dataclass(cls)
        if isinstance(counts, Multiple):
            counts.check(name, made)
        if not hasattr(made, "_repr_html_"):
            made._repr_html_ = _shown_in_notebooks  # type: ignore[attr-defined]
        if not cls.__module__.startswith(_OWN):
            _load_own()  # otherwise the package's own names would be free until first use
        if name in _registered:
            if not replace:
                hint = "choose another name, or register with replace=True"
                raise TopologyError(f"topology {name!r} is already registered by {_homes[name]}; {hint}")
            _former.add(_registered[name].cls)
        doc = (cls.__doc__ or "").strip().partition("\n")[0]
        _registered[name] = TopologyInfo(name, made, small, order, collectives, doc, counts)
        _homes[name] = _home(made)
        return made

    return register


def _check_parameters(cls: type, collective: str) -> None:
    """Refuse a method that cannot be called with a program, and a root if the collective has one."""
    wanted = ["self", "p", *(["root"] if COLLECTIVES[collective].rooted else [])]
    for name in (collective, f"{collective}_small"):
        method = inspect.getattr_static(cls, name, None)
        if not isinstance(method, FunctionType):
            continue
        signature = inspect.signature(method)
        try:
            signature.bind(*wanted)
        except TypeError:
            code = method.__code__
            raise ProgramError(
                f"{code.co_filename}:{code.co_firstlineno}: {cls.__qualname__}.{name} takes ({', '.join(wanted)}), "
                f"not {signature}"
            ) from None


def _as_dataclass(cls: type[_T]) -> type[_T]:
    """Parameters compare and hash, since schedules are cached by them."""
    parameters = cls.__dict__.get("__dataclass_params__")
    if parameters is None:
        if "__init__" in cls.__dict__:  # its attributes would be frozen, and not compared
            raise TopologyError(f"{cls.__qualname__}: parameters are annotated fields (hub: int = 0), no __init__")
        return dataclasses.dataclass(frozen=True)(cls)
    if not parameters.frozen:
        raise TopologyError(f"{cls.__qualname__}: a topology is a frozen dataclass")
    return cls


@dataclasses.dataclass(frozen=True)
class Shown:
    """A topology that a notebook shows: its class, or an instance."""

    topology: object


def _shown_in_notebooks(topology: object) -> str | None:
    return notebook.html(Shown(topology))


def _home(cls: type) -> str:
    """Where a class is defined, as FILE:CLASS."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return f"{file or cls.__module__}:{cls.__qualname__}"


def info(topology: object) -> TopologyInfo:
    """The row of a topology.

    Args:
        topology: a name, "name(parameter=value)", a class or an instance.

    Raises:
        TopologyError: no such topology; the message suggests the nearest names.
    """
    if isinstance(topology, str):
        return _find(topology.partition("(")[0].strip())
    cls = topology if isinstance(topology, type) else type(topology)
    for row in list(_registered.values()):
        if row.cls is cls:
            return row
    if cls in _former:
        raise TopologyError(f"{cls.__qualname__} has been redefined since this instance was created: create it again")
    raise TopologyError(f"{cls.__qualname__} is not a topology: decorate it with @topology(name)")


def is_registered(topology: object) -> bool:
    """Return whether it is the class or an instance of a topology; names are looked up by `info`."""
    cls = topology if isinstance(topology, type) else type(topology)
    return any(row.cls is cls for row in list(_registered.values()))


def get(topology: object) -> Any:
    """The topology as an instance.

    Args:
        topology: a name, "wheel(hub=3)", a class, or an instance (returned as it is).

    Returns:
        an instance of the topology's class.

    Raises:
        TopologyError: no such topology (the message suggests the nearest names), or parameters that it does not have or
            that are not hashable.
    """
    row = info(topology)
    instance = topology
    if isinstance(topology, (str, type)):
        parameters = parameters_in(topology) if isinstance(topology, str) else {}
        fields = [field.name for field in dataclasses.fields(row.cls)]
        known = ", ".join(fields) or "none"
        for unknown in sorted(parameters.keys() - set(fields)):
            raise TopologyError(f"{topology!r}: {row.name} has the parameters: {known}{unannotated(row.cls, unknown)}")
        try:
            instance = row.cls(**parameters)
        except TypeError as error:
            raise TopologyError(f"{topology!r}: {error}; {row.name} has the parameters: {known}") from None
    try:
        hash(instance)
    except TypeError as error:  # schedules are cached by topology
        raise TopologyError(f"{topology!r}: {error}; parameters are numbers, strings or tuples of such") from None
    return instance


def check_ranks(topology: object, size: int) -> None:
    """Raise TopologyError if a topology does not support this number of ranks, with the nearest supported numbers."""
    rule = info(topology).ranks
    instance = get(topology)
    if rule is not None and not rule.takes(instance, size):
        raise TopologyError(refusal(label(instance), rule, instance, size))


def supports(topology: object, size: int) -> bool:
    """Return whether a topology supports this number of ranks."""
    rule = info(topology).ranks
    return rule is None or rule.takes(get(topology), size)


def takes_small(topology: object, collective: str, nbytes: int) -> bool:
    """Return whether a message of this many bytes uses the variant for small ones."""
    return nbytes <= info(topology).small and has_small(topology, collective)


def has_small(topology: object, collective: str) -> bool:
    """Return whether a topology has a variant of the collective for small messages."""
    return hasattr(topology, f"{collective}_small")


def label(topology: object) -> str:
    """The name of a topology with its non-default parameters: "wheel(hub=3)".

    Args:
        topology: as for `get`.

    Raises:
        TopologyError: see `get`.
    """
    topology = get(topology)
    given = [
        f"{field.name}={getattr(topology, field.name)!r}"
        for field in dataclasses.fields(topology)  # type: ignore[arg-type]
        if getattr(topology, field.name) != field.default
    ]
    name = info(topology).name
    return f"{name}({', '.join(given)})" if given else name


def names() -> list[str]:
    """The names of all registered topologies, sorted."""
    _load_own()
    return sorted(_registered)


def describe() -> list[TopologyInfo]:
    """One row for each topology, sorted by name: for tables in the documentation and the command line."""
    return [_registered[name] for name in names()]


def find(where: str) -> Any:
    """The topology that a text denotes: a name, "wheel(hub=3)" or "FILE.py:NAME". Raises like `get` and `load`."""
    return load(where) if ".py" in checks.text(where, "where") else get(where)


def load(where: str) -> Any:
    """The topology `NAME` of a user's file, from "FILE.py:NAME"; NAME is the registered name or the class.

    The file may import its siblings. It is run once, and again when it or one of these has been edited.

    Args:
        where: "FILE.py:NAME". Parameters may follow: "FILE.py:wheel2(hub=1)". Without ":NAME" the file must define
            exactly one topology.

    Returns:
        an instance of the topology's class.

    Raises:
        TopologyError: no such file, or no such topology in it.
    """
    checks.text(where, "where")
    path, _, name = where.rpartition(":") if ".py:" in where else (where, "", "")
    try:
        file = Path(checks.path(path, "where")).resolve()
        found_file = file.is_file()
    except OSError as error:
        raise TopologyError(f"{where!r:.100}: {error.strerror}") from None
    if not found_file:
        raise TopologyError(f"{where!r}: there is no file {path}{user_files.near_files(file)}")
    with _loading:
        _execute(file)
        rows = defined_in(file)
    wanted, bracket, rest = name.partition("(")
    found = [row for row in rows if not name or wanted in (row.name, row.cls.__name__)]
    if len(found) != 1:
        there = ", ".join(row.name for row in rows) or "no topology"
        raise TopologyError(f"{where!r}: {path} defines {there}; name one of them as FILE.py:NAME")
    return get(found[0].name + bracket + rest)


def defined_in(file: Path) -> list[TopologyInfo]:
    """The rows of the topologies that a file has registered."""
    return [row for row in list(_registered.values()) if _homes[row.name].startswith(f"{file}:")]


def _execute(file: Path) -> None:
    """Run a user's file, once until it is edited: then its topologies replace the earlier ones."""
    edited = user_files.changed(file)
    if not edited:  # redefining its classes would invalidate their instances
        return
    before = [row for path in edited for row in defined_in(path)]
    for row in before:
        del _registered[row.name]
    try:
        user_files.execute(file, edited)
    except BaseException:
        for row in before:
            _registered.setdefault(row.name, row)
        raise
    _former.update(row.cls for row in before)


def _find(name: str) -> TopologyInfo:
    if name not in _registered:
        _load_own()
    if name in _registered:
        return _registered[name]
    there = ", ".join(sorted(_registered))
    known = f"there are {there}; of a file: FILE.py:NAME"
    raise TopologyError(f"no topology is called {name!r:.80}{meant(name, _registered)} ({known})")


def _load_own() -> None:
    """Import every file of pycollective/topologies: a new topology only needs a file there."""
    global _loaded
    if _loaded:
        return
    package = importlib.import_module(_OWN)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{_OWN}.{module.name}")
    _loaded = True


def parameters_in(text: str) -> dict[str, Any]:
    """The keywords in "wheel(hub=3)"; literals only, no evaluation.

    Raises:
        TopologyError: another form.
    """
    if "(" not in text:
        return {}
    try:
        with _parsing:
            call = ast.parse("f(" + text.partition("(")[2].strip(), mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: for deeply nested text
        raise TopologyError(f"{text!r:.80}: write name(parameter=value, ...)") from None
