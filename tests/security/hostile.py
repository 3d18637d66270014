"""A hostile host next to a job: `hostile.py TOKEN TRAP ADDRESS:PORT...` attacks ports and reports what it has received.

It does not know the token, which is given only to record a handshake of somebody who does: that is replayed. For each
port it writes a line of JSON: how many connections it got, and everything that it received other than one challenge.
The connections stay open until the end of standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

from pycollective.comm.bootstrap.sockets.authentication import AcceptingEnd, Claim, DiallingEnd, digest

CHALLENGE_BYTES, ANSWER_BYTES = 36, 140
MOST_CONNECTIONS = 1000
SECONDS = 2.0
"""Until an answer counts as not given, and for a connection."""
WRONG = bytes(16)


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., int], tuple[str, int]]:
        return os.open, (self.path, os.O_CREAT)


class Attack:
    """On one port."""

    def __init__(self, address: str, port: int, token: bytes, trap: str) -> None:
        self.where, self.token = (address, port), token
        self.held: list[socket.socket] = []
        junk = os.urandom(4096)
        bomb = pickle.dumps(Trap(trap))
        self.payloads = [
            junk, junk[:100], junk[:ANSWER_BYTES], b"\xff" * 4096, b"\0" * 4096, b"GET / HTTP/1.1\r\n\r\n",
            bomb, bomb.ljust(ANSWER_BYTES, b"."), b"pyc\1" + bomb,
            *(struct.pack("!BQ", 1, length) + junk for length in (0, 12, 1 << 32, 1 << 63)),  # frames
            struct.pack("=QQQqQII", 3, 0, 0, 1, 7, 2, 0) + b"aborted",  # an abort record
        ]  # fmt: skip

    def run(self) -> None:
        self._open()  # silent
        for payload in self.payloads:
            self._send(self._open(), payload)
        self._half_open()
        recorded = self._record()
        for message in (recorded, recorded[:-1], recorded * 2):
            self._send(self._open(), message)
        self._reflect()
        for rank, peer, lane in ((1, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 0), (1 << 31, 0, 0)):
            self._claim(Claim(rank, peer, lane, digest(WRONG, b"world")))
        slow = threading.Thread(target=self._byte_by_byte, daemon=True)
        slow.start()
        while len(self.held) < MOST_CONNECTIONS:
            self._open()
        slow.join()

    def received(self, until: float) -> list[str]:
        """What is received until then beyond one challenge per connection, as hexadecimal digits."""
        heard: dict[object, bytes] = {}
        with selectors.DefaultSelector() as selector:
            for one in self.held:
                selector.register(one, selectors.EVENT_READ)
            ready = [True]
            while selector.get_map() and (ready or time.monotonic() < until):
                ready = selector.select(max(0.0, until - time.monotonic()))
                for key, _ in ready:
                    data = b""
                    with contextlib.suppress(OSError):
                        data = key.fileobj.recv(4096)
                    heard[key.fileobj] = heard.get(key.fileobj, b"") + data
                    if not data:
                        selector.unregister(key.fileobj)
        challenge = b"pyc\1"
        return [
            text.hex()
            for text in heard.values()
            if len(text) > CHALLENGE_BYTES or not text.startswith(challenge[: len(text)])
        ]

    def _open(self) -> socket.socket:
        one = socket.socket()
        one.settimeout(SECONDS)
        with contextlib.suppress(OSError):
            one.connect(self.where)
        self.held.append(one)
        return one

    def _send(self, one: socket.socket, data: bytes) -> None:
        with contextlib.suppress(OSError):
            one.sendall(data)

    def _half_open(self) -> None:
        """The peer's end vanishes without a word, in the middle of an answer."""
        one = self._open()
        self._send(one, b"\1" * (ANSWER_BYTES // 2))
        one.setsockopt(socket.IPPROTO_TCP, 19, 1)  # TCP_REPAIR: no FIN is sent
        one.close()
        self.held.remove(one)

    def _record(self) -> bytes:
        """What somebody who knows the token has sent in another connection."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            AcceptingEnd(self.token, theirs)
            ours.setblocking(False)
            DiallingEnd(self.token, Claim(1, 0, 0, digest(self.token, b"world"))).advance(ours)
            return theirs.recv(4096)

    def _challenge(self, one: socket.socket) -> bytes:
        one.settimeout(0.3)
        with contextlib.suppress(OSError):
            return one.recv(CHALLENGE_BYTES, socket.MSG_PEEK)
        return b""

    def _reflect(self) -> None:
        """A port's challenge is sent back to it, and to another of its connections."""
        first, second = self._open(), self._open()
        challenge = self._challenge(first)
        for one in (first, second):
            self._send(one, (challenge or b"pyc\1" + bytes(32)).ljust(ANSWER_BYTES, b"\0"))

    def _claim(self, claim: Claim) -> None:
        """The right format, the wrong token."""
        one = self._open()
        challenge = self._challenge(one) or b"pyc\1" + bytes(32)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(challenge)
            ours.setblocking(False)
            DiallingEnd(WRONG, claim).advance(ours)
            self._send(one, theirs.recv(4096))

    def _byte_by_byte(self) -> None:
        one = self._open()
        for byte in os.urandom(ANSWER_BYTES):
            with contextlib.suppress(OSError):
                one.send(bytes([byte]))
            time.sleep(0.01)


def main(token: str, trap: str, *ports: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    attacks = []
    for text in ports:
        address, _, port = text.rpartition(":")
        attacks.append(Attack(address, int(port), bytes.fromhex(token), trap))
    threads = [threading.Thread(target=attack.run) for attack in attacks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    end = time.monotonic() + SECONDS
    for text, attack in zip(ports, attacks, strict=True):
        reached = sum(one.fileno() >= 0 for one in attack.held)
        print(json.dumps({"port": text, "connections": reached, "received": attack.received(end)}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
