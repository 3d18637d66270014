"""GPU arrays of communicators that span hosts: NCCL between the hosts and our schedules within each, or staged.

A large allreduce is a reduce-scatter within the host, an allreduce by NCCL among the ranks that hold the same share,
and an allgather within the host, so that every rank's network card carries its part of the data once. It is cut into
tiles: while NCCL transfers one, the host's GPUs work on its neighbours. Any other call is one NCCL call over all ranks.
What NCCL does not support, and all calls where it is missing or not wanted, is staged through host memory: the CPU
executes the same schedules as for arrays in its own memory, with the same bits.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from pycollective import _core, settings
from pycollective.comm.arguments.rows import split_rows
from pycollective.comm.cuda.arrays import ITEMSIZE, View, allocate, order_streams
from pycollective.comm.cuda.nccl.communicators import NcclRail, NcclTeam
from pycollective.comm.cuda.paths import HOST, Path
from pycollective.comm.cuda.runtime import load
from pycollective.comm.cuda.signature import UNSCALED, Signature, sign
from pycollective.comm.cuda.staged import StagedCalls
from pycollective.comm.cuda.team import DeviceTeam
from pycollective.comm.host.segments import first_problem
from pycollective.comm.host.team import HostTeam
from pycollective.comm.request import CallRequest
from pycollective.dtypes import DTYPES
from pycollective.errors import CommunicatorError

TILE_BYTES = 16 << 20
"""Bytes of the buffer per stage and tile."""
SMALL_BYTES = 256 << 10
"""Up to this size, three stages cost more than they save: NCCL runs alone."""
HOSTS = "PYCOLLECTIVE_CUDA_HOSTS"
"""The setting that chooses the path between hosts."""

_IN_STAGES = frozenset(("sum", "avg", "prod", "min", "max"))


class RailTeam:
    """One rank's GPU side of a communicator that spans hosts. Collective.

    Attributes:
        path: "nccl", with the copy used and whether large allreduces run in stages, or "host" and why NCCL is not used:
            by PYCOLLECTIVE_CUDA_HOSTS, or because it is not usable on all ranks.

    Raises:
        CommunicatorError: PYCOLLECTIVE_CUDA_HOSTS requires NCCL, which is not usable on all ranks; states why.
    """

    def __init__(self, host: HostTeam, device: int, nccl: NcclTeam) -> None:
        self.device = device
        self._host, self._whole, self._staged = host, nccl, StagedCalls(host, device)
        self._tiled: _TiledAllreduce | None = None
        wanted = host.exchange(settings.read(HOSTS).lower().encode(), HOSTS)[0].decode()  # the first rank's applies
        if wanted == "staged":
            self.path = Path(HOST, f"{HOSTS} is staged")
            return
        try:
            library = nccl.connect(0).library
        except CommunicatorError as error:
            if wanted == "nccl":
                raise CommunicatorError(f"{HOSTS} is nccl: {error}") from None
            self.path = Path(HOST, str(error))
            warnings.warn(
                f"GPU arrays of {host.group.name!r}, which spans hosts, are staged through host memory: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        self.path = Path("nccl", f"{library}; {self._build_tiled()}")

    def _build_tiled(self) -> str:
        """Create the host's communicator, and NCCL's for this local rank; returns the path of large allreduces."""
        host, nodes = self._host, self._host.group.nodes
        sizes = {len(nodes.ranks(n)) for n in range(nodes.count)}
        if sizes == {1}:
            return "there is one rank per host"
        if len(sizes) > 1:
            return "NCCL runs alone, since the hosts have different numbers of ranks"
        node = host.split(nodes.ranks(), f"{host.group.name}/host")
        assert node is not None
        within, problem = None, ""
        try:
            within = DeviceTeam(node, self.device)
            problem = within.path.reason if within.path.kind == HOST else ""
        except CommunicatorError as error:
            problem = str(error)
        if problem := first_problem(host.exchange, problem):
            if within is not None:
                within.close()
            node.close()
            return f"NCCL runs alone, since within a host arrays would go through host memory: {problem}"
        assert within is not None
        column = nodes.cross_ranks()

        def among_equals(data: bytes) -> list[bytes]:
            received = host.exchange(data)  # all columns exchange at the same time
            return [received[rank] for rank in column]

        across = NcclRail(among_equals, nodes.cross_rank, nodes.cross_size, self.device)
        self._whole.adopt(across, within)
        self._tiled = _TiledAllreduce(node, within, across, self.device)
        return f"large allreduces go through {within.path.kind} within a host, and by NCCL between hosts"

    def run(self, request: CallRequest) -> None:
        """Enqueue a call in its stream; a call that NCCL lacks is staged through host memory."""
        s, tiled = sign(request), self._tiled
        if tiled is not None and s.nbytes > SMALL_BYTES and _can_stage(s):
            self._whole.check()
            tiled.prepare(request)
            self._whole.guard(lambda: tiled.allreduce(request))
        elif self._whole.connect(0).lacks(s) is None:
            self._whole.run(request)
        else:
            self._staged.run(request)

    def locate(self, address: int, nbytes: int) -> None:
        """No window spans hosts."""
        return None

    def check(self) -> None:
        if self.path.kind != HOST:
            self._whole.look()
            self._whole.check()

    def close(self) -> None:
        if self._tiled is not None:
            self._tiled.close()
            self._tiled = None
        self._staged.close()

    def empty(self, number: int, shape: tuple[int, ...], dtype: str) -> Any:
        """A DeviceArray in plain device memory: no window spans hosts."""
        return allocate(shape, dtype, self.device)


def _can_stage(s: Signature) -> bool:
    """Return whether the call has halves, both support its operator, and they combine to the full result."""
    if not s.row.halves or not isinstance(s.op, str) or s.op not in _IN_STAGES:
        return False
    if s.dtype in ("bool", "int16", "uint16") or DTYPES[s.dtype].kind == "complex" or s.dtype.startswith("float8"):
        return False  # NCCL does not reduce it, or not on all GPUs
    if s.op == "avg" and "int" in s.dtype:
        return False  # would be rounded twice
    return s.scale == (1.0, 1.0) or (s.op in ("sum", "avg") and "int" not in s.dtype)


class _TiledAllreduce:
    """The three stages of an allreduce, and the scratch between them."""

    def __init__(self, node: HostTeam, within: DeviceTeam, across: NcclRail, device: int) -> None:
        self._node, self._within, self._across, self._device = node, within, across, device
        self._side = load().Stream(device)
        self._scratch: tuple[Any, ...] = ()
        self._scratch_bytes = 0

    def allreduce(self, request: CallRequest) -> None:
        """Enqueue it tile by tile, with NCCL in a second stream."""
        each, whole = self._tile(request), sign(request).count
        tiles = [(begin, min(each, whole - begin)) for begin in range(0, whole, each)]
        arrived: list[Any] = []
        for number, (begin, count) in enumerate(tiles):
            self._scatter(request, begin, count, number)
            arrived.append(self._cross(request, count, number))
            if number > 0:
                self._gather(request, *tiles[number - 1], number - 1, arrived[number - 1])
        self._gather(request, *tiles[-1], len(tiles) - 1, arrived[-1])

    def _tile(self, request: CallRequest) -> int:
        """Elements of a tile."""
        return min(max(TILE_BYTES // ITEMSIZE[sign(request).dtype], self._node.group.size), sign(request).count)

    def prepare(self, request: CallRequest) -> None:
        """Allocate two shares: NCCL transfers one while the other is filled or distributed."""
        nbytes = -(-self._tile(request) // self._node.group.size) * ITEMSIZE[sign(request).dtype]
        if nbytes <= self._scratch_bytes:
            return
        if load().is_capturing(request.stream):
            raise CommunicatorError("make one call of this size before the stream is captured")
        self._scratch = tuple(load().allocate_plain(self._device, nbytes) for _ in range(2))  # freeing the old waits
        self._scratch_bytes = nbytes

    def _share(self, dtype: str, count: int, number: int) -> View:
        mine = split_rows(count, self._node.group.size)[self._node.group.rank]
        memory = self._scratch[number % 2]
        return View(memory.address, (mine,), dtype, self._device, True, memory)

    def _part(self, array: View | None, begin: int, count: int) -> View:
        assert array is not None
        return replace(array, address=array.address + begin * ITEMSIZE[array.dtype], shape=(count,))

    def _scatter(self, request: CallRequest, begin: int, count: int, number: int) -> None:
        share = self._share(sign(request).dtype, count, number)
        part = self._part(request.x, begin, count)
        self._run_half(replace(request, collective=request.row.halves[0], x=part, out=share), count)

    def _cross(self, request: CallRequest, count: int, number: int) -> Any:
        """NCCL's part, in the second stream; returns the event recorded after it."""
        cuda, s = load(), sign(request)
        share = self._share(s.dtype, count, number)
        order_streams(cuda, self._device, request.stream, self._side.address)
        if share.count:
            part = replace(s, count=share.count, scale=UNSCALED, max_channels=0)
            self._across.run(part, share.address, share.address, self._side.address, _core.timeout_of(request.timeout))
        done = cuda.Event(self._device)
        done.record(self._side.address)
        return done

    def _gather(self, request: CallRequest, begin: int, count: int, number: int, arrived: Any) -> None:
        arrived.hold_back(request.stream)
        share = self._share(sign(request).dtype, count, number)
        part = self._part(request.out, begin, count)
        self._run_half(replace(request, collective=request.row.halves[1], x=share, out=part, scale=None), count)

    def _run_half(self, request: CallRequest, count: int) -> None:
        request.counts, request.signature = split_rows(count, self._node.group.size), None
        self._within.run(request)

    def close(self) -> None:
        self._across.close()
        self._within.close()
        self._node.close()
        load().synchronize(self._side.address)
        self._scratch = ()
