"""Which hosts an elastic job may use, asked about once a second."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import TypeAlias

from pycollective.errors import Error

Discovery: TypeAlias = Callable[[], Mapping[str, int]]
"""Returns host -> slots, the number of workers that it has room for, in the order of preference. May block."""
EVERY = 1.0
"""Seconds between two calls, as in Horovod."""
_SCRIPT_SECONDS = 60.0
_MOST_BYTES, _MOST_SLOTS = 1 << 20, 4096
_LINE = re.compile(r"([A-Za-z0-9_.][A-Za-z0-9_.-]*)(?::([0-9]{1,5}))?")


class DiscoveryError(Error):
    """A discovery script failed, or wrote something else than hosts."""


class FixedHosts:
    """A discovery of given hosts; `set` changes them, from any thread."""

    def __init__(self, hosts: Mapping[str, int]) -> None:
        self._hosts = dict(hosts)

    def set(self, hosts: Mapping[str, int]) -> None:
        """Replace the hosts, from now on."""
        self._hosts = dict(hosts)

    def __call__(self) -> Mapping[str, int]:
        return self._hosts


class ScriptDiscovery:
    """A program that writes a line `host:slots` or `host` for each host, as Horovod's --host-discovery-script.

    Args:
        script: a path, or a command for the shell.
        slots: of a line without a number; None: such a line is an error.
    """

    def __init__(self, script: str, slots: int | None = None) -> None:
        self._script, self._slots = script, slots

    def __call__(self) -> Mapping[str, int]:
        """The hosts.

        Raises:
            DiscoveryError: the script fails, does not end within a minute, or writes a line of another form.
        """
        hosts: dict[str, int] = {}
        for line in filter(None, map(str.strip, self._run().splitlines())):
            host, slots = self._parse(line)
            if host in hosts:
                raise DiscoveryError(f"{self._name} lists the host {host} twice")
            hosts[host] = slots
        return hosts

    @property
    def _name(self) -> str:
        return f"the discovery script {self._script!r}"

    def _parse(self, line: str) -> tuple[str, int]:
        found = _LINE.fullmatch(line)
        if found is None or (found[2] is not None and int(found[2]) > _MOST_SLOTS):
            raise DiscoveryError(f"{self._name} wrote {line[:80]!r}, which is not of the form host:slots")
        if found[2] is None and self._slots is None:
            raise DiscoveryError(f"{self._name} wrote {line[:80]!r} without a number of slots, and none is the default")
        return found[1], int(found[2]) if found[2] is not None else self._slots or 0

    def _run(self) -> str:
        process = subprocess.Popen(
            self._script,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=_SCRIPT_SECONDS)
        except subprocess.TimeoutExpired:
            raise DiscoveryError(f"{self._name} has not ended within {_SCRIPT_SECONDS:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # and what it has started
        if process.returncode:
            lines = errors.decode(errors="replace").strip().splitlines()
            raise DiscoveryError(
                f"{self._name} failed with code {process.returncode}" + (f": {lines[-1][:200]}" if lines else "")
            )
        if len(output) > _MOST_BYTES:
            raise DiscoveryError(f"{self._name} wrote {len(output)} bytes, more than {_MOST_BYTES}")
        return output.decode(errors="replace")


class Watch:
    """Calls a discovery again and again, in a thread of its own.

    Args:
        report: called, from that thread, with the text of an error: once, until the discovery works again.
    """

    def __init__(self, discovery: Discovery, report: Callable[[str], None]) -> None:
        self._discovery, self._report = discovery, report
        self._ended = threading.Event()
        self.hosts: Mapping[str, int] | None = None
        """The last answer; None: not yet one."""
        self.failure: Exception | None = None
        """Why the first call failed."""
        self._thread = threading.Thread(target=self._run, name="pycollective host discovery", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """No more calls; does not wait for one in progress."""
        self._ended.set()

    def _run(self) -> None:
        reported = ""
        while not self._ended.is_set():
            try:
                self.hosts, reported = dict(self._discovery()), ""
            except Exception as error:
                if self.hosts is None:
                    self.failure = error
                    return
                if str(error) != reported and not self._ended.is_set():
                    reported = str(error)
                    self._report(f"{reported}; the last hosts remain")
            self._ended.wait(EVERY)
