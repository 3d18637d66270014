"""The comparisons: groups of contenders, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..peers import Array, Peer, PeerUnavailable
from ..workload.cases import KIB
from . import theirs, training
from .c10d import C10d
from .contender import Contender
from .ours import Ours
from .shapes import Shape, resnet50, vectors
from .tensors import laid_out, separate

__all__ = ["GROUPS", "Group", "Hall"]


Make = Callable[["Hall", str], Contender]
"""From the libraries and a name for the tensors, unique in the run."""


@dataclass(frozen=True)
class Group:
    """Contenders that take turns: name -> constructor.  ``shapes`` are those of the tensors that each call reduces."""

    shapes: Sequence[Shape]
    contenders: Mapping[str, Make]


@dataclass
class Hall:
    """State shared by the contenders of a group: the libraries, and the arrays that all of them reduce."""

    rank: int
    ours: Ours
    peers: dict[str, Peer]
    shapes: Sequence[Shape] = ()

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


def _ddp(hall: Hall, _: str) -> Contender:
    hall.peer("gloo")
    return training.ddp_on_gloo(hall.rank)


def _all_reduce(group: str | None, later: bool) -> Make:
    """dist.all_reduce on a process group, an attribute of C10d; None: the default one, Gloo's."""

    def make(hall: Hall, _: str) -> Contender:
        chosen = getattr(hall.c10d, group) if group else None
        return hall.c10d.all_reduce(hall.plain[0], chosen, later, sums=group != "idle")

    return make


def _ours(hall: Hall, name: str) -> Contender:
    return hall.ours.engine(name, hall.plain)


def _single(hall: Hall, name: str) -> Contender:
    return hall.ours.single(name, hall.plain[0])


def _gloo(hall: Hall, _: str) -> Contender:
    return theirs.one_by_one(hall.peer("gloo"), hall.plain)


_ALONE: Mapping[str, Make] = {
    "engine": _ours,
    "allreduce_": _single,
    "Gloo": _gloo,
    "MPI": lambda hall, _: theirs.one_by_one(hall.peer("mpi"), hall.plain),
}
_TOGETHER: Mapping[str, Make] = {
    "engine": _ours,
    "grouped_allreduce": lambda hall, name: hall.ours.grouped(name, hall.plain, in_place=False),
    "grouped_allreduce_": lambda hall, name: hall.ours.grouped(name, hall.plain, in_place=True),
    "Gloo, coalesced": lambda hall, _: theirs.gloo_coalesced(hall.peer("gloo"), hall.plain),
}

GROUPS: dict[str, Group] = {
    "resnet50": Group(
        resnet50(),
        {
            **_TOGETHER,
            "engine, views": lambda hall, name: hall.ours.engine(name, hall.views),
            "Gloo, DDP's buckets": lambda hall, _: theirs.gloo_buckets(hall.peer("gloo"), hall.plain),
        },
    ),
    "8 bytes": Group(vectors(1, 8), _ALONE),
    "layers": Group(
        vectors(1, 8),
        {
            "allreduce": lambda hall, _: hall.ours.blocking(hall.plain[0]),
            "allreduce, torch": lambda hall, _: hall.ours.on_tensor(hall.plain[0]),
            "barrier": lambda hall, _: hall.ours.barrier(),
            "iallreduce and wait": lambda hall, _: hall.ours.nonblocking(hall.plain[0]),
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
        vectors(1, 256 * KIB),
        {
            "send and recv": lambda hall, _: hall.c10d.there_and_back(hall.plain[0], hall.c10d.ours),
            "Gloo": lambda hall, _: hall.c10d.there_and_back(hall.plain[0], None),
        },
    ),
    "16 MiB": Group(vectors(1, 16 * KIB**2), _ALONE),
    "small": Group(
        vectors(161, KIB),
        {
            **_TOGETHER,
            "engine, one by one": lambda hall, name: hall.ours.one_by_one(name, hall.plain),
            "Gloo, one by one": _gloo,
        },
    ),
    "training": Group(
        (),  # a step of a small CNN, batch 32
        {
            "DistributedOptimizer": lambda hall, _: training.distributed_optimizer(hall.ours.horovod(), hall.rank),
            "DDP on Gloo": _ddp,
        },
    ),
}
