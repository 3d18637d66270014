"""The backend "pycollective" of torch.distributed."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from pycollective import checks
from pycollective.comm.communicator import forget_all
from pycollective.comm.host.segments import Exchange
from pycollective.torch.distributed import accelerate, c10d_backend
from pycollective.torch.distributed.bootstrap import rendezvous
from pycollective.torch.distributed.bootstrap.meeting import meet
from pycollective.torch.distributed.execution.job_queue import JobQueue
from pycollective.torch.distributed.execution.work import keep_works
from pycollective.torch.distributed.group import ProcessGroup
from pycollective.torch.distributed.options import Options
from pycollective.torch.distributed.point_to_point.mailbox import Announcements, Mailbox
from pycollective.torch.distributed.point_to_point.messages import Messages

if TYPE_CHECKING:
    from pycollective.comm.hosts.network import Network

NAME = "pycollective"
_live: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


@functools.cache
def register() -> None:
    """Register the backend with torch; may be called twice.

    pycollective.autoload may have registered the name before, with a creator that imports this module.
    """
    rendezvous.TORCH_RENDEZVOUS._rendezvous_handlers.pop(rendezvous.SCHEME, None)  # registered by autoload
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])
    rendezvous.register()
    keep_works()
    accelerate.adapt()
    atexit.register(_leave)
    os.register_at_fork(after_in_child=_forget)


def create(made_by_torch: Any, options: Options | None = None) -> Any:
    """Return a ProcessGroup or, as one of a group's several backends, a Backend. Called by torch on all ranks.

    Args:
        made_by_torch: store, group_rank, group_size, timeout, group_id and global_ranks_in_group.
        options: the `pg_options` of the call.

    Raises:
        BootstrapError: ranks have not joined in time (it names them), or hosts cannot reach each other.
        CommunicatorError: no memory can be shared.
        TypeError: options of another backend.
    """
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"pg_options must be this backend's Options, not {type(options).__name__}")
    store, rank = made_by_torch.store, made_by_torch.group_rank
    timeout = made_by_torch.timeout.total_seconds()
    ranks: Sequence[int] = made_by_torch.global_ranks_in_group or range(made_by_torch.group_size)
    name, patience = str(made_by_torch.group_id), min(timeout, checks.LONGEST)

    def mailbox(exchange: Exchange, network: Network | None) -> Announcements:
        if network is None:
            return Mailbox(exchange, rank, len(ranks))
        from pycollective.torch.distributed.point_to_point.hosts_mailbox import HostsMailbox

        return HostsMailbox(exchange, rank, len(ranks), network)

    def connect_jobs() -> Any:
        return meet(store, rank, ranks, f"process group {name}/jobs", patience, "jobs", lambda *_: None)[0]

    comm, box = meet(store, rank, ranks, f"process group {name}", patience, "group", mailbox)
    messages = Messages(comm, box, timeout)
    jobs = JobQueue(connect_jobs, f"pycollective-{name}", comm.backend)
    group = ProcessGroup(comm, jobs, messages, options or Options(), timeout, name, store)
    _live.add(group)
    return c10d_backend.DeviceBackend(group) if c10d_backend.is_one_of_several() else group


def _leave() -> None:
    """Shut down, at exit, process groups that the script has not destroyed."""
    for group in list(_live):
        with contextlib.suppress(RuntimeError):
            group.shutdown()


def _forget() -> None:
    """Forget the groups in a forked child: they belong to the parent."""
    _live.clear()
    forget_all()
