"""Arrays of any library in the core's form: NumPy as it is, everything else through DLPack, without a copy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from pycollective import _core, checks
from pycollective.dtypes import DTYPES

_CUDA_DEVICES = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged
_PLAIN = (np.ndarray, np.memmap)
"""Types of NumPy arrays that carry no meaning beyond their elements."""


def strided(x: Any, what: str = "x") -> Any:
    """An input as it is, whatever its strides. Its content is not read: an earlier call may still write to it.

    Args:
        x: NumPy array, a Python or NumPy scalar or sequence of numbers, or anything with __dlpack__ on the CPU, which
            becomes a `_core.HostBuffer` over its own memory.

    Raises:
        TypeError: not an array, a subclass of numpy.ndarray (see `plain`), memory of another device, or an element type
            that no collective takes.
    """
    if type(x) is np.ndarray or isinstance(x, _core.HostBuffer):
        return x
    if isinstance(x, np.generic):  # a scalar; those of ml_dtypes offer a DLPack export that fails
        return np.asarray(x)
    if isinstance(x, np.ndarray):
        return plain(x, what)
    if hasattr(x, "__dlpack__"):
        return _buffer(x.resolve_conj().resolve_neg() if is_lazy_view(x) else x, what, True)
    array = _converted(x, what)
    if _core.dtype_name(array.dtype) is None:
        raise TypeError(f"{what} is no array that a collective takes: {checks.shown(x)}")
    return array


def adapted(x: Any, out: Any, shape: tuple[int, ...] | None) -> tuple[Any, Any, Any] | None:
    """A call's arrays in CPU memory: its input, its output, and its result; None if they are in GPU memory.

    Args:
        out: None: to be made, or not needed. shape: of the result; None if this rank gets none.

    Raises:
        TypeError, ValueError: as `strided` and `writable`.
    """
    if on_device(x) or on_device(out):
        return None
    if out is None and shape is not None:
        if x is None:
            raise TypeError("x is missing")
        out = new_like(x, shape)
    return (
        None if x is None else strided(x),  # packed when the call starts
        None if out is None else writable(out),
        None if shape is None else out,
    )


def readable(x: Any, what: str = "x") -> Any:
    """An input in a form that the core can read immediately: what `strided` returns or raises, or a contiguous copy."""
    found = strided(x, what)
    if isinstance(found, _core.HostBuffer):
        return found if found.contiguous else np.ascontiguousarray(found.array(numpy_dtype(found.dtype)))
    return found if found.flags.c_contiguous else np.ascontiguousarray(found)


def plain(array: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    """The array as an ndarray over the same memory.

    TypeError for a subclass with a meaning that a collective would silently drop: the mask of a masked array, the unit
    of a quantity, the products of a numpy.matrix.
    """
    if type(array) not in _PLAIN:
        kind = f"{type(array).__module__}.{type(array).__qualname__}"
        hint = "its mask would be lost; " if isinstance(array, np.ma.MaskedArray) else ""
        raise TypeError(
            f"{what} is a {kind}, a subclass of numpy.ndarray: {hint}pass numpy.asarray({what}) for its elements alone"
        )
    return np.asarray(array)


def writable(out: Any) -> Any:
    """An output in a form that the core can write: always its own memory, never a copy.

    Raises:
        TypeError: not an array, a subclass of numpy.ndarray (see `plain`), or memory of another device.
        ValueError: read-only, not C-contiguous (a copy would be written and lost), or a tensor with the
            negative or conjugate bit.
    """
    if isinstance(out, np.ndarray):
        buffer: Any = out if type(out) is np.ndarray else plain(out, "out")
        contiguous, may_write = out.flags.c_contiguous, out.flags.writeable
    elif isinstance(out, _core.HostBuffer) or hasattr(out, "__dlpack__"):
        if is_lazy_view(out):
            raise ValueError(f"out is a tensor with its {lazy_bit(out)}")
        buffer = out if isinstance(out, _core.HostBuffer) else _buffer(out, "out", False)
        contiguous, may_write = True, buffer.writable
    else:
        raise TypeError(f"out is no array: {type(out).__name__}")
    if not contiguous:
        raise ValueError(f"out is not C-contiguous (strides {out.strides}): pass a contiguous array")
    if not may_write:
        raise ValueError("out is read-only")
    return buffer


def flat(buffer: Any) -> Any:
    """The elements of a result of `readable` or `writable`, as a flat NumPy array over the same memory."""
    array = buffer if isinstance(buffer, np.ndarray) else buffer.array(numpy_dtype(buffer.dtype))
    return array.reshape(-1)


def torch_of(x: Any) -> Any:
    """torch, if x is one of its tensors; else None."""
    return package_of(x, "torch", "Tensor")


def package_of(x: Any, name: str, kind: str) -> Any:
    """The package of this name, if x is an instance of its class `kind`; else None.

    Also None while another thread imports the package: it is known by its name before it has its classes.
    """
    package = sys.modules.get(name)
    return package if isinstance(x, getattr(package, kind, ())) else None


def on_device(x: Any) -> bool:
    """Return whether an array reports memory of a CUDA device. Host arrays are recognized first, by type."""
    if x is None or isinstance(x, (np.ndarray, np.generic, _core.HostBuffer)):
        return False
    if torch_of(x) is not None:
        return bool(x.is_cuda)
    if hasattr(x, "__cuda_array_interface__"):
        return True
    if not hasattr(x, "__dlpack_device__"):
        return hasattr(x, "__dlpack__") and _layout(x)[0] in _CUDA_DEVICES
    device = x.__dlpack_device__()
    try:
        return int(device[0]) in _CUDA_DEVICES
    except Exception:
        raise TypeError(
            f"__dlpack_device__ of {checks.shown(x)} must return (type, number), not {checks.shown(device)}"
        ) from None


def is_lazy_view(x: Any) -> bool:
    """Return whether a tensor has its conjugate bit set, or its negative bit, as torch.imag of a conjugate.

    Its elements are others than those in its memory. DLPack exports neither bit.
    """
    return torch_of(x) is not None and bool(x.is_neg() or x.is_conj())


def lazy_bit(x: Any) -> str:
    """Which bit a lazy view has, and the remedy, for errors."""
    return "conjugate bit set: pass x.resolve_conj()" if x.is_conj() else "negative bit set: pass x.resolve_neg()"


def _converted(x: Any, what: str) -> np.ndarray[Any, Any]:
    """NumPy's conversion of any object that is not an array of a known library; errors name the argument."""
    try:
        return np.asarray(x)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{what} is no array: {checks.shown(x)}: {error}") from error


def _layout(x: Any) -> tuple[int, tuple[int, ...]]:
    """The DLPack type of the device and the shape of an array that may have only __dlpack__."""
    try:
        found: tuple[int, tuple[int, ...]] = _core.dlpack_layout(x)
    except (TypeError, ValueError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"{checks.shown(x)}: {error}") from error
    return found


def _buffer(x: Any, what: str, strided: bool) -> Any:
    """x's own memory, through DLPack. Errors, also those of x's library, name the argument."""
    try:
        return _core.HostBuffer(x, strided)
    except (TypeError, ValueError, BufferError) as error:  # the last by the standard: the array cannot be exported
        kind = next(kind for kind in (TypeError, ValueError, BufferError) if isinstance(error, kind))
        raise kind(f"{what} ({checks.shown(x)}): {error}") from error


def shape_of(x: Any) -> tuple[int, ...]:
    """The shape of any array or number."""
    if type(x) is np.ndarray:
        known: tuple[int, ...] = x.shape
        return known
    shape = getattr(x, "shape", None)
    if shape is None and hasattr(x, "__dlpack__"):
        return _layout(x)[1]
    if shape is None:
        converted: tuple[int, ...] = _converted(x, "x").shape
        return converted
    try:
        return tuple(int(extent) for extent in shape)
    except Exception:
        checks.refuse_type(f"the shape of {type(x).__name__}", "a sequence of integers", shape)


def new_like(x: Any, shape: tuple[int, ...]) -> Any:
    """An uninitialised array of x's library and type.

    Immutable libraries (JAX) get a NumPy array, which they import through DLPack.
    """
    if isinstance(x, (np.ndarray, np.generic)):
        return np.empty(shape, x.dtype)
    torch = torch_of(x)
    if torch is not None:
        return torch.empty(shape, dtype=x.dtype, device="cpu")  # also where torch's default is another one
    namespace = getattr(x, "__array_namespace__", None)
    if namespace is not None:
        made = namespace().empty(shape, dtype=x.dtype)
        if not hasattr(made, "__dlpack__") or _core.HostBuffer(made).writable:
            return made
    if hasattr(x, "__dlpack__"):
        return np.empty(shape, numpy_dtype(_buffer(x, "x", True).dtype))
    return np.empty(shape, np.asarray(x).dtype)


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """A numpy.dtype from any name or type of one, including "bfloat16", ml_dtypes' 8-bit floats and torch's types.

    TypeError for one that no collective takes.
    """
    try:
        name = str(dtype).removeprefix("torch.")  # an integer may have too many digits
        small = name in DTYPES and DTYPES[name].extended
        found: np.dtype[Any] = np.dtype(None if small else name if type(dtype).__module__ == "torch" else dtype)
    except Exception:
        checks.refuse_type("dtype", "an element type", dtype)
    if small:
        import ml_dtypes

        found = np.dtype(getattr(ml_dtypes, name))
    if _core.dtype_name(found) is None:
        raise TypeError(f"dtype: no collective takes element type {found}")
    return found
