"""`pycollective run`: n copies of a command on this host, as one job that starts and ends together.

Each rank leads its own session, so its process group can be signalled; a small guardian process kills the groups
if this launcher itself is killed by SIGKILL. Imports only the standard library, the settings and the list of cores.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TextIO

from pycollective import settings
from pycollective.comm.host.cores import in_binding_order, ranges, usable_cores

KILL_AFTER = 5.0
"""Seconds between asking a rank to end and killing it."""
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL = 0.05  # seconds between polls of the children if the kernel has no pidfd
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT
_ENDED, _WAKE = "ended", "wake"  # what a descriptor of the selector means
_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93)
_OTHERS = (
    *("TORCHELASTIC_", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK"),  # torchrun
    *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # mpirun
    *("PMI_RANK", "PMI_SIZE", "PMI_FD", "PMI_PORT", "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_"),
    *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_", "HOROVOD_CROSS_", "HOROVOD_CONTROLLER", "HOROVOD_GLOO_"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"),
)
"""Prefixes of the variables by which other launchers set the rank of a process; removed from our ranks' environment."""


def job_environment(size: int, port: int, env: Mapping[str, str]) -> dict[str, str]:
    """The environment common to all ranks: `env` without the variables of other launchers, and OMP_NUM_THREADS.

    Args:
        port: where rank 0 may open the store of a torch.distributed job, as MASTER_PORT; 0: none.
    """
    kept = {name: value for name, value in env.items() if not name.startswith(_OTHERS)}
    if port:
        kept |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if size > 1:
        kept.setdefault("OMP_NUM_THREADS", "1")
    warned = [*filter(None, [env.get(settings.WARNED)]), *settings.unknown(env)]
    return kept | {
        "PYCOLLECTIVE_SIZE": str(size),
        "PYCOLLECTIVE_LOCAL_SIZE": str(size),
        "PYCOLLECTIVE_RENDEZVOUS": f"{os.getuid()}-{secrets.token_hex(8)}",
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        **({settings.WARNED: ",".join(warned)} if warned else {}),
    }


def rank_environment(rank: int) -> dict[str, str]:
    """Variables that specify a rank: our own, and those that torch, accelerate and Lightning read."""
    return dict.fromkeys(("PYCOLLECTIVE_RANK", "PYCOLLECTIVE_LOCAL_RANK", "RANK", "LOCAL_RANK"), str(rank))


@contextlib.contextmanager
def _held_port() -> Iterator[int]:
    """A TCP port of the loopback that is reserved while the job runs.

    The socket does not listen: with SO_REUSEADDR on both sides, which torch's TCPStore sets, rank 0 can. Yields 0 if
    there is no loopback: torch then reports what is missing.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def run(
    size: int,
    command: Sequence[str],
    *,
    tag: bool = False,
    grace: float = 0.0,
    env: Mapping[str, str] | None = None,
    cores: Sequence[int] = (),
) -> int:
    """Start `size` ranks of `command`, wait for all, and return the first failing rank's exit code (or 0).

    Args:
        size: number of ranks, at least 1.
        command: program and arguments; a first word ending in `.py` is run by this Python.
        tag: write `[rank] ` before each line of output.
        grace: seconds that the other ranks may continue after the first failure before they get SIGTERM
            (SIGKILL follows KILL_AFTER seconds later).
        env: the environment of the ranks, `os.environ` by default; variables of other launchers are removed, and
            OMP_NUM_THREADS becomes 1, as with torchrun, if it is not set and there are several ranks.
        cores: for each rank, the core that it is bound to; empty: ranks inherit the launcher's affinity.

    A rank ended by signal s counts as exit code 128 + s. SIGINT, SIGTERM and SIGHUP are forwarded to all
    ranks; a second one kills them. 127 means that the command could not be started.
    """
    words = list(command)
    if words and words[0].endswith(".py"):
        words.insert(0, sys.executable)
    given = dict(os.environ if env is None else env)
    for sentence in settings.unknown(given).values():
        _log(f"warning: {sentence}")
    job = _Job(size, tag, grace, cores)
    with _guardian() as watch, job.signals(), _held_port() as port:
        common = job_environment(size, port, given)
        if "OMP_NUM_THREADS" in common.keys() - given.keys():
            _log(f"OMP_NUM_THREADS=1 for each of {size} ranks; set it yourself for another number of threads")
        try:
            return job.start(words, common, watch)
        finally:
            job.kill_all()


@dataclass
class _Rank:
    rank: int
    process: subprocess.Popen[bytes]
    code: int | None = None

    def signal(self, number: int) -> None:
        """Signal the process group; it is no error if the group has exited."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


@dataclass
class _Pipe:
    """One tagged output stream of one rank."""

    prefix: bytes
    source: IO[bytes]
    sink: IO[bytes]
    rest: bytes = b""

    def pump(self) -> bool:
        """Copy the available complete lines; False at the end of the stream."""
        data = os.read(self.source.fileno(), 65536)
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        if not data and self.rest:
            lines, self.rest = [*lines, self.rest], b""
        if lines:
            self.sink.write(b"".join(self.prefix + line + b"\n" for line in lines))
            self.sink.flush()
        return bool(data)


@dataclass
class _Job:
    size: int
    tag: bool
    grace: float
    cores: Sequence[int] = ()
    ranks: list[_Rank] = field(default_factory=list)
    failed: int | None = None
    terminate_at: float | None = None
    kill_at: float | None = None
    pause: float = 1.0
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def start(self, words: list[str], env: dict[str, str], watch: int) -> int:
        for rank in range(self.size):
            try:
                with _affinity(self.cores[rank : rank + 1]):
                    self._spawn(rank, words, env | rank_environment(rank))
            except OSError as error:
                _log(f"cannot start {words[0]!r}: {error.strerror}")
                return 127
            os.write(watch, b"%d\n" % self.ranks[-1].process.pid)
        while any(r.code is None for r in self.ranks):
            self._turn()
        # The ranks have exited; a stray process that still holds a pipe must not delay the job.
        self._drain(time.monotonic() + 1.0)
        return self.failed or 0

    def _spawn(self, rank: int, words: list[str], env: dict[str, str]) -> None:
        process = subprocess.Popen(
            words,
            env=env,
            stdin=None if rank == 0 else subprocess.DEVNULL,
            stdout=subprocess.PIPE if self.tag else None,
            stderr=subprocess.PIPE if self.tag else None,
            start_new_session=True,
        )
        self.ranks.append(_Rank(rank, process))
        for source, sink in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            if source is not None:
                pipe = _Pipe(_prefix(rank, self.size, _takes_colour(sink)), source, sink.buffer)
                self.selector.register(source, selectors.EVENT_READ, pipe)
        try:
            self.selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, _ENDED)
        except OSError:  # an old kernel, or a sandbox without the call
            self.pause = _POLL

    def _turn(self) -> None:
        """One iteration of the loop: move output, detect exited ranks, handle the two timers."""
        timers = [t - time.monotonic() for t in (self.terminate_at, self.kill_at) if t is not None]
        self._events(max(0.0, min([*timers, self.pause])))
        for rank in self.ranks:
            if rank.code is None and os.waitid(os.P_PID, rank.process.pid, _LOOK) is not None:
                rank.signal(signal.SIGKILL)  # kills the rest of its group while its pid is still reserved
                self._ended(rank, rank.process.wait())
        self._timers()

    def _events(self, pause: float) -> None:
        for key, _ in self.selector.select(pause):
            if isinstance(key.data, _Pipe):
                if not key.data.pump():
                    self.selector.unregister(key.fileobj)
            elif key.data == _ENDED:
                self.selector.unregister(key.fd)
                os.close(key.fd)
            else:
                os.read(key.fd, 4096)  # the signal handler has run; this was only the wake-up

    def _drain(self, deadline: float) -> None:
        while time.monotonic() < deadline and any(
            isinstance(key.data, _Pipe) for key in self.selector.get_map().values()
        ):
            self._events(deadline - time.monotonic())

    def _ended(self, rank: _Rank, code: int) -> None:
        rank.code = code if code >= 0 else 128 - code
        if rank.code == 0 or self.failed is not None:
            return
        self.failed = rank.code
        others = sum(r.code is None for r in self.ranks)
        how = f"exited with code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
        stopping = f"; stopping the other {others}" if others else ""
        _log(f"rank {rank.rank} (pid {rank.process.pid}) {how}{stopping}")
        if self.kill_at is None:
            self.terminate_at = time.monotonic() + self.grace

    def _timers(self) -> None:
        now = time.monotonic()
        if self.terminate_at is not None and now >= self.terminate_at:
            self.terminate_at, self.kill_at = None, now + KILL_AFTER
            self._signal_all(signal.SIGTERM)
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = now + KILL_AFTER
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        for rank in self.ranks:
            if rank.code is None:
                rank.signal(number)

    def kill_all(self) -> None:
        """However the job ends, no process of its groups survives it."""
        self._signal_all(signal.SIGKILL)
        for rank in self.ranks:
            rank.process.wait()
        self.selector.close()

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Forward the launcher's signals while the job runs."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self.selector.register(reader, selectors.EVENT_READ, _WAKE)

        def forward(number: int, _frame: object) -> None:
            again = self.kill_at is not None
            self.terminate_at, self.kill_at = None, time.monotonic() + KILL_AFTER
            self._signal_all(signal.SIGKILL if again else number)

        before = {number: signal.signal(number, forward) for number in _FORWARDED}
        wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)


@contextlib.contextmanager
def _affinity(cores: Sequence[int]) -> Iterator[None]:
    """Processes started meanwhile are bound to these cores; empty: as this process is."""
    before = os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        if cores:
            os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _guardian() -> Iterator[int]:
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


def _takes_colour(sink: TextIO) -> bool:
    """Whether it is a terminal on which colour is not disabled (https://no-color.org)."""
    return sink.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _prefix(rank: int, size: int, colour: bool) -> bytes:
    text = f"[{rank:>{len(str(size - 1))}}] "
    return (f"\033[{_COLOURS[rank % len(_COLOURS)]}m{text}\033[0m" if colour else text).encode()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _log(message: str) -> None:
    print(f"pycollective run: {message}", file=sys.stderr, flush=True)


def default_size() -> int:
    """One rank per core that this process may use."""
    return len(usable_cores())


def cores_for(size: int) -> list[int]:
    """The core of each of so many ranks, all different: of those that this process may use, physical cores first.

    Raises:
        ValueError: there are fewer cores.
    """
    usable = usable_cores()
    if size > len(usable):
        few = f"this process may use {len(usable)} ({ranges(usable)})"
        raise ValueError(f"--bind: {size} ranks need {size} cores, and {few}; omit --bind, or start fewer ranks")
    return in_binding_order(usable)[:size]
