"""A stranger next to a job: another user, on its host or on its network, who tries every port, socket and file.

python neighbour.py UID PID ADDRESSES: as user UID, in the network namespace in which it is started, it connects to all
ports that listen in the namespace of process PID, at all ADDRESSES ("a,b,..."), and to all abstract sockets if the two
namespaces are the same. It does so for each line of its standard input, answers with what it has reached so far, as
JSON, and keeps its connections to the end. The namespace of PID must belong to the job alone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import resource
import select
import socket
import struct
import sys
from pathlib import Path
from typing import IO

TABLES = ("tcp", "tcp6", "unix")
LISTENS = "0A"
FRAME = struct.Struct("!BQ")
_STORE_HELLO = b"\0" + struct.pack("=I", 0x3C85F7CE)
_JUNK = random.Random(0).randbytes(4096)
PAYLOADS = [
    b"",  # connects and is silent
    _JUNK,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\xff" * 4096,
    FRAME.pack(1, 1 << 63),
    FRAME.pack(1, 1 << 32) + b"\0" * 4096,
    *(FRAME.pack(1, 12) + struct.pack("!III", version, 1, 2) for version in (1, 2)),  # what a rank 1 would send
    *(FRAME.pack(kind, 4) + b"word" for kind in (2, 3, 4)),
    _STORE_HELLO,  # torch's store: silent after the beginning, a huge key, garbage
    _STORE_HELLO + b"\x01" + struct.pack("=Q", 1 << 60),
    _STORE_HELLO + _JUNK,
]
SILENT = 100  # more connections to each


class Neighbour:
    """Holds every connection that it gets."""

    def __init__(self, uid: int, pid: str, addresses: list[str]) -> None:
        # Opened before the user changes: read repeatedly.
        self.tables: dict[str, IO[str]] = {name: open(f"/proc/{pid}/net/{name}") for name in TABLES}  # noqa: SIM115
        self.shares_namespace = os.readlink("/proc/self/ns/net") == os.readlink(f"/proc/{pid}/ns/net")
        if os.geteuid() != uid:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        self.addresses = addresses
        self.reached: dict[str, int] = {}
        self.received: list[bytes] = [b""]
        self.opened: set[str] = set()
        self.held: list[socket.socket] = []
        self.tried: set[str] = set()

    def look(self) -> None:
        """Try everything that has not been tried, and all files again."""
        for address, port in self._ports():
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._try(f"{address} {port}", family, (address, port))
        for name in self._names() if self.shares_namespace else ():
            self._try(name, socket.AF_UNIX, "\0" + name)
        self._files()

    def _ports(self) -> set[tuple[str, int]]:
        found = set()
        for name in ("tcp", "tcp6"):
            for row in self._rows(name):
                if row[3] == LISTENS:
                    found |= {(address, int(row[1].rpartition(":")[2], 16)) for address in self.addresses}
        return found

    def _names(self) -> set[str]:
        return {row[7][1:] for row in self._rows("unix") if len(row) > 7 and row[7].startswith("@") and row[5] == "01"}

    def _rows(self, name: str) -> list[list[str]]:
        self.tables[name].seek(0)
        return [line.split() for line in self.tables[name].read().splitlines()[1:]]

    def _try(self, label: str, family: int, address: object) -> None:
        if label in self.tried:
            return
        self.tried.add(label)
        for payload in [*PAYLOADS, *self.received, *[b""] * SILENT]:
            one = socket.socket(family, socket.SOCK_STREAM)
            one.settimeout(0.2)
            try:
                one.connect(address)
                self.reached[label] = self.reached.get(label, 0) + 1
                one.setblocking(False)
                with contextlib.suppress(OSError):
                    one.send(payload)
            except OSError as error:
                one.close()
                if error.errno == errno.ECONNREFUSED or isinstance(error, TimeoutError):  # or no longer accepts
                    return
                continue
            self.held.append(one)
        self._hear()

    def _hear(self) -> None:
        """What is answered is sent to the next one."""
        latest = {one.fileno(): one for one in self.held[-len(PAYLOADS) - SILENT :]}
        poll = select.poll()  # select takes no descriptor above 1023
        for descriptor in latest:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(0)[:20]:
            one = latest[descriptor]
            with contextlib.suppress(OSError):
                data = one.recv(4096)
                if data and len(self.received) < 20:
                    self.received.append(data)

    def _files(self) -> None:
        """Shared memory by name, and what other processes have open."""
        paths = [path for path in Path("/dev/shm").glob("*") if "pycollective" in path.name]
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                paths += (process / "fd").iterdir() if process.name != str(os.getpid()) else ()
        for path in paths:
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
                if "pycollective" in f"{path} {os.path.realpath(path)}":
                    self.opened.add(str(path))


def main(uid: str, pid: str, addresses: str) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # more than a hundred connections to each port
    neighbour = Neighbour(int(uid), pid, addresses.split(","))
    for _ in sys.stdin:
        neighbour.look()
        print(json.dumps({"reached": neighbour.reached, "opened": sorted(neighbour.opened)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
