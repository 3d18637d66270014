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
from dataclasses import asdict

from pycollective.cli.launch.culprit import Ended
from pycollective.cli.launch.host_variables import describe
from pycollective.cli.launch.job import Job, guardian, log
from pycollective.cli.launch.one_host import held_port, job_environment, without_launchers
from pycollective.cli.launch.order import LaunchOrder

READY = b"pycollective-agent "
"""Begins the line about the host: shells may have written other lines before."""
DONE = b"pycollective-agent-done\n"
"""The last line, after the ranks' output, which may have ended without a newline."""
FAILED = b"pycollective-agent-failed "
"""Begins the last line, with two culprit.Ended, unless all ranks have succeeded."""
_MOST_BYTES = 16 << 20


def main() -> int:
    """The exit code of the first rank that failed."""
    with held_port("") as rendezvous, held_port("") as master:
        os.write(1, READY + json.dumps(describe(rendezvous, master)).encode() + b"\n")
        line = _read_line()
        if not line:
            return 1
        return _run(LaunchOrder.decode(line))


def _read_line() -> bytes:
    """A line of standard input, and no byte more of it; b"" if it ends first."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte or len(line) > _MOST_BYTES:
            return b""
        line += byte
    return bytes(line)


def _run(order: LaunchOrder) -> int:
    try:
        os.chdir(order.folder)
    except OSError as error:
        folder = f"{order.folder!r}, the launcher's working directory"
        log(f"host {order.host} has no folder {folder}: {error.strerror}")
        return 127
    given = {**os.environ, **order.environment}
    common = without_launchers(given) if order.worker else job_environment(order.size, 0, given)
    job = Job(
        order.size, order.tag, order.grace, (), order.first, order.count, control=0, name=order.worker, host=order.host
    )

    def judge(first: Ended, culprit: Ended) -> None:
        with contextlib.suppress(BrokenPipeError):  # the launcher has been killed
            os.write(1, FAILED + json.dumps([asdict(first), asdict(culprit)]).encode() + b"\n")

    if not order.worker:
        job.judge = judge

    def obey(numbers: bytes) -> None:
        if not numbers:
            job.end_at_once()
        for number in numbers.split():
            job.take_signal(int(number))

    job.obey = obey
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with guardian() as watch, job.signals():
        try:
            code = job.start(order.command, common | order.variables, watch)
        finally:
            job.kill_all()
    if code == 0 and order.count < order.size:
        os.write(1, DONE)
        while os.read(0, 4096):
            pass
    return code


if __name__ == "__main__":
    sys.exit(main())
