"""The backend "pycollective" of torch.distributed."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from pycollective.comm.communicator import forget_all
from pycollective.comm.host.segments import Exchange
from pycollective.torch.distributed import accelerate, kept_works, rendezvous
from pycollective.torch.distributed.group import ProcessGroup
from pycollective.torch.distributed.health import Health
from pycollective.torch.distributed.job_queue import JobQueue
from pycollective.torch.distributed.mailbox import Mailbox
from pycollective.torch.distributed.meeting import meet
from pycollective.torch.distributed.messages import Messages
from pycollective.torch.distributed.mpi_messages import MpiMessages
from pycollective.torch.distributed.options import Options

NAME = "pycollective"
_registered = False
_live: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


def register() -> None:
    """Register the backend with torch; may be called twice.

    pycollective.autoload may have registered the name before, with a creator that imports this module.
    """
    global _registered
    if _registered:
        return
    _registered = True
    rendezvous.TORCH_RENDEZVOUS._rendezvous_handlers.pop(rendezvous.SCHEME, None)  # registered by autoload
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])
    rendezvous.register()
    kept_works.register()
    accelerate.adapt()
    atexit.register(_leave)
    os.register_at_fork(after_in_child=_forget)


def create(made_by_torch: Any, options: Options | None = None) -> ProcessGroup:
    """Collective among a process group's ranks: called by torch for init_process_group and new_group.

    Args:
        made_by_torch: store, group_rank, group_size, timeout, group_id and global_ranks_in_group.
        options: the `pg_options` of the call.

    Raises:
        BootstrapError: ranks have not joined in time; names them. CommunicatorError: no memory can be shared.
        TypeError: options of another backend.
    """
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"pg_options must be this backend's Options, not {type(options).__name__}")
    store, rank = made_by_torch.store, made_by_torch.group_rank
    timeout = made_by_torch.timeout.total_seconds()
    ranks: Sequence[int] = made_by_torch.global_ranks_in_group or range(made_by_torch.group_size)
    name = str(made_by_torch.group_id)

    def mailbox(exchange: Exchange) -> Mailbox:
        return Mailbox(exchange, rank, len(ranks))

    def connect_jobs() -> Any:
        return meet(store, rank, ranks, f"process group {name}/jobs", timeout, "jobs")[0]

    comm, box = meet(store, rank, ranks, f"process group {name}", timeout, "group", mailbox)

    messages: Messages | MpiMessages
    mpi = comm.backend.duplicate_mpi()
    if mpi is not None:
        messages = MpiMessages(mpi, timeout)
    else:
        assert box is not None
        messages = Messages(comm, box, timeout)
    jobs = JobQueue(connect_jobs, f"pycollective-{name}", Health(comm))
    group = ProcessGroup(comm, jobs, messages, options or Options(), timeout, name, store)
    _live.add(group)
    return group


def _leave() -> None:
    """At exit: shut down process groups that the script has not destroyed."""
    for group in list(_live):
        if group.comm.backend.team is None:
            continue  # between hosts freeing is collective, and the others may have exited
        with contextlib.suppress(RuntimeError):
            group.shutdown()


def _forget() -> None:
    """In a forked child: the groups belong to the parent."""
    _live.clear()
    forget_all()
