"""TensorFlow's tensors as NumPy arrays and back, without copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from pycollective import checks
from pycollective.hvd import result_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

try:  # what tf.custom_gradient asks, too late to save its own cost
    from tensorflow.python.eager.record import could_possibly_record as _could_possibly_record
except ImportError:

    def _could_possibly_record() -> bool:
        return True


could_be_recorded: Callable[[], bool] = _could_possibly_record
"""Whether a tape might record what is executed eagerly: only then gradients have to be defined."""

EagerTensor: type = tf.__internal__.EagerTensor
_from_dlpack = tf.experimental.dlpack.from_dlpack
_NATIVE = "biufc"
"""Kinds of element types that NumPy itself has; others, such as bfloat16, it does not pass through DLPack."""
_REFUSED = (tf.string, tf.resource, tf.variant)


def as_tensor(value: Any) -> tf.Tensor:
    """A dense tensor that can be sent.

    Raises:
        TypeError: strings, sparse or ragged tensors, Keras's symbolic tensors, or no tensor at all.
    """
    if isinstance(value, (tf.IndexedSlices, tf.SparseTensor, tf.RaggedTensor)):
        checks.refuse_type("tensor", "a dense tensor", type(value).__name__)
    tensor = value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)
    if tensor.dtype in _REFUSED:
        checks.refuse_type("tensor", "a tensor of numbers or truth values", f"one of {tensor.dtype.name}")
    return tensor


def several(tensors: Any) -> list[Any]:
    """The tensors of a grouped operation.

    Raises:
        TypeError: not a sequence of tensors.
    """
    if isinstance(tensors, (tf.Tensor, tf.Variable, tf.IndexedSlices)):
        checks.refuse_type("tensors", "a list or tuple of tensors", tensors)
    return list(tensors) if isinstance(tensors, (list, tuple)) else checks.items(tensors, "tensors", "tensors")


def as_array(tensor: tf.Tensor) -> NDArray[Any]:
    """The memory of an eager tensor, not to be written.

    Raises:
        TypeError: a symbolic tensor: it has no value outside the function in which it was made.
    """
    try:
        return np.asarray(tensor)
    except ValueError:  # a scalar: NumPy wants an array
        return np.asarray(tensor.numpy())
    except NotImplementedError:
        checks.refuse_type("tensor", "one with a value", f"{tensor!r}, which is symbolic: use it in its own function")


def as_eager(array: NDArray[Any]) -> tf.Tensor:
    """A tensor that shares the array's memory, or has a copy where TensorFlow cannot use it.

    It ends the process if it is given unaligned memory.
    """
    if array.__array_interface__["data"][0] % result_memory.ALIGNMENT or not array.flags.c_contiguous:
        return tf.convert_to_tensor(array)
    if array.dtype.kind in _NATIVE:
        return _shared(array)
    if array.dtype.itemsize > 2:
        return tf.convert_to_tensor(array)
    bits = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
    return tf.bitcast(_shared(bits), tf.as_dtype(array.dtype))


def _shared(array: Any) -> tf.Tensor:
    return _from_dlpack(array.__dlpack__())


def as_result(array: NDArray[Any]) -> tf.Tensor:
    """Make a tensor of an array of result_memory."""
    return _shared(array) if array.dtype.kind in _NATIVE else as_eager(array)


class EagerResults:
    """Allocates results, as graphs do."""

    def __init__(self, dtypes: Sequence[Any]) -> None:
        """`dtypes`: NumPy's, of the results."""
        self._dtypes = dtypes
        self._arrays: list[Any] = [None] * len(dtypes)

    def output(self, index: int, shape: Sequence[int]) -> NDArray[Any]:
        """The memory of a result."""
        array = result_memory.empty(shape, self._dtypes[index])
        self._arrays[index] = array
        return array

    def tensors(self, late: Sequence[Any]) -> list[tf.Tensor]:
        """The results; `late`: those that were not written to `output`, if any."""
        if late:
            return list(map(as_eager, late))
        return list(map(as_result, self._arrays))
