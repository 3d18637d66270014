"""The arrays that optimizers work on: by name, of any library that follows the array API standard, also on GPUs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pycollective import checks
from pycollective.comm.arguments.arrays import numpy_dtype, on_device, readable

Arrays = Mapping[str, Any] | Sequence[Any]
"""A dict of arrays by name, or a list; in a list their names are "0", "1", ..."""

_NEEDED = ("asarray", "empty", "from_dlpack", "ones_like", "reshape", "sqrt", "sum", "where", "zeros_like")
"""All functions that this package uses from a namespace; everything else is operators and indexing."""


def namespace(x: Any) -> Any:
    """The namespace of an array: its array-API namespace, else the package that it comes from.

    The latter is for libraries that predate the standard (NumPy 1) or do not follow it (torch), which have the few
    functions needed here under the same names. Source: https://data-apis.org/array-api/latest

    Raises:
        TypeError: not an array.
    """
    own = getattr(x, "__array_namespace__", None)
    xp = own() if own else sys.modules.get(type(x).__module__.partition(".")[0])
    if not hasattr(x, "dtype") or not all(hasattr(xp, name) for name in _NEEDED):
        raise TypeError(f"{type(x).__name__} is not an array of a library that follows the array API standard")
    return xp


def named(arrays: Arrays, what: str = "params") -> dict[str, Any]:
    """The arrays of a dict or list, by name; `what` describes them in errors.

    Raises:
        TypeError: another container, or a name that is not a string.
    """
    if isinstance(arrays, Mapping):
        if not all(isinstance(name, str) for name in arrays):
            raise TypeError(f"{what}: the names of parameters must be strings, not {list(arrays)!r:.80}")
        return dict(arrays)
    if isinstance(arrays, Sequence) and not isinstance(arrays, (str, bytes)):
        return {str(i): array for i, array in enumerate(arrays)}
    checks.refuse_type(what, "arrays in a dict or a list", arrays)


def contained(values: dict[str, Any], container: Arrays) -> Any:
    """The inverse of `named`: a dict or list like `container`."""
    return dict(values) if isinstance(container, Mapping) else list(values.values())


def zeros(like: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of zeros with the shapes and dtypes of the given ones."""
    return {name: namespace(array).zeros_like(array) for name, array in like.items()}


def check_fit(values: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Compare arrays with the parameters that they belong to.

    Raises:
        ValueError: other names or shapes. TypeError: other dtypes, another kind of memory, or not an array.
    """
    if values.keys() != parameters.keys():
        odd = ", ".join(sorted(map(repr, values.keys() ^ parameters.keys())))
        raise ValueError(f"names that are missing or do not belong to parameters: {odd}")
    for name, wanted in parameters.items():
        value = values[name]
        if not hasattr(value, "dtype"):
            raise TypeError(f"{name!r} is not an array but {type(value).__name__}")
        if tuple(value.shape) != tuple(wanted.shape):
            raise ValueError(f"{name!r} has shape {tuple(value.shape)}, its parameter {tuple(wanted.shape)}")
        if value.dtype != wanted.dtype:
            raise TypeError(f"{name!r} has dtype {value.dtype}, its parameter {wanted.dtype}")
        if on_device(value) != on_device(wanted):
            places = ("in CPU memory", "on a GPU")
            here, there = places[on_device(value)], places[on_device(wanted)]
            raise TypeError(f"{name!r} is {here}, its parameter {there}")


def copy_into(target: Mapping[str, Any], source: Mapping[str, Any]) -> None:
    """Overwrite the arrays of `target` with those of the same name in `source`; identical arrays are skipped.

    Raises:
        ValueError, TypeError: see `check_fit`. Nothing has been written then.
    """
    check_fit(source, target)
    for name, array in target.items():
        if source[name] is not array:
            array[...] = source[name]


def element_and_device(array: Any, what: str) -> tuple[str, int | None]:
    """The name of the element type, and the number of the GPU; None for CPU memory.

    Raises:
        TypeError: not an array, or an element type that no collective takes.
        ValueError: on a GPU, and not C-contiguous.
    """
    if not on_device(array):
        return str(readable(array, what).dtype), None
    found = _view(array, what)
    return found.dtype, found.device


def to_host(array: Any, what: str) -> np.ndarray[Any, Any]:
    """The content of a GPU array, after the work in its library's current stream.

    Raises:
        TypeError, ValueError: see `element_and_device`.
    """
    from pycollective.comm.cuda.runtime import load

    found = _view(array, what)
    host = np.empty(found.shape, numpy_dtype(found.dtype))
    if host.size:
        device_array = load().DeviceArray(found.owner, found.address, found.shape, found.dtype, found.device)
        device_array.copy_to_host(host.reshape(-1).view(np.uint8), _stream(array))
    return host


def like(values: np.ndarray[Any, Any], array: Any) -> Any:
    """NumPy's `values`, of any shape and dtype, as an array of the library and device of `array`."""
    xp = namespace(array)
    if not on_device(array):
        return values if xp is namespace(values) else xp.from_dlpack(values)
    from pycollective.comm.cuda.arrays import allocate

    made = allocate(values.shape, str(values.dtype), _view(array, "an array").device)
    if values.size:
        made.copy_from_host(np.ascontiguousarray(values).reshape(-1).view(np.uint8), _stream(array))
    return xp.from_dlpack(made)


def _view(array: Any, what: str) -> Any:
    from pycollective.comm.cuda import arrays as device_arrays  # only where there are GPU arrays
    from pycollective.comm.cuda.runtime import load

    load()  # raises if there is no GPU path
    return device_arrays.view(array, _stream(array), what)


def _stream(array: Any) -> int:
    from pycollective.comm.cuda.arrays import stream_of

    return stream_of(None, array)
