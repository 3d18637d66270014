"""Arrays of many shapes in one flat buffer, so that one collective serves them all."""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from pycollective.comm import arrays
from pycollective.optim.objects import require_same

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

_NEEDED = ("empty", "from_dlpack", "reshape", "zeros_like")
"""All that is asked of a namespace here and in `sgd`."""


def namespace(x: Any) -> Any:
    """The functions that go with an array: its own array-API namespace, else the package that it comes from.

    The second serves libraries from before the standard (NumPy 1) or beside it (torch), which have the few
    functions used here under the same names.

    Raises:
        TypeError: not an array.
    """
    own = getattr(x, "__array_namespace__", None)
    xp = own() if own else sys.modules.get(type(x).__module__.partition(".")[0])
    if not hasattr(x, "dtype") or not all(hasattr(xp, name) for name in _NEEDED):
        raise TypeError(f"{type(x).__name__} is no array of a library that follows the array API standard")
    return xp


class Fused:
    """Room for arrays like the given ones, in one flat window for each element type.

    A collective on the windows serves all arrays at once and copies nothing. With a topology that reduces in
    rank order fusion changes no bits: each element is reduced by itself, wherever in a buffer it lies.

    Attributes:
        views: the arrays' room under their names, in their shapes and dtypes; part of the buffers.
        buffers: the flat arrays, 1-d, one for each element type.
    """

    def __init__(self, like: Mapping[Hashable, Any], comm: Communicator) -> None:
        """Collective.

        Args:
            like: name -> array of any shape with real floating-point elements, the same on all ranks.
            comm: the communicator of all calls.

        Raises:
            TypeError: no array, memory of another device, or elements that are not floating-point.
            MismatchError: names, shapes or dtypes differ between ranks.
        """
        self._comm = comm
        groups: dict[Any, list[Hashable]] = {}
        lines = []
        for name, array in like.items():
            element = _element_type(name, array)
            groups.setdefault((namespace(array), element), []).append(name)
            lines.append(f"{name!r}: {element} {tuple(array.shape)}")
        require_same("\n".join(lines), "parameters", comm)
        self.buffers: list[Any] = []
        self.views: dict[Hashable, Any] = dict.fromkeys(like)  # in the order of `like`
        for (xp, element), names in groups.items():
            self._lay_out(xp, element, {name: like[name] for name in names})

    def _lay_out(self, xp: Any, element: str, like: dict[Hashable, Any]) -> None:
        """Make one buffer and cut it into views."""
        sizes = [math.prod(array.shape) for array in like.values()]
        flat = self._window(xp, sum(sizes), element, next(iter(like.values())).dtype)
        self.buffers.append(flat)
        start = 0
        for (name, array), size in zip(like.items(), sizes, strict=True):
            # Of a contiguous slice, hence a view and no copy.
            self.views[name] = xp.reshape(flat[start : start + size], tuple(array.shape))
            start += size

    def _window(self, xp: Any, count: int, element: str, dtype: Any) -> Any:
        """A flat array of library xp over a window, or beside one where it cannot look into NumPy's memory."""
        window = self._comm.empty(count, element)
        if namespace(window) is xp:
            return window
        try:
            return xp.from_dlpack(window)
        except BufferError:  # NumPy exports no bfloat16 and no float8; the collectives stage this one
            return xp.empty(count, dtype=dtype)

    def average(self, topology: Any) -> None:
        """Collective: replace every element by its mean over the ranks."""
        for flat in self.buffers:
            self._comm.allreduce(flat, out=flat, op="avg", topology=topology)

    def broadcast(self, values: Mapping[Hashable, Any], root: int) -> None:
        """Collective: overwrite `values` on every rank by the root's, by way of the buffers."""
        if self._comm.rank == root:
            copy_into(self.views, values)
        for flat in self.buffers:
            self._comm.broadcast(flat, root, out=flat)
        if self._comm.rank != root:
            copy_into(values, self.views)


def copy_into(target: Mapping[Hashable, Any], source: Mapping[Hashable, Any]) -> None:
    """Overwrite the arrays of `target` by those of the same names in `source`.

    Raises:
        ValueError: names or shapes differ. TypeError: dtypes differ. Nothing has been written then.
    """
    if target.keys() != source.keys():
        odd = ", ".join(sorted(map(repr, target.keys() ^ source.keys())))
        raise ValueError(f"not the names of the parameters: {odd}")
    for name, array in target.items():
        _check(name, source[name], array)
    for name, array in target.items():
        if source[name] is not array:
            array[...] = source[name]


def _check(name: Hashable, value: Any, wanted: Any) -> None:
    if tuple(value.shape) != tuple(wanted.shape):
        raise ValueError(f"{name!r} has shape {tuple(value.shape)}, its parameter {tuple(wanted.shape)}")
    if value.dtype != wanted.dtype:
        raise TypeError(f"{name!r} has dtype {value.dtype}, its parameter {wanted.dtype}")


def _element_type(name: Hashable, array: Any) -> str:
    namespace(array)
    element = str(arrays.readable(array, repr(name)).dtype)
    if "float" not in element:
        raise TypeError(f"{name!r} has dtype {element}; only floating-point parameters can be trained")
    return element
