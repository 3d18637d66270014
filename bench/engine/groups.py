"""The comparisons: groups of contenders, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
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


@dataclass(frozen=True)
class Group:
    """Contenders that take turns: name -> constructor.  ``tensors`` is what each call reduces."""

    title: str
    shapes: Callable[[], Sequence[Shape]]
    contenders: Mapping[str, Callable[[Hall, str], Contender]]


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


def _views(hall: Hall, name: str) -> Contender:
    return hall.ours.engine(name, hall.views)


def _singly(hall: Hall, name: str) -> Contender:
    return hall.ours.one_by_one(name, hall.plain)


def _grouped(hall: Hall, name: str) -> Contender:
    return hall.ours.grouped(name, hall.plain, in_place=False)


def _grouped_in_place(hall: Hall, name: str) -> Contender:
    return hall.ours.grouped(name, hall.plain, in_place=True)


def _single(hall: Hall, name: str) -> Contender:
    return hall.ours.single(name, hall.plain[0])


def _gloo(hall: Hall, name: str) -> Contender:
    return theirs.gloo_one_by_one(hall.peer("gloo"), name, hall.plain)


def _gloo_coalesced(hall: Hall, name: str) -> Contender:
    return theirs.gloo_coalesced(hall.peer("gloo"), name, hall.plain)


def _gloo_buckets(hall: Hall, name: str) -> Contender:
    return theirs.gloo_buckets(hall.peer("gloo"), name, hall.plain)


def _mpi(hall: Hall, name: str) -> Contender:
    return theirs.mpi_one_by_one(hall.peer("mpi"), name, hall.plain)


def _ddp(hall: Hall, name: str) -> Contender:
    hall.peer("gloo")
    return training.ddp_on_gloo(name, hall.rank)


def _optimizer(hall: Hall, name: str) -> Contender:
    return training.distributed_optimizer(hall.ours.horovod(), name, hall.rank)


def _out_of_place(hall: Hall, name: str) -> Contender:
    return hall.ours.single(name, hall.plain[0], in_place=False)


def _c10d(hall: Hall, name: str) -> Contender:
    return hall.c10d.all_reduce(name, hall.plain[0], hall.c10d.ours, later=False)


def _c10d_later(hall: Hall, name: str) -> Contender:
    return hall.c10d.all_reduce(name, hall.plain[0], hall.c10d.ours, later=True)


def _idle(hall: Hall, name: str) -> Contender:
    return hall.c10d.all_reduce(name, hall.plain[0], hall.c10d.idle, later=False, sums=False)


def _idle_later(hall: Hall, name: str) -> Contender:
    return hall.c10d.all_reduce(name, hall.plain[0], hall.c10d.idle, later=True, sums=False)


def _gloo_later(hall: Hall, name: str) -> Contender:
    return hall.c10d.all_reduce(name, hall.plain[0], None, later=True)


def _messages(hall: Hall, name: str) -> Contender:
    return hall.c10d.there_and_back(name, 4 * prod(hall.shapes[0]), hall.c10d.ours)


def _gloo_messages(hall: Hall, name: str) -> Contender:
    return hall.c10d.there_and_back(name, 4 * prod(hall.shapes[0]), None)


_ALONE = {"engine": _ours, "allreduce_": _single, "Gloo": _gloo, "MPI": _mpi}

GROUPS: dict[str, Group] = {
    "resnet50": Group(
        "gradients of ResNet-50's shape, 161 tensors, 102 MB",
        resnet50,
        {
            "engine": _ours,
            "engine, views": _views,
            "grouped_allreduce": _grouped,
            "grouped_allreduce_": _grouped_in_place,
            "Gloo, DDP's buckets": _gloo_buckets,
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
            "hvd.allreduce": _out_of_place,
            "hvd.allreduce_": _single,
            "dist.all_reduce": _c10d,
            "dist.all_reduce, later": _c10d_later,
            "idle group": _idle,
            "idle group, later": _idle_later,
            "Gloo, later": _gloo_later,
        },
    ),
    "messages": Group(
        "256 KiB to the other rank and back",
        lambda: one_of(256 * KIB),
        {"send and recv": _messages, "Gloo": _gloo_messages},
    ),
    "16 MiB": Group("one tensor of 16 MiB", lambda: one_of(16 * KIB * KIB), _ALONE),
    "small": Group(
        "161 tensors of 1 KiB",
        small,
        {
            "engine": _ours,
            "engine, one by one": _singly,
            "grouped_allreduce": _grouped,
            "grouped_allreduce_": _grouped_in_place,
            "Gloo, one by one": _gloo,
            "Gloo, coalesced": _gloo_coalesced,
        },
    ),
    "training": Group(
        "a training step of a small CNN, batch 32",
        lambda: (),
        {"DistributedOptimizer": _optimizer, "DDP on Gloo": _ddp},
    ),
}
