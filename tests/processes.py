"""Ranks as real processes that a test can message, kill and wait for.

Starting Python and loading NumPy takes most of a second on a busy machine. So one server process loads everything
once and forks each job from itself, and the job forks its ranks; the server never starts a thread or a communicator.
A rank runs a top-level function of a test file: `body(comm, link, *arguments)`.

A process that has loaded torch takes long to fork and to initialize: `run` can keep its ranks for the next body.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import IO, Any

from speed import deadline

TESTS = Path(__file__).resolve().parent
IMPORTABLE = {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
"""Environment in which a child can import the test helpers."""
_LOADED = ("calls", "ml_dtypes", "numpy", "pycollective.comm.world", "pycollective.comm.host.shrink", "pytest")


patched = False
"""Whether this process is not what it was, so that no other test may run in it."""


@dataclass
class Outcome:
    """How a rank ended: its result or error, and when (time.monotonic() is the same in all processes).

    `patched`: see the variable.
    """

    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    at: float = 0.0
    exitcode: int | None = None
    patched: bool = False


class Job:
    """n running ranks. `link[r]` connects to rank r; a with statement kills remaining ranks and checks for leaks.

    Args:
        n: number of ranks.
        body: a top-level function of a module: body(comm, link, *arguments) on every rank.
        arguments: passed to it as pickles.
        env: variables to add.
        first: a top-level function of a module, called by each rank before it connects to the others.
        leave: "free" ends normally, like a script; "vanish" ends without freeing anything; "wait" frees the
            communicator, and waits for another body.
    """

    def __init__(
        self,
        n: int,
        body: Callable[..., Any],
        *arguments: Any,
        env: dict[str, str] | None = None,
        first: Callable[[], Any] | None = None,
        leave: str = "free",
    ) -> None:
        self.n, self.leave = n, leave
        self._bodies = 1
        self._listener = Listener(family="AF_UNIX")
        request = {"n": n, "address": self._listener.address, "env": env or {}, "leave": leave}
        request |= {"body": _place(body), "first": _place(first) if first else None}
        _ask_server(request)
        self._control = self._accept()
        hello = [self._accept() for _ in range(n)]
        self.link: dict[int, Connection] = {}
        self.pid: dict[int, int] = {}
        for link in hello:
            rank, pid = link.recv()
            self.link[rank], self.pid[rank] = link, pid
        for link in hello:
            link.send(arguments)
        self._outcomes: dict[int, Outcome] = {}
        self._codes: dict[int, int] = {}

    def go_on(self, body: Callable[..., Any], *arguments: Any) -> None:
        """Let ranks that wait run another body, with a new communicator."""
        self._outcomes.clear()
        for link in self.link.values():
            link.send((f"{self._listener.address}-{self._bodies}", _place(body), arguments))
        self._bodies += 1

    def _accept(self) -> Connection:
        if not wait([self._listener._listener._socket], deadline(60)):  # type: ignore[attr-defined]
            raise TimeoutError("no answer from the server that forks ranks: see what it printed")
        return self._listener.accept()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *failure: object) -> None:
        for pid in self.pid.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._collect_codes(deadline(10))
        for link in (*self.link.values(), self._control):
            link.close()
        self._listener.close()
        if failure[0] is None:
            assert not [pid for pid in self.pid.values() if alive(pid)], "a rank outlives its job"
            assert not shared_memory(self.pid.values()), "something is left in /dev/shm"

    def kill(self, rank: int, number: int = signal.SIGKILL) -> float:
        """Send a signal; returns the time.monotonic() just before."""
        at = time.monotonic()
        os.kill(self.pid[rank], number)
        return at

    def hear(self, rank: int, seconds: float = 20) -> Any:
        """The next message from a rank."""
        assert self.link[rank].poll(deadline(seconds)), f"rank {rank} was silent for {seconds} s"
        return self.link[rank].recv()

    def outcomes(self, seconds: float = 30) -> dict[int, Outcome]:
        """Waits for all ranks to end; killed ones have neither value nor error. Ranks that wait have not ended."""
        end = time.monotonic() + deadline(seconds)
        waiting = {self.link[rank]: rank for rank in range(self.n) if rank not in self._outcomes}
        while waiting:
            ready = wait(list(waiting), max(0, end - time.monotonic()))
            assert ready, f"ranks {sorted(waiting.values())} have not ended after {seconds} s"
            for link in ready:
                rank = waiting[link]  # type: ignore[index]
                try:
                    message = link.recv()  # type: ignore[union-attr,call-arg]
                except (EOFError, ConnectionResetError):
                    message = Outcome()
                if isinstance(message, Outcome):
                    self._outcomes[rank] = message
                    del waiting[link]  # type: ignore[arg-type]
        if self.leave == "wait":
            if all(outcome.at and not outcome.error for outcome in self._outcomes.values()):
                assert not shared_memory(self.pid.values()), "something is left in /dev/shm"
                return self._outcomes
            for rank, outcome in self._outcomes.items():
                if outcome.at and not outcome.error:
                    self.link[rank].close()  # ends its wait
        self._collect_codes(max(1.0, end - time.monotonic()))
        for rank, code in self._codes.items():
            self._outcomes[rank].exitcode = code
        return self._outcomes

    def results(self, seconds: float = 30) -> list[Any]:
        """The results of all ranks; fails with the traceback of the first that raised, crashed or was killed."""
        outcomes = self.outcomes(seconds)
        for rank, outcome in sorted(outcomes.items(), key=lambda row: row[1].at):
            assert outcome.error is None, f"rank {rank} raised\n{outcome.trace}"
            assert not outcome.exitcode, f"rank {rank} ended with code {outcome.exitcode}"
        return [outcomes[rank].value for rank in range(self.n)]

    @property
    def patched(self) -> bool:
        """Whether a rank is."""
        return any(outcome.patched for outcome in self._outcomes.values())

    def _collect_codes(self, seconds: float) -> None:
        if not self._codes:
            assert self._control.poll(seconds), "ranks are still running"
            self._codes = self._control.recv()


def run(
    n: int, body: Callable[..., Any], *arguments: Any, env: dict[str, str] | None = None, reuse: bool = False
) -> list[Any]:
    """body(comm, link, *arguments) on n processes; their results, in rank order.

    Args:
        n, body, arguments, env: as for Job.
        reuse: the processes may have run other bodies, and may run more: none leaves anything of its own behind.
    """
    if not reuse:
        with Job(n, body, *arguments, env=env) as job:
            return job.results(60)
    key = (_server_pid(), n, json.dumps(env, sort_keys=True))
    with contextlib.ExitStack() as ends:
        if job := _waiting.pop(key, None):
            ends.enter_context(job).go_on(body, *arguments)
        else:
            job = ends.enter_context(Job(n, body, *arguments, env=env, leave="wait"))
        results = job.results(60)
        if job.patched:
            return results
        ends.pop_all()  # only a job that has failed, or was patched, ends
    _waiting[key] = job
    if len(_waiting) > MOST_WAITING:
        _waiting.pop(next(iter(_waiting))).__exit__(None, None, None)
    return results


def shared_memory(pids: Iterable[int]) -> set[str]:
    """The files in /dev/shm created by these processes, by their names."""
    return {path.name for pid in pids for path in Path("/dev/shm").glob(f"*pycollective*-{pid}-*")}


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- the server and its children -----------------------------------------------------------------------------------

_server: subprocess.Popen[str] | None = None
_waiting: dict[tuple[int, int, str], Job] = {}
"""Jobs whose ranks wait for another body, by server, number of ranks and environment."""
MOST_WAITING = 6


def _server_pid() -> int:
    global _server
    if _server is None or _server.poll() is not None:
        command = [sys.executable, "-c", "from processes import serve; serve()"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYCOLLECTIVE_")} | IMPORTABLE
        _server = subprocess.Popen(
            command, stdin=subprocess.PIPE, text=True, env=environment, cwd=tempfile.gettempdir()
        )
    return _server.pid


def _ask_server(request: dict[str, Any]) -> None:
    _server_pid()
    pipe: IO[str] = _server.stdin  # type: ignore[union-attr,assignment]
    pipe.write(json.dumps(request) + "\n")
    pipe.flush()


def serve() -> None:
    """The server: one job per line of standard input, until it closes with the test run."""
    for module in _LOADED:
        __import__(module)
    gc.set_threshold(20_000, 20, 20)
    gc.collect()
    gc.freeze()  # collections of ranks skip what is loaded, and do not copy its pages
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test run handles Ctrl-C
    while line := sys.stdin.readline():
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            _job(json.loads(line))


def _job(request: dict[str, Any]) -> None:
    os.setsid()
    control = Client(request["address"])
    ranks = {}
    for rank in range(request["n"]):
        pid = os.fork()
        if pid == 0:
            control.close()
            _rank(rank, request)
        ranks[pid] = rank
    codes: dict[int, int] = {}
    while len(codes) < len(ranks):
        pid, status = os.wait()
        codes[ranks[pid]] = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        control.send(codes)
    os._exit(0)


def _rank(rank: int, request: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update({"PYCOLLECTIVE_TIMEOUT": "20"} | request["env"])
    environment = dict(os.environ)
    link = Client(request["address"])
    link.send((rank, os.getpid()))
    call = (request["address"], request["body"], link.recv())
    while (outcome := _run_body(rank, request, link, *call)).error is None and request["leave"] == "wait":
        try:
            call = link.recv()
        except (EOFError, ConnectionResetError):
            break
        os.environ.clear()
        os.environ.update(environment)
    if request["leave"] != "vanish":
        import atexit

        atexit._run_exitfuncs()
    os._exit(0 if outcome.error is None else 1)


def _run_body(
    rank: int, request: dict[str, Any], link: Connection, name: str, place: tuple[str, str], arguments: Any
) -> Outcome:
    """Connect the ranks under a name, run a function and send its result or error."""
    outcome = Outcome()
    try:
        import pycollective
        from pycollective.comm.bootstrap.one_host import SocketBootstrap

        body = _load(*place)
        if request["first"]:
            _load(*request["first"])()
        comm = pycollective.init(SocketBootstrap(name, rank, request["n"], kind="test", timeout=deadline(20)))
        outcome.value = body(comm, link, *arguments)
        if request["leave"] == "wait":
            pycollective.shutdown()
    except BaseException as error:
        outcome.error, outcome.trace = error, traceback.format_exc()
    outcome.at, outcome.patched = time.monotonic(), patched
    try:
        pickle.dumps(outcome)
    except Exception as error:  # such as pytest's "did not raise"
        outcome.value, outcome.error = None, RuntimeError(f"cannot be sent: {error}")
        outcome.trace = f"{outcome.trace}\n{error}"
    with contextlib.suppress(OSError):
        link.send(outcome)
    return outcome


def _place(function: Callable[..., Any]) -> tuple[str, str]:
    """Where `_load` finds a top-level function of a module."""
    return function.__code__.co_filename, function.__qualname__


def _load(file: str, name: str) -> Callable[..., Any]:
    import importlib.util

    spec = importlib.util.spec_from_file_location(f"ranks.{Path(file).stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: Callable[..., Any] = getattr(module, name)
    return found


def all_say(job: Job, word: str) -> None:
    """Hear this word from every rank."""
    for rank in range(job.n):
        assert job.hear(rank) == word, job.outcomes()[rank].trace


def refuse(system_call: int, code: int) -> None:
    """Make a system call fail in this process from now on, by a seccomp filter like those of containers."""
    load, equal, give = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    errno_of, allow = 0x00050000, 0x7FFF0000
    rows = [(load, 0, 0, 0), (equal, 0, 1, system_call), (give, 0, 0, errno_of | code), (give, 0, 0, allow)]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = struct.pack("HxxxxxxP", len(rows), ctypes.addressof(filters))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
    assert prctl(38, 1, None, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    done = prctl(22, 2, ctypes.cast(program, ctypes.c_void_p), 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    if done != 0:
        raise OSError(ctypes.get_errno(), "no seccomp filter")
