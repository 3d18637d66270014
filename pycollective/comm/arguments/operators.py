"""Reduction operators: built-in ones by name, and user-defined ones compiled by numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pycollective import checks
from pycollective.comm.arguments.function_digest import digest_of
from pycollective.dtypes import DTYPES, OPERATORS
from pycollective.errors import Error
from pycollective.names import meant

NAMES = tuple(OPERATORS)
"""sum, avg, prod, ..."""
_ELSEWHERE = {"mean": "avg", "average": "avg", "add": "sum", "product": "prod", "mul": "prod", "multiply": "prod"}
_ELSEWHERE |= {"maximum": "max", "minimum": "min", "bitwiseand": "band", "bitwiseor": "bor", "bitwisexor": "bxor"}
CUSTOM = len(NAMES)
"""The core's number for a user-defined operator."""


class Resolved(NamedTuple):
    """An operator in the core's form: its number; if user-defined, a C function's address and a digest; its name."""

    number: int
    address: int
    identity: int
    name: str


class Compiled(NamedTuple):
    """An operator compiled for one element type: the C function, and a 64-bit digest of its code and what it reads."""

    function: Any
    identity: int


class Op:
    """A user-defined reduction operator.

    The function takes two elements and returns one; it must be associative, and it is called as f(accumulated, next)
    with the contributions in the topology's order (rank order with `direct`). numba compiles it once per element type
    into a C function that the executor calls per block. Created by `pycollective.op`.

    Args:
        function, name: as for `pycollective.op`.
    """

    def __init__(self, function: Callable[[Any, Any], Any], name: str | None = None) -> None:
        self.function = function
        self.name = str(getattr(function, "__name__", "op")) if name is None else checks.text(name, "name")
        code = getattr(function, "__code__", None)
        if code is None:
            checks.refuse_type("function", "a Python function of two elements", function)
        if code.co_argcount != 2:
            raise TypeError(f"function must take two elements; {self.name} takes {code.co_argcount}")
        self._compiled: dict[str, Compiled] = {}

    def __repr__(self) -> str:
        return f"pycollective.op({self.name})"

    def compiled(self, dtype: str) -> Compiled:
        """The C function `void f(T* into, const T* from, int64 count)` for an element type.

        Args:
            dtype: name of the element type T.

        Returns:
            the function, and a digest of its code.

        Raises:
            TypeError: numba cannot compile the function for this type, or it does not return an element of it.
        """
        if dtype not in self._compiled:  # numba freezes globals and closures at this moment
            self._compiled[dtype] = Compiled(_compile(self.function, self.name, dtype), digest_of(self.function))
        return self._compiled[dtype]

    def address(self, dtype: str) -> int:
        """Address of the C function; see `compiled`.

        Args:
            dtype: name of the element type.

        Returns:
            the address.
        """
        return int(self.compiled(dtype).function.address)


def op(function: Callable[[Any, Any], Any], name: str | None = None) -> Op:
    """Make a reduction operator from a Python function of two elements: `pycollective.op(lambda a, b: a * b % 7)`.

    Args:
        function: takes two elements of the array's type and returns one; compiled by numba in nopython mode.
        name: its name in errors.

    Returns:
        the operator, for the argument `op` of collectives.

    Raises:
        TypeError: not a function of two arguments. Errors that depend on the element type are raised by the call that
            uses the operator, before anything is sent.
    """
    return Op(function, name)


def resolve(operator: str | Op, dtype: str) -> Resolved:
    """The operator in the core's form; TypeError for an `Op` that cannot be compiled for `dtype`."""
    if isinstance(operator, Op):
        return Resolved(CUSTOM, operator.address(dtype), operator.compiled(dtype).identity, operator.name)
    if not isinstance(operator, str):
        raise TypeError(f"op must be {', '.join(NAMES)} or pycollective.op(function), not {type(operator).__name__}")
    return Resolved(number_of(operator), 0, 0, operator)


def number_of(operator: str) -> int:
    """The core's number of a built-in operator; ValueError if none has this name."""
    if operator not in NAMES:
        there = f"there are {', '.join(NAMES)} and pycollective.op(fn)"
        raise ValueError(f"no operator is called {operator!r}{meant(operator, NAMES, _ELSEWHERE)} ({there})")
    return NAMES.index(operator)


def _compile(function: Callable[[Any, Any], Any], name: str, dtype: str) -> Any:
    if not DTYPES[dtype].compiled:
        raise TypeError(f"operator {name}: numba does not compute with {dtype} on CPUs")
    try:
        import numba
    except ImportError as error:
        raise Error("pycollective.op needs numba: pip install numba") from error
    element = numba.boolean if dtype == "bool" else getattr(numba, dtype)
    # Division as in NumPy: an exception could not leave the C function, and the block would stay half reduced.
    scalar = numba.njit(function, error_model="numpy")
    if _raises(numba, function):
        raise TypeError(f"operator {name} can raise; a reduction cannot: return a value instead")
    try:
        scalar.compile((element, element))
    except numba.core.errors.NumbaError as error:
        raise TypeError(f"operator {name} does not compile for {dtype}: {error}") from None
    returned = scalar.overloads[(element, element)].signature.return_type
    if not _returns(numba, element, returned):
        raise TypeError(f"operator {name} returns {returned} for two {dtype}; a reduction must keep its element type")

    def block(into: Any, source: Any, count: Any) -> None:
        left = numba.carray(into, count)
        right = numba.carray(source, count)
        for i in range(count):
            left[i] = scalar(left[i], right[i])

    pointer = numba.types.CPointer(element)
    signature = numba.types.void(pointer, pointer, numba.int64)
    return numba.cfunc(signature, nopython=True, error_model="numpy")(block)


def _raises(numba: Any, function: Callable[[Any, Any], Any]) -> bool:
    """Return whether the function itself has a raise (or assert) statement."""
    blocks = numba.core.compiler.run_frontend(function).blocks.values()
    raising = (numba.core.ir.Raise, numba.core.ir.StaticRaise, numba.core.ir.TryRaise)
    return any(isinstance(statement, raising) for block in blocks for statement in block.body)


def _returns(numba: Any, element: Any, returned: Any) -> bool:
    """Return whether a result can be stored as an element: the same kind (numba widens small integers)."""
    for kind in (numba.types.Boolean, numba.types.Integer, numba.types.Float):
        if isinstance(element, kind):
            return isinstance(returned, kind) or isinstance(getattr(returned, "literal_type", None), kind)
    return False
