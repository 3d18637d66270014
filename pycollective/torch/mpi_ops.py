"""The collectives of `horovod.torch`, with its names, arguments and semantics.

Every operation exists as NAME_async, which returns a handle, and as NAME, which waits and is differentiable; operations
that can work in place also exist as NAME_async_ and NAME_. Common arguments:

    tensor, tensors: CPU or CUDA tensors of any shape; bool, 8- to 64-bit integers, float16, bfloat16, float32, float64.
            In-place forms need contiguous tensors.
    name: identifies the operation on all ranks; by default numbered in call order.
    op: Average (the default), Sum, Adasum, Min, Max or Product.
    prescale_factor, postscale_factor: factors on the inputs and on the result.
    process_set: the participating ranks.

They raise ValueError if an operation of that name is in progress or arguments are invalid, RuntimeError on every rank
if the ranks' calls do not match, HorovodInternalError if a rank has been lost. Semantics and signatures:
https://horovod.readthedocs.io/en/stable/api.html#module-horovod.torch
"""

from __future__ import annotations

from pycollective.hvd import interface as _interface
from pycollective.hvd.arguments import get_average_backwards_compatibility_fun
from pycollective.hvd.handles import poll, synchronize
from pycollective.hvd.horovod_basics import HorovodBasics
from pycollective.hvd.interface import *  # noqa: F403
from pycollective.torch.compression import Compression
from pycollective.torch.hvd import data_movement as _data_movement
from pycollective.torch.hvd import reductions as _reductions
from pycollective.torch.hvd.data_movement import *  # noqa: F403
from pycollective.torch.hvd.reductions import *  # noqa: F403

__all__ = [
    *_interface.__all__,
    *_data_movement.__all__,
    *_reductions.__all__,
    "Compression",
    "poll",
    "synchronize",
]


_basics = HorovodBasics()
"""Scripts and Horovod's tests query process sets through it."""
handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(_basics)
