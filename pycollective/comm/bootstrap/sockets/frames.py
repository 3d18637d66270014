"""Frames on UNIX sockets: `!BQ` (kind, length) and a payload, read as they arrive, with a bounded length."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Sequence

_FRAME = struct.Struct("!BQ")
_LENGTH = struct.Struct("!Q")
LENGTH_BYTES = _LENGTH.size
"""Bytes that `pack` adds to each blob."""
_CHUNK = 1 << 18


def pack(blobs: Sequence[bytes]) -> bytes:
    """One byte string holding every blob of `blobs` in order (the inverse of `unpack`)."""
    return b"".join(_LENGTH.pack(len(b)) + b for b in blobs)


def unpack(data: bytes) -> list[bytes]:
    """The blobs joined by `pack`.

    Raises:
        ValueError: data not produced by `pack`.
    """
    blobs, at = [], 0
    while at < len(data):
        if len(data) - at < _LENGTH.size:
            raise ValueError("a length is cut short")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length > len(data) - at:
            raise ValueError(f"{length} bytes are announced, {len(data) - at} are present")
        blobs.append(data[at : at + length])
        at += length
    return blobs


class Reader:
    """Reads frame after frame from a nonblocking socket; holds no more memory than has arrived."""

    def __init__(self, most: int) -> None:
        """`most`: maximum bytes of a payload."""
        self._most, self._have = most, bytearray()

    def read(self, peer: socket.socket) -> tuple[int, bytes] | None:
        """Kind and payload of a frame, once complete. Raises EOFError if the peer has closed, ValueError
        if a frame is too long."""
        while (missing := self._missing()) > 0:
            try:
                got = peer.recv(min(missing, _CHUNK))
            except BlockingIOError:
                return None
            if not got:
                raise EOFError
            self._have += got
        whole, self._have = self._have, bytearray()
        return whole[0], bytes(memoryview(whole)[_FRAME.size :])

    def _missing(self) -> int:
        if len(self._have) < _FRAME.size:
            return _FRAME.size - len(self._have)
        _, length = _FRAME.unpack_from(self._have)
        if length > self._most:
            raise ValueError(f"a frame of {length} bytes, the maximum is {self._most}")
        return int(_FRAME.size + length - len(self._have))


def frame(kind: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, len(payload)) + payload


def receive(peer: socket.socket, reader: Reader, deadline: float) -> tuple[int, bytes]:
    """One frame. Raises TimeoutError at the deadline, and the reader's errors."""
    peer.setblocking(False)
    with selectors.PollSelector() as selector:  # needs no descriptor
        selector.register(peer, selectors.EVENT_READ)
        while (found := reader.read(peer)) is None:
            if not selector.select(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                raise TimeoutError
    return found
