"""Gloo through torch.distributed, as used with PyTorch; torch is imported when this peer is opened."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import tempfile
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..ranks.world import World, first_problem
from . import Array, Call, Peer, PeerUnavailable, round_trip
from .tensors import as_tensor, import_torch

if TYPE_CHECKING:
    from ..workload.cases import Case

__all__ = ["GlooPeer", "open"]

_REDUCES = {"float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64"}
_MOVES = {*_REDUCES, "int16", "bool"}
_OPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}


_PATIENCE = timedelta(seconds=60)
"""Seconds for ranks on several hosts to connect."""


class GlooPeer(Peer):
    """The default process group with the gloo backend: over loopback, or between hosts."""

    name = "gloo"
    # torch.distributed reduces into its argument
    always_in_place = frozenset({"allreduce", "reduce"})

    def __init__(self, torch: Any, dist: Any, world: World, held: contextlib.ExitStack) -> None:
        self._dist, self._world, self._rank, self._held = dist, world, world.rank, held
        self.version = f"Gloo of PyTorch {torch.__version__}"

    def supports(self, case: Case) -> bool:
        if case.kind.prefix != "none" or case.kind.weighted:
            return False
        if not case.kind.reduces:
            return case.dtype in _MOVES
        return case.dtype in _REDUCES and case.op in _OPS

    def _named(self, name: str, before: str) -> Any:
        """A function under its name in this PyTorch: 2.13 renamed some."""
        return getattr(self._dist, name, None) or getattr(self._dist, before)

    def _op(self, op: str) -> Any:
        return getattr(self._dist.ReduceOp, _OPS[op])

    def allreduce(self, send: Array, recv: Array, op: str) -> Call:
        call, tensor, operator = self._dist.all_reduce, as_tensor(recv), self._op(op)
        return lambda: call(tensor, operator)

    def broadcast(self, buffer: Array, root: int) -> Call:
        call, tensor = self._dist.broadcast, as_tensor(buffer)
        return lambda: call(tensor, root)

    def reduce(self, send: Array, recv: Array, op: str, root: int) -> Call:
        call, tensor, operator = self._dist.reduce, as_tensor(recv), self._op(op)
        return lambda: call(tensor, root, operator)

    def reduce_scatter(self, send: Array, recv: Array, op: str) -> Call:
        call, operator = self._named("reduce_scatter_single", "reduce_scatter_tensor"), self._op(op)
        source, target = as_tensor(send), as_tensor(recv)
        return lambda: call(target, source, operator)

    def allgather(self, send: Array, recv: Array) -> Call:
        call = self._named("all_gather_single", "all_gather_into_tensor")
        source, target = as_tensor(send), as_tensor(recv)
        return lambda: call(target, source)

    def gather(self, send: Array, recv: Array, root: int) -> Call:
        call, source = self._dist.gather, as_tensor(send)
        parts = list(as_tensor(recv).chunk(recv.size // send.size)) if self._rank == root else None
        return lambda: call(source, parts, root)

    def scatter(self, send: Array, recv: Array, root: int) -> Call:
        call, target = self._dist.scatter, as_tensor(recv)
        parts = list(as_tensor(send).chunk(send.size // recv.size)) if self._rank == root else None
        return lambda: call(target, parts, root)

    def alltoall(self, send: Array, recv: Array) -> Call:
        call, source, target = self._dist.all_to_all_single, as_tensor(send), as_tensor(recv)
        return lambda: call(target, source)

    def sendrecv(self, send: Array, recv: Array) -> Call:
        dist, world = self._dist, self._world
        return round_trip(world.rank, world.size, dist.send, as_tensor(send), dist.recv, as_tensor(recv))

    def barrier(self) -> Call:
        call: Call = self._dist.barrier
        return call

    def close(self) -> None:
        self._dist.destroy_process_group()
        self._world.barrier()  # the other ranks' stores write to the folder until they end
        self._held.close()


def open(world: World) -> GlooPeer:
    """Start Gloo on the ranks of this world; PeerUnavailable if torch is missing."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # like torchrun
    torch = import_torch()
    try:
        dist: Any = importlib.import_module("torch.distributed")
    except ImportError as error:
        raise PeerUnavailable(f"torch.distributed cannot be used: {error}") from error
    if not dist.is_available() or not dist.is_gloo_available():
        raise PeerUnavailable("this PyTorch was built without Gloo")
    hosts = world.share(socket.gethostname())
    with contextlib.ExitStack() as stack:
        if len(set(hosts)) == 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # works without a resolvable host name
            folder = stack.enter_context(tempfile.TemporaryDirectory()) if world.rank == 0 else ""
            store = dist.FileStore(os.path.join(world.share(folder)[0], "gloo"), world.size)
        else:
            store = _store_between(dist, world, hosts[0])
        _connect(dist, world, store, len(set(hosts)))
        world.barrier()
        return GlooPeer(torch, dist, world, stack.pop_all())  # later groups use the store, too


def _store_between(dist: Any, world: World, host: str) -> Any:
    """A store that the first rank's host serves."""
    options = {"world_size": world.size, "timeout": _PATIENCE, "wait_for_workers": False}
    served = dist.TCPStore(host, 0, is_master=True, **options) if world.rank == 0 else None
    port = int(world.share(served.port if served else 0)[0])
    return served or dist.TCPStore(host, port, is_master=False, **options)


def _connect(dist: Any, world: World, store: Any, hosts: int) -> None:
    """Create the process group; PeerUnavailable if ranks on several hosts cannot connect."""
    problem = ""
    try:
        store.set_timeout(_PATIENCE)
        dist.init_process_group(
            "gloo", store=store, rank=world.rank, world_size=world.size, timeout=timedelta(minutes=10)
        )
    except (RuntimeError, ValueError) as error:
        if hosts == 1:
            raise
        problem = str(error)
    if problem := first_problem(world, problem):
        raise PeerUnavailable(f"Gloo cannot connect the hosts ({problem}); is GLOO_SOCKET_IFNAME right?")
