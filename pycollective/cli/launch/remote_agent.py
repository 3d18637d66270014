"""The launcher's end of an agent (agent.py): the remote shell that runs it, and the pipes to it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, TextIO

from pycollective import settings
from pycollective.cli.launch.agent import DONE, FAILED, READY
from pycollective.cli.launch.culprit import Ended
from pycollective.cli.launch.output import Pipe, Screen
from pycollective.errors import BootstrapError

DEFAULT_SHELL = ("ssh", "-o", "BatchMode=yes")
FORWARDED = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES")
FORWARDED_PREFIXES = (settings.PREFIX, "HOROVOD_", "PYTHON", "OMP_", "NCCL_", "TORCH_")
"""Variables that the ranks get from the launcher, by name and by prefix; all others are those of their host."""
START_SECONDS = 60.0
"""How long an agent may take to report."""
_END_SECONDS = 0.1  # until a shell that has closed its output counts as running
_CHUNK = 65536


class RemoteAgent:
    """An agent that is starting or runs. Its standard input is what keeps its ranks alive.

    Args:
        shell: words of a remote shell, which takes a host and a command; empty: ssh, and none for this host.
        host: name of a host.

    Raises:
        BootstrapError: the remote shell cannot be started.

    Attributes:
        about: the description of its host (host_variables.describe), with its name as `host`; empty: not yet reported.
        output: a nonblocking descriptor, to be read by `hear`, then through `pipe`.
    """

    def __init__(self, shell: Sequence[str], host: str) -> None:
        self.host, self.about = host, dict[str, Any]()
        words = _words(shell, host)
        self.tried = shlex.join(words)
        """The command that starts it, for messages."""
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, start_new_session=True)
        except OSError as error:
            raise BootstrapError(f"cannot start {words[0]!r}: {error.strerror}; --rsh names the remote shell") from None
        assert self.process.stdin is not None and self.process.stdout is not None
        self._input: IO[bytes] = self.process.stdin
        self.output: IO[bytes] = self.process.stdout
        os.set_blocking(self.output.fileno(), False)
        self._heard = b""

    def hear(self) -> bool:
        """Return whether it has reported, which sets `about`. Lines before that are a remote shell's, and are dropped.

        Raises:
            BootstrapError: it has ended before.
        """
        try:
            data = os.read(self.output.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._require_running()
        self._heard += data
        while b"\n" in self._heard:
            line, _, self._heard = self._heard.partition(b"\n")
            if line.startswith(READY):
                self.about = json.loads(line[len(READY) :]) | {"host": self.host}
                return True
        return False

    def pipe(self, screen: Screen) -> OutputPipe:
        """What copies its ranks' output from now on; the agent has reported."""
        sink: Any = getattr(sys.stdout, "buffer", None) or _AsText(sys.stdout)
        return OutputPipe(b"", self.output, sink, screen, self._heard)

    def poll(self) -> int | None:
        """The exit code, 128 + the signal for a remote shell that was ended by one; None: it runs."""
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    def send(self, text: bytes) -> None:
        """Write to its standard input: an order, then numbers of signals. It is no error if it has ended."""
        with contextlib.suppress(OSError, ValueError):
            self._input.write(text)
            self._input.flush()

    def abandon(self) -> None:
        """End its standard input, so that it kills its ranks."""
        with contextlib.suppress(OSError, ValueError):
            self._input.close()

    def kill(self) -> None:
        """End it and the remote shell at once."""
        self.abandon()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the pipes; it has ended."""
        self.abandon()
        self.output.close()

    def _require_running(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(_END_SECONDS)
            need = "it could not log in" if code == 255 else "it needs this Python and pycollective at the same path"
            why = f"the agent ended with code {code} before it reported: {need} (tried: {self.tried})"
            raise BootstrapError(f"host {self.host}: {why}")


@dataclass
class OutputPipe(Pipe):
    """The output of an agent's ranks.

    Attributes:
        done: whether the agent has reported that all of them have succeeded.
        failed: the first that failed and the one that led to it; empty: none has.
    """

    done: bool = False
    failed: Sequence[Ended] = ()

    def write(self, lines: Sequence[bytes]) -> None:
        last = lines[-1] if lines else b""
        if last.endswith(DONE):
            self.done = True
            rest = last.removesuffix(DONE)
        else:
            rest, found, report = last.partition(FAILED)
            if not found:
                return super().write(lines)
            self.failed = [Ended(**each) for each in json.loads(report)]
        super().write([*lines[:-1], *([rest + b"\n"] if rest else [])])
        return None


class _AsText:
    """A stream for bytes on top of one for text, such as a notebook's standard output."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, data: bytes) -> None:
        self._stream.write(data.decode(errors="replace"))

    def flush(self) -> None:
        self._stream.flush()


def ssh(port: int | None = None, key: str | None = None) -> list[str]:
    """The words of a remote shell with a port and a file with a private key; empty: the default."""
    options = [*(["-p", str(port)] if port else []), *(["-i", key] if key else [])]
    return [*DEFAULT_SHELL, *options] if options else []


def forwarded_variables(env: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """The variables that ranks get from the launcher; `names`: further ones."""
    return {
        name: value
        for name, value in env.items()
        if name in (*FORWARDED, *names) or name.startswith(FORWARDED_PREFIXES)
    }


def _words(shell: Sequence[str], host: str) -> list[str]:
    """The command that starts an agent on a host."""
    agent = [sys.executable, "-m", "pycollective.cli.launch.agent"]
    if not shell and host in ("localhost", socket.gethostname()):
        return agent
    return [*(shell or DEFAULT_SHELL), host, *map(shlex.quote, agent)]
