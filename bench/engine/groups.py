"""The comparisons: groups of contenders, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..peers import Array, Peer, PeerUnavailable
from ..workload.cases import KIB
from . import theirs, training
from .c10d import C10d
from .contender import Contender
from .ours import Ours
from .shapes import Shape, one_of, resnet50, small
from .tensors import laid_out, separate

__all__ = ["GROUPS", "Group", "Hall"]


Make = Callable[["Hall", str], Contender]


@dataclass(frozen=True)
class Group:
    """Contenders that take turns: name -> constructor.  ``tensors`` is what each call reduces."""

    title: str
    shapes: Callable[[], Sequence[Shape]]
    contenders: Mapping[str, Make]


@dataclass
class Hall:
    """State shared by the contenders of a group: the libraries, and the arrays that all of them reduce."""

    rank: int
    ours: Ours
    peers: dict[str, Peer]
    shapes: Sequence[Shape] = ()
    _held: dict[str, list[Array]] = field(default_factory=dict)

    def peer(self, name: str) -> Any:
        """Another library; PeerUnavailable if it could not be opened."""
        if name not in self.peers:
            raise PeerUnavailable(f"{name} is not available")
        return self.peers[name]

    @cached_property
    def c10d(self) -> C10d:
        """torch.distributed's process groups; PeerUnavailable without Gloo."""
        return C10d(self.peer("gloo"), self.rank)

    @cached_property
    def plain(self) -> list[Array]:
        """Each tensor in a separate allocation."""
        return separate(self.shapes)

    @cached_property
    def views(self) -> list[Array]:
        """The tensors one after the other in a window; collective."""
        return laid_out(self.shapes, self.ours.window)


def _ours(hall: Hall, name: str) -> Contender:
    return hall.ours.engine(name, hall.plain)


def _grouped(hall: Hall, name: str) -> Contender:
    return hall.ours.grouped(name, hall.plain, in_place=False)


def _grouped_in_place(hall: Hall, name: str) -> Contender:
    return hall.ours.grouped(name, hall.plain, in_place=True)


def _single(hall: Hall, name: str) -> Contender:
    return hall.ours.single(name, hall.plain[0])


def _gloo(hall: Hall, name: str) -> Contender:
    return theirs.one_by_one(hall.peer("gloo"), name, hall.plain)


def _gloo_coalesced(hall: Hall, name: str) -> Contender:
    return theirs.gloo_coalesced(hall.peer("gloo"), name, hall.plain)


def _ddp(hall: Hall, name: str) -> Contender:
    hall.peer("gloo")
    return training.ddp_on_gloo(name, hall.rank)


def _all_reduce(group: str | None, later: bool) -> Make:
    """dist.all_reduce on a process group, an attribute of C10d; None: the default one, Gloo's."""

    def make(hall: Hall, name: str) -> Contender:
        chosen = getattr(hall.c10d, group) if group else None
        return hall.c10d.all_reduce(name, hall.plain[0], chosen, later, sums=group != "idle")

    return make


_ALONE: Mapping[str, Make] = {
    "engine": _ours,
    "allreduce_": _single,
    "Gloo": _gloo,
    "MPI": lambda hall, name: theirs.one_by_one(hall.peer("mpi"), name, hall.plain),
}

GROUPS: dict[str, Group] = {
    "resnet50": Group(
        "gradients of ResNet-50's shape, 161 tensors, 102 MB",
        resnet50,
        {
            "engine": _ours,
            "engine, views": lambda hall, name: hall.ours.engine(name, hall.views),
            "grouped_allreduce": _grouped,
            "grouped_allreduce_": _grouped_in_place,
            "Gloo, DDP's buckets": lambda hall, name: theirs.gloo_buckets(hall.peer("gloo"), name, hall.plain),
            "Gloo, coalesced": _gloo_coalesced,
        },
    ),
    "8 bytes": Group("one tensor of 8 bytes", lambda: one_of(8), _ALONE),
    "layers": Group(
        "one tensor of 8 bytes through each layer",
        lambda: one_of(8),
        {
            "allreduce": lambda hall, name: hall.ours.blocking(name, hall.plain[0]),
            "allreduce, torch": lambda hall, name: hall.ours.on_tensor(name, hall.plain[0]),
            "barrier": lambda hall, name: hall.ours.barrier(name),
            "iallreduce and wait": lambda hall, name: hall.ours.nonblocking(name, hall.plain[0]),
            "engine, submit and wait": _ours,
            "engine, run": lambda hall, name: hall.ours.engine_run(name, hall.plain[0]),
            "hvd.allreduce": lambda hall, name: hall.ours.single(name, hall.plain[0], in_place=False),
            "hvd.allreduce_": _single,
            "dist.all_reduce": _all_reduce("ours", later=False),
            "dist.all_reduce, later": _all_reduce("ours", later=True),
            "idle group": _all_reduce("idle", later=False),
            "idle group, later": _all_reduce("idle", later=True),
            "Gloo, later": _all_reduce(None, later=True),
        },
    ),
    "messages": Group(
        "256 KiB to the other rank and back",
        lambda: one_of(256 * KIB),
        {
            "send and recv": lambda hall, name: hall.c10d.there_and_back(name, hall.shapes[0], hall.c10d.ours),
            "Gloo": lambda hall, name: hall.c10d.there_and_back(name, hall.shapes[0], None),
        },
    ),
    "16 MiB": Group("one tensor of 16 MiB", lambda: one_of(16 * KIB * KIB), _ALONE),
    "small": Group(
        "161 tensors of 1 KiB",
        small,
        {
            "engine": _ours,
            "engine, one by one": lambda hall, name: hall.ours.one_by_one(name, hall.plain),
            "grouped_allreduce": _grouped,
            "grouped_allreduce_": _grouped_in_place,
            "Gloo, one by one": _gloo,
            "Gloo, coalesced": _gloo_coalesced,
        },
    ),
    "training": Group(
        "a training step of a small CNN, batch 32",
        lambda: (),
        {
            "DistributedOptimizer": lambda hall, name: training.distributed_optimizer(
                hall.ours.horovod(), name, hall.rank
            ),
            "DDP on Gloo": _ddp,
        },
    ),
}
