"""Arrays of many shapes in one flat buffer, so that one collective handles them all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pycollective import checks
from pycollective.optim.arrays import copy_into, element_and_device, namespace
from pycollective.optim.objects import require_same

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


class Fused:
    """Storage for arrays like the given ones, in one flat window for each element type and device.

    A collective on the windows handles all arrays at once without copies. With a topology that reduces in rank order
    fusion does not change results: each element is reduced independently of its position in the buffer.

    Attributes:
        buffers: the flat arrays, 1-d, one for each element type and device.
        views: name -> its part of a buffer, in the shape and dtype of the corresponding array.
    """

    def __init__(self, like: Mapping[str, Any], comm: Communicator) -> None:
        """Collective.

        Args:
            like: name -> array of any shape with floating-point elements, the same on all ranks.
            comm: the communicator of all calls.

        Raises:
            TypeError: not an array, memory of a device that is no CUDA GPU, or elements that are not floating-point.
            MismatchError: names, shapes or dtypes differ between ranks.
        """
        self._comm = comm
        kinds = {name: _kind(name, array) for name, array in like.items()}
        places = {name: "" if device is None else " on a GPU" for name, (_, device) in kinds.items()}
        lines = (f"{name!r} of shape {tuple(like[name].shape)}, {kinds[name][0]}{places[name]}" for name in like)
        require_same("\n".join(lines), comm)
        groups: dict[Any, list[str]] = {}
        for name, array in like.items():
            groups.setdefault((namespace(array), *kinds[name]), []).append(name)
        self.buffers: list[Any] = []
        self.views: dict[str, Any] = dict.fromkeys(like)  # fixes the order of the names
        for (xp, element, device), names in groups.items():
            self._lay_out(xp, element, device, {name: like[name] for name in names})

    def _lay_out(self, xp: Any, element: str, device: int | None, like: dict[str, Any]) -> None:
        """Create one buffer and divide it into views."""
        sizes = {name: math.prod(array.shape) for name, array in like.items()}
        dtype = next(iter(like.values())).dtype
        flat = self._window(xp, sum(sizes.values()), element, device, dtype)
        self.buffers.append(flat)
        start = 0
        for name, size in sizes.items():
            # A contiguous slice: reshape returns a view without a copy.
            self.views[name] = xp.reshape(flat[start : start + size], tuple(like[name].shape))
            start += size

    def _window(self, xp: Any, count: int, element: str, device: int | None, dtype: Any) -> Any:
        """A flat array of the library xp over a window; over its own memory if it cannot wrap a window."""
        window = self._comm.empty(count, element, device=device)
        if device is None and namespace(window) is xp:
            return window
        try:
            return xp.from_dlpack(window)
        except BufferError:  # NumPy exports no bfloat16 and no float8; the collectives stage such a buffer
            return xp.empty(count, dtype=dtype)

    def average(self, topology: Any) -> None:
        """Collective: replace every element by its mean over the ranks."""
        for flat in self.buffers:
            self._comm.allreduce(flat, out=flat, op="avg", topology=topology)

    def broadcast(self, values: Mapping[str, Any], root: int) -> None:
        """Collective: overwrite `values` on every rank with the root's, through the buffers."""
        if self._comm.rank == root:
            copy_into(self.views, values)
        for flat in self.buffers:
            self._comm.broadcast(flat, root, out=flat)
        if self._comm.rank != root:
            copy_into(values, self.views)


def _kind(name: str, array: Any) -> tuple[str, int | None]:
    if not hasattr(array, "shape"):  # a number, which a collective would take
        checks.refuse_type(repr(name), "an array", array)
    element, device = element_and_device(array, repr(name))
    if "float" not in element:
        raise TypeError(f"{name!r} has dtype {element}; only floating-point parameters can be trained")
    return element, device
