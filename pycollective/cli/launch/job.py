"""The processes of a job on this host: started together, watched, signalled, and ended together.

Each leads its own session, so its process group can be signalled; a small guardian process kills the groups if this
one is killed by SIGKILL. Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from pycollective import settings
from pycollective.cli.launch.culprit import Ended, ExitReport, LastException, first_and_culprit, verdict
from pycollective.cli.launch.output import Pipe, Screen, prefix_of
from pycollective.cli.launch.signals import ENDING, handled_by
from pycollective.comm.bootstrap.sockets import descriptors

KILL_AFTER = 5.0
"""Seconds between asking a rank to end and killing it."""
TOGETHER = 0.2
"""Seconds in which the ranks of a job that is over end, and in which those that wait for a lost one can name it."""
CULPRIT_ENDS = 2.0
"""Seconds that the rank that a failed one blames has to end by itself: it may be about to, with an error of its own."""
_POLL = 0.05  # seconds between polls of the children if the kernel has no pidfd, and while a line is not complete
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT
_ENDED, _WAKE, _CONTROL = "ended", "wake", "control"  # what a descriptor of the selector means


def rank_environment(rank: int, local: int) -> dict[str, str]:
    """Variables that specify a rank, of the job and of its host: our own, and those that torch and others read."""
    ours = {"PYCOLLECTIVE_RANK": str(rank), "PYCOLLECTIVE_LOCAL_RANK": str(local)}
    return ours | {"RANK": str(rank), "LOCAL_RANK": str(local)}


@dataclass
class Rank:
    rank: int
    process: subprocess.Popen[bytes]
    env: dict[str, str]
    report: ExitReport
    exception: LastException = field(default_factory=LastException)
    code: int | None = None

    def signal(self, number: int) -> None:
        """Signal the process group; it is no error if the group has exited."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


@dataclass
class Job:
    """The ranks of a job on this host. `run` does it all.

    Attributes:
        size: of the whole job. tag, grace, cores: as for one_host.run.
        count: how many of the ranks run here, from the rank `first` on; None: all.
        name: of the only process, if it is a worker that gets its rank later. host: for messages.
        control: a descriptor whose bytes are passed to `obey`.
    """

    size: int
    tag: bool
    grace: float
    cores: Sequence[int] = ()
    first: int = 0
    count: int | None = None
    control: int | None = None
    name: str = ""
    host: str = ""
    ranks: list[Rank] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    failed_at: float | None = None
    terminate_at: float | None = None
    kill_at: float | None = None
    pause: float = 1.0
    screens: dict[tuple[int, int], Screen] = field(default_factory=dict)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def judge(self, first: Ended, culprit: Ended) -> None:
        """At the end, report the first rank that failed and the one that led to it."""
        log(verdict(first, culprit)[1])

    def obey(self, order: bytes) -> None:
        """Act on what was read from `control`, b"" at its end."""
        raise NotImplementedError

    def run(self, words: list[str], env: dict[str, str]) -> int:
        """Start all, wait for all, and return the exit code of the one that led to the end of the job, or 0.

        However the job ends, no process of its groups survives it. Meanwhile the launcher's signals are forwarded.

        Args:
            words: program and arguments; a first word ending in `.py` is run by this Python.
            env: of all.
        """
        if words[0].endswith(".py"):
            words = [sys.executable, *words]
        with guardian() as watch, self._signals():
            try:
                return self._wait() if self._start(words, env, watch) else 127
            finally:
                self._signal_all(signal.SIGKILL)
                for rank in self.ranks:
                    rank.process.wait()
                self.selector.close()

    def _start(self, words: list[str], env: dict[str, str], watch: int) -> bool:
        """Start all; `watch`: the guardian's descriptor. False, after a report, if that is not possible."""
        if self.control is not None:
            self.selector.register(self.control, selectors.EVENT_READ, _CONTROL)
        descriptors.raise_limit()
        usable = os.sched_getaffinity(0)
        try:
            for local in range(self.size if self.count is None else self.count):
                rank = self.first + local
                if self.cores:
                    os.sched_setaffinity(0, {self.cores[local]})  # which the rank inherits
                self._spawn(rank, words, env if self.name else env | rank_environment(rank, local))
                os.write(watch, b"%d\n" % self.ranks[-1].process.pid)
        except OSError as error:
            why: object = error.strerror
            if descriptors.are_used_up(error):
                why = descriptors.refusal("launcher", "it needs up to four for each rank", error)
            log(f"cannot start {words[0]!r}: {why}")
            return False
        finally:
            if self.cores:
                os.sched_setaffinity(0, usable)
        return True

    def _wait(self) -> int:
        while any(r.code is None for r in self.ranks):
            self._turn()
        # The ranks have exited; a stray process that still holds a pipe must not delay the job.
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and self._pipes():
            self._events(deadline - time.monotonic())
        found = first_and_culprit(self.ended)
        if found is None:
            return 0
        if self._screen_of(sys.stderr).begun is not None:  # a rank has ended within a line
            print(file=sys.stderr)
        self.judge(*found)
        return verdict(*found)[0]

    def _spawn(self, rank: int, words: list[str], env: dict[str, str]) -> None:
        report = ExitReport()
        process = subprocess.Popen(
            words,
            env=env | {"PYCOLLECTIVE_REPORT": report.value},
            pass_fds=[report.writer],
            stdin=None if rank == 0 and self.control is None else subprocess.DEVNULL,
            stdout=subprocess.PIPE if self._passes_on(sys.stdout) else None,
            stderr=subprocess.PIPE if self._passes_on(sys.stderr) else None,
            start_new_session=True,
        )
        report.started()
        self.ranks.append(Rank(rank, process, env, report))
        exception = self.ranks[-1].exception
        for source, sink, reader in ((process.stdout, sys.stdout, None), (process.stderr, sys.stderr, exception)):
            if source is not None:
                label = self.name or f"{rank:>{len(str(self.size - 1))}}"
                prefix = prefix_of(label, rank, sink) if self.tag else b""
                pipe = Pipe(prefix, source, sink.buffer, self._screen_of(sink), exception=reader)
                self.selector.register(source, selectors.EVENT_READ, pipe)
        try:
            self.selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, _ENDED)
        except OSError:  # an old kernel, or a sandbox without the call
            self.pause = _POLL

    def _passes_on(self, sink: TextIO) -> bool:
        """Return whether the launcher writes to it for the ranks, whose lines would tear; a terminal is theirs."""
        return self.tag or (self.size > 1 and hasattr(sink, "buffer") and not sink.isatty())

    def _screen_of(self, sink: TextIO) -> Screen:
        """Standard output and error may be one terminal."""
        try:
            file = os.fstat(sink.fileno())
        except (OSError, ValueError):  # not a file, as in a notebook
            return Screen()
        return self.screens.setdefault((file.st_dev, file.st_ino), Screen())

    def _pipes(self) -> list[Pipe]:
        return [key.data for key in self.selector.get_map().values() if isinstance(key.data, Pipe)]

    def _turn(self) -> None:
        """One iteration of the loop: move output, detect exited ranks, handle the two timers."""
        timers = [t - time.monotonic() for t in (self.terminate_at, self.kill_at) if t is not None]
        pause = _POLL if any(pipe.rest for pipe in self._pipes()) else self.pause
        self._events(max(0.0, min([*timers, pause])))
        for rank in self.ranks:
            if rank.code is None and os.waitid(os.P_PID, rank.process.pid, _LOOK) is not None:
                rank.signal(signal.SIGKILL)  # kills the rest of its group while its pid is still reserved
                code = rank.process.wait()
                self._events(0.0)  # the last that it has written: one read takes all that a pipe holds
                self._ended(rank, code)
        self._timers()

    def _events(self, pause: float) -> None:
        for key, _ in self.selector.select(pause):
            if isinstance(key.data, Pipe):
                if not key.data.pump():
                    self.selector.unregister(key.fileobj)
            elif key.data == _ENDED:
                self.selector.unregister(key.fd)
                os.close(key.fd)
            elif key.data == _CONTROL:
                order = os.read(key.fd, 4096)
                if not order:
                    self.selector.unregister(key.fd)
                self.obey(order)
            else:
                os.read(key.fd, 4096)  # the signal handler has run; this was only the wake-up
        now = time.monotonic()
        for pipe in self._pipes():
            pipe.settle(now)

    def _ended(self, rank: Rank, code: int) -> None:
        rank.code = code
        host = f" of host {self.host}" if self.host else ""
        who = f"{f'worker {self.name}' if self.name else f'rank {rank.rank}'} (pid {rank.process.pid}{host})"
        stopped = self.kill_at is not None
        blamed, text = rank.report.read()
        if not text and code == 1 and not stopped:
            text = rank.exception.text_of_end()
        ended = Ended(rank.rank, who, code, stopped, blamed, text)
        self.ended.append(ended)
        others = {each.rank for each in self.ranks if each.code is None}
        if not self.name and (others or self.count is not None):
            self._tell_others(rank, ended.how)
        if self.kill_at is not None:
            return
        if code and self.failed_at is None:
            self.failed_at = time.monotonic()
            if self.grace and others:
                log(f"{who} {ended.how}; the others may continue for {self.grace:g} s")
        if self.failed_at is not None:
            awaited = any(each.blamed in others for each in self.ended)
            self.terminate_at = self.failed_at + max(self.grace, CULPRIT_ENDS if awaited else TOGETHER)

    def _tell_others(self, rank: Rank, how: str) -> None:
        """Tell those that wait in init() which rank has ended."""

        def tell() -> None:
            from pycollective.comm.bootstrap import ended  # slow to load, and not needed if all end together
            from pycollective.errors import BootstrapError

            with contextlib.suppress(BootstrapError):
                ended.report(rank.env, f"rank {rank.rank} {how} without joining the other ranks")

        timer = threading.Timer(TOGETHER, tell)
        timer.daemon = True
        timer.start()

    def _timers(self) -> None:
        now = time.monotonic()
        if self.terminate_at is not None and now >= self.terminate_at:
            self.terminate_at, self.kill_at = None, now + KILL_AFTER
            self._signal_all(signal.SIGTERM)
            self._signal_all(signal.SIGCONT)  # a stopped rank would not notice
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = now + KILL_AFTER
            self._signal_all(signal.SIGKILL)

    def request_end(self, number: int) -> None:
        """Send a signal to all ranks, and SIGKILL later; a second request kills them at once."""
        again = self.kill_at is not None
        self.terminate_at, self.kill_at = None, time.monotonic() + KILL_AFTER
        self._signal_all(signal.SIGKILL if again else number)

    def take_signal(self, number: int) -> None:
        """Act as the launcher does when it gets this signal; SIGTSTP stops the ranks."""
        if number in ENDING:
            self.request_end(number)
        else:  # each rank leads its session: SIGTSTP would have no effect there
            self._signal_all(signal.SIGSTOP if number == signal.SIGTSTP else number)

    def end_at_once(self) -> None:
        """Kill all ranks; `start` returns when they have ended."""
        self.terminate_at, self.kill_at = None, time.monotonic()

    def _signal_all(self, number: int) -> None:
        for rank in self.ranks:
            if rank.code is None:
                rank.signal(number)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Forward the launcher's signals while the job runs."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self.selector.register(reader, selectors.EVENT_READ, _WAKE)

        try:
            with handled_by(self.take_signal, self.take_signal):
                wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
                try:
                    yield
                finally:
                    signal.set_wakeup_fd(wakeup)
        finally:
            os.close(reader)
            os.close(writer)


@contextlib.contextmanager
def guardian() -> Iterator[int]:
    """A process that outlives a SIGKILL of the launcher and then kills the ranks' groups.

    Yields the descriptor to which the launcher writes each rank's process group. The guardian acts if the pipe closes
    without the final word, as when the launcher has been killed.
    """
    reader, writer = os.pipe()
    guardian = os.fork()
    if guardian == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            groups = pipe.read().split()
        if "done" not in groups:
            for group in groups:
                with contextlib.suppress(OSError):
                    os.killpg(int(group), signal.SIGKILL)
        os._exit(0)
    os.close(reader)
    try:
        yield writer
    finally:
        os.write(writer, b"done\n")
        os.close(writer)
        os.waitpid(guardian, 0)


def given_environment(env: Mapping[str, str] | None, interface: str = "") -> dict[str, str]:
    """The variables given to a job, `os.environ` by default; warns of unknown settings, of which ranks then do not.

    Args:
        interface: replaces PYCOLLECTIVE_INTERFACE, if not empty.

    Raises:
        ValueError: the value of a setting is not valid.
    """
    given = dict(os.environ if env is None else env)
    if interface:
        given["PYCOLLECTIVE_INTERFACE"] = interface
    for name, sentence in settings.unknown(given).items():
        log(f"warning: {sentence}")
        given[settings.WARNED] = ",".join(filter(None, [given.get(settings.WARNED), name]))
    settings.refuse_invalid(given)
    return given


def log(message: str) -> None:
    print(f"pycollective run: {message}", file=sys.stderr, flush=True)
