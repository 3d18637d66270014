"""Tensors in memory that the other ranks of the host can access."""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pycollective import _core, checks

T = TypeVar("T")
_LEAST = 64 << 10
"""Bytes of a storage that is worth a file descriptor."""
_LOG = logging.getLogger("pycollective")


def share_(target: T) -> T:
    """Move CPU tensors to memory that the other ranks of the host can access, so that calls use them in place.

        model = pycollective.torch.share_(torch.nn.parallel.DistributedDataParallel(model))

    All that refers to the tensors' storages (views, optimizers, modules) refers to the moved memory afterwards. It is
    like that of `pycollective.shared_arrays`: of this process, not of a communicator, and freed with its storage.
    Results have the same bits as without. This is not collective.

    Args:
        target: a tensor, several, or a module, of which parameters, their present gradients and buffers are moved. The
            buckets in which DistributedDataParallel reduces gradients are moved too, each when it is first reduced, by
            a communication hook. No call may be in progress on the tensors, and no other thread may use them.

    Returns:
        `target`.

    Raises:
        ValueError: nothing has been moved, because a tensor is not on the CPU, its memory is not torch's alone (but a
            file's, a NumPy array's after `numpy()` or `from_numpy`, or that of other processes too), or because the
            backend of a DistributedDataParallel is another one.
        RuntimeError: nothing has been moved, because the DistributedDataParallel has a communication hook.

    Storages of less than 64 KiB and sparse tensors stay where they are; where the system lacks memory or descriptors,
    the others stay too, with a warning. A moved storage cannot be resized or sent to another process: send a clone.
    What has its address by DLPack, which torch does not record, is left with memory that has been freed.
    """
    if isinstance(target, torch.nn.Module):
        tensors: Iterable[Any] = _tensors_of(target)
    elif isinstance(target, torch.Tensor):
        tensors = [target]
    else:
        tensors = checks.items(target, "target", "tensors")
    storages = _large_storages(tensors)
    for storage in storages:
        if problem := _held_elsewhere(storage):
            raise ValueError(f"share_: {problem}")
    for module in target.modules() if isinstance(target, torch.nn.Module) else ():
        if isinstance(module, DistributedDataParallel) and module not in _hooked:
            _hook(module)
    for storage in storages:
        _move(storage)
    return target


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    for p in module.parameters():
        yield p
        if p.grad is not None:
            yield p.grad
    yield from module.buffers()


def _large_storages(tensors: Iterable[Any]) -> list[torch.UntypedStorage]:
    """Those that have not been moved, each once."""
    found = {}
    for x in tensors:
        checks.instance(x, "target", torch.Tensor, "a module, or tensors")
        if x.layout == torch.strided:
            storage = x.untyped_storage()
            if storage.nbytes() >= _LEAST and storage._share_fd_cpu_ is not _refuse_to_send:
                found[storage._cdata] = storage
    return list(found.values())


def _held_elsewhere(storage: torch.UntypedStorage) -> str:
    """Why a storage cannot be moved; empty: it can be."""
    if storage.device.type != "cpu":
        return f"a tensor is on the device {storage.device}, not in the CPU's memory"
    if storage.is_shared() or storage.filename is not None or not storage.resizable():
        return "a tensor's memory is that of a file, a NumPy array (after numpy() or from_numpy()) or several processes"
    return ""


def _move(storage: torch.UntypedStorage) -> bool:
    """Return whether there was room."""
    nbytes, descriptor = storage.nbytes(), -1

    def provide() -> int:
        """Put the storage into a mapping; torch has one function that does this in place, with a file in /dev/shm."""
        nonlocal descriptor
        space = os.statvfs("/dev/shm")
        if space.f_bavail * space.f_frsize < nbytes:
            raise OSError(f"/dev/shm has no room for {nbytes} bytes")
        descriptor, _ = storage._share_fd_cpu_()
        # Runs when torch has dropped the last reference, before it unmaps the memory.
        weakref.finalize(storage, _core.abandon_in_heap, storage.data_ptr()).atexit = False
        storage._share_fd_cpu_ = storage._share_filename_cpu_ = _refuse_to_send
        torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()  # now it can no longer be resized
        return int(storage.data_ptr())

    try:
        if not _core.adopt_in_heap(nbytes, provide):
            raise OSError("there is no more memory to share")
    except (OSError, RuntimeError, MemoryError) as error:
        _LOG.warning("share_: a tensor of %s bytes is used as usual: %s", nbytes, error)
        return False
    with contextlib.suppress(OSError):
        os.truncate(descriptor, 0)  # nothing is mapped from this file any more, which never had a name for others
    return True


def _refuse_to_send(*_: Any) -> Any:
    raise RuntimeError("a tensor that share_ has moved cannot be shared with other processes: clone it first")


# -- DistributedDataParallel -------------------------------------------------------------------------------------------

_hooked: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


class _Reduction:
    """What the communication hook knows of its model; not copied with it, as torch does not copy hooks.

    Attributes:
        model: as a weak reference, since C++ keeps this as long as the model's reducer.
        moves: whether buckets are still moved: until one finds no room.
    """

    def __init__(self, model: DistributedDataParallel | None = None) -> None:
        self.model = None if model is None else weakref.ref(model)
        self.moves = True

    def __reduce__(self) -> Any:
        return _Reduction, ()


def _hook(model: DistributedDataParallel) -> None:
    backend = model.process_group._get_backend(torch.device("cpu"))
    if not type(backend).__module__.startswith("pycollective."):
        raise ValueError("share_: the backend of this DistributedDataParallel for CPU tensors is not pycollective")
    model.register_comm_hook(_Reduction(model), _average)
    _hooked.add(model)


def _average(state, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are strings
    """Average a bucket over the ranks as DistributedDataParallel does, with the same bits.

    Args: a _Reduction, and a torch.distributed.GradBucket; returns a future of the bucket's tensor.
    """
    model = state.model() if state.model is not None else None
    assert model is not None, "its reducer calls this"
    if model._join_config.enable and not model._divide_by_initial_world_size:
        raise RuntimeError("after share_ use join() with divide_by_initial_world_size=True: torch tells hooks no other")
    gradients, group = bucket.buffer(), model.process_group
    for storage in _large_storages([gradients]):
        if state.moves and not _held_elsewhere(storage):
            state.moves = _move(storage)
    op: Any = dist.ReduceOp.SUM
    if gradients.layout == torch.strided and gradients.itemsize >= 4:
        op = dist._make_nccl_premul_sum(1 / group.size())
    else:  # of 16 bits: rounded before the sum
        gradients.mul_(1 / group.size())
    work = dist.all_reduce(gradients, op, group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])
