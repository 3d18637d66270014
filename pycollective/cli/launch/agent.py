"""The part of `pycollective run -H` on each host: `python -m pycollective.cli.launch.agent`, in the remote shell.

It writes one line about its host to standard output, reads one line with its ranks' command and environment from
standard input, and runs them. What follows on standard output is the ranks' own, and a last line. If all have
succeeded, it then stays, for ranks of other hosts that wait in init() for its own; otherwise the line has the first
that failed and the one that led to it. A number on standard input is a signal for the ranks; when standard input ends,
because the launcher has, all of them are killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass, field

from pycollective.cli.launch.culprit import Ended
from pycollective.cli.launch.host_variables import describe
from pycollective.cli.launch.job import Job, log
from pycollective.cli.launch.one_host import held_port, job_environment, without_launchers

READY = b"pycollective-agent "
"""Begins the line about the host: shells may have written other lines before."""
DONE = b"pycollective-agent-done\n"
"""The last line, after the ranks' output, which may have ended without a newline."""
FAILED = b"pycollective-agent-failed "
"""Begins the last line, with two culprit.Ended, unless all ranks have succeeded."""
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class LaunchOrder:
    """The ranks of one host, as a launcher tells its agent in one line of JSON.

    Attributes:
        host: its name, for messages.
        environment: of the launcher, as far as it is forwarded.
        variables: of the job on this host; they replace others.
        size: of the whole job. first, count: the ranks of this host.
        tag, grace: as for one_host.run.
        folder: in which they run.
        worker: name of the only process, if it is a worker of an elastic job, which gets its rank later.
    """

    host: str
    command: list[str]
    environment: dict[str, str]
    variables: dict[str, str]
    size: int = 1
    first: int = 0
    count: int = 1
    tag: bool = False
    grace: float = 0.0
    folder: str = field(default_factory=os.getcwd)
    worker: str = ""

    def encode(self) -> bytes:
        """The line, the JSON of the fields."""
        return json.dumps(asdict(self)).encode() + b"\n"


def main() -> int:
    """The exit code of the first rank that failed."""
    with held_port("") as rendezvous, held_port("") as master:
        os.write(1, READY + json.dumps(describe(rendezvous, master)).encode() + b"\n")
        line = _read_line()
        if not line:
            return 1
        return _run(LaunchOrder(**json.loads(line)))


def _read_line() -> bytes:
    """A line of standard input, and no byte more of it; b"" if it ends first."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte or len(line) > _MOST_BYTES:
            return b""
        line += byte
    return bytes(line)


class _AgentJob(Job):
    """The ranks of this host, which act on the launcher's orders."""

    def judge(self, first: Ended, culprit: Ended) -> None:
        if self.name:
            return super().judge(first, culprit)
        with contextlib.suppress(BrokenPipeError):  # the launcher has been killed
            os.write(1, FAILED + json.dumps([asdict(first), asdict(culprit)]).encode() + b"\n")

    def obey(self, order: bytes) -> None:
        if not order:
            self.end_at_once()
        for number in order.split():
            self.take_signal(int(number))


def _run(order: LaunchOrder) -> int:
    try:
        os.chdir(order.folder)
    except OSError as error:
        folder = f"{order.folder!r}, the launcher's working directory"
        log(f"host {order.host} has no folder {folder}: {error.strerror}")
        return 127
    given = {**os.environ, **order.environment}
    common = without_launchers(given) if order.worker else job_environment(order.size, 0, given)
    job = _AgentJob(
        order.size, order.tag, order.grace, (), order.first, order.count, control=0, name=order.worker, host=order.host
    )
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    code = job.run(order.command, common | order.variables)
    if code == 0 and order.count < order.size:
        os.write(1, DONE)
        while os.read(0, 4096):
            pass
    return code


if __name__ == "__main__":
    sys.exit(main())
