"""Symmetric device memory: every rank of a host allocates a part, and every peer maps it.

Only our own allocations are shared, never the user's pointers: pools and expandable segments of other libraries cannot
be exported, and must keep working.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pycollective.comm.bootstrap.one_host import peer_uid
from pycollective.comm.cuda.runtime import load
from pycollective.comm.host.segments import Exchange
from pycollective.errors import CommunicatorError

IPC, VMM = "cuda-ipc", "cuda-vmm"
KINDS = (IPC, VMM)
"""Ways to share device memory between processes, in the order tried."""

_SECONDS = 30.0
_WHO = struct.Struct("!I")


@dataclass(frozen=True)
class DeviceWindow:
    """One symmetric allocation.

    Attributes:
        bases: the address of every rank's part in this process, in rank order.
        nbytes: of a part.
        device: this rank's.
        memory: what keeps the addresses valid, in rank order; empty after release.
    """

    bases: tuple[int, ...]
    nbytes: int
    device: int
    memory: list[Any]


def give_up(exchange: Exchange, rank: int, window: DeviceWindow) -> None:
    """Collective: unmap and free a window. CUDA does not define freeing a part that a peer still has mapped."""
    own = window.memory[rank]
    window.memory.clear()
    exchange(b"")
    del own


def share(exchange: Exchange, rank: int, size: int, nbytes: int, device: int, kind: str) -> DeviceWindow:
    """Collective: one symmetric allocation; every part is zero-filled.

    Args:
        nbytes: of every rank's part.
        device: on which this rank allocates.
        kind: "cuda-ipc" or "cuda-vmm".

    Raises:
        CommunicatorError: on every rank, if one could not allocate, export or map; states which and why.
    """
    return (_share_ipc if kind == IPC else _share_vmm)(exchange, rank, size, nbytes, device)


def share_locally(size: int, nbytes: int, device: int) -> DeviceWindow:
    """Share memory among ranks that are threads of this process, on one device."""
    cuda = load()
    parts = [cuda.allocate_plain(device, nbytes) for _ in range(size)]
    return DeviceWindow(tuple(part.address for part in parts), nbytes, device, parts)


def _share_ipc(exchange: Exchange, rank: int, size: int, nbytes: int, device: int) -> DeviceWindow:
    cuda = load()

    def allocate() -> tuple[Any, bytes]:
        memory = cuda.allocate_plain(device, nbytes)
        return memory, memory.ipc_handle()

    mine, handles = _all_or_none(exchange, allocate, "export device memory by CUDA IPC")
    # No part is freed before all ranks have unmapped it: _all_or_none ensures it, and `mine` lives until then.

    def open_all() -> tuple[list[Any], bytes]:
        return [mine if r == rank else cuda.open_ipc(device, handles[r], nbytes) for r in range(size)], b""

    parts, _ = _all_or_none(exchange, open_all, "open a peer's CUDA IPC handle")
    return DeviceWindow(tuple(part.address for part in parts), nbytes, device, parts)


def _share_vmm(exchange: Exchange, rank: int, size: int, nbytes: int, device: int) -> DeviceWindow:
    cuda = load()
    name = f"\0pycollective/cuda/{secrets.token_hex(16)}".encode()
    descriptor = -1

    def allocate() -> tuple[Any, bytes]:
        nonlocal descriptor
        memory = cuda.allocate_vmm(device, nbytes)
        descriptor = memory.export_fd()
        listener.bind(name)
        listener.listen(size)
        return memory, name

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mine, names = _all_or_none(exchange, allocate, "export device memory as a file descriptor")

        def receive_all() -> tuple[list[Any], bytes]:
            return _import_all(cuda, listener, mine, descriptor, names, rank, device), b""

        parts, _ = _all_or_none(exchange, receive_all, "map a peer's device memory")
    finally:
        listener.close()
        if descriptor >= 0:
            os.close(descriptor)
    return DeviceWindow(tuple(part.address for part in parts), nbytes, device, parts)


def _import_all(
    cuda: Any, listener: socket.socket, mine: Any, descriptor: int, names: list[bytes], rank: int, device: int
) -> list[Any]:
    """Give this rank's descriptor to all peers and map theirs.

    The kernel buffers sent data until it is accepted, so there is no circular wait.
    """
    parts: list[Any] = [None] * len(names)
    parts[rank] = mine
    for peer in range(len(names)):
        if peer != rank:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as out:
                out.settimeout(_SECONDS)
                out.connect(names[peer])
                if peer_uid(out) != os.getuid():
                    raise CommunicatorError(f"the socket of rank {peer} is held by another user")
                socket.send_fds(out, [_WHO.pack(rank)], [descriptor])
    listener.settimeout(_SECONDS)
    while None in parts:
        incoming, _ = listener.accept()
        with incoming:
            if peer_uid(incoming) != os.getuid():  # any user of the host may connect to an abstract name
                continue
            incoming.settimeout(_SECONDS)
            text, descriptors, _, _ = socket.recv_fds(incoming, _WHO.size, 1)
        try:
            if len(text) == _WHO.size and len(descriptors) == 1:
                (peer,) = _WHO.unpack(text)
                parts[peer] = cuda.import_vmm(device, descriptors[0], mine.nbytes)
        finally:
            for received in descriptors:
                os.close(received)
    return parts


def _all_or_none(exchange: Exchange, action: Callable[[], tuple[Any, bytes]], what: str) -> tuple[Any, list[bytes]]:
    """Collective: run an action on every rank; all succeed or all fail.

    Returns:
        what the action has made, and every rank's token, which its action has returned with it.

    Raises:
        CommunicatorError: the action failed on a rank; names the first one.
    """
    made, token, problem = None, b"", ""
    try:
        made, token = action()
    except Exception as error:  # any error must be reported to the others
        problem = str(error) or type(error).__name__
    received = exchange(b"!" + problem.encode() if problem else b"=" + token)
    for rank, text in enumerate(received):
        if text[:1] == b"!":
            made = None  # what was mapped is unmapped ...
            exchange(b"")  # ... on every rank, before the owners free their parts
            raise CommunicatorError(f"rank {rank} could not {what}: {text[1:].decode()}")
    return made, [text[1:] for text in received]
