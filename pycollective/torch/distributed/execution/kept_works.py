"""Work objects that torch's C++ keeps longer than Python does.

When C++ calls a process group, it keeps the Python half of the returned Work. When Python passes one to C++, only the
C++ half is kept: once Python has released the Work, it has the methods of its base class, and `wait` never returns.
There is one such place, DistributedDataParallel.join(divide_by_initial_world_size=False).
"""

from __future__ import annotations

import weakref
from typing import Any

import torch.distributed as dist

_kept: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def register() -> None:
    """Make a reducer keep the complete Work that it waits for in backward, until it gets the next."""
    reducer: Any = dist.Reducer
    hand_over = reducer._set_forward_pass_work_handle

    def keep(self: Any, work: Any, *more: Any) -> None:
        _kept[self] = work
        hand_over(self, work, *more)

    reducer._set_forward_pass_work_handle = keep
