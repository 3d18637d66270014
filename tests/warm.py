"""Start Python scripts in processes that have loaded a framework already: importing one takes seconds.

A server imports modules once and forks a process for each script. A launcher starts a client in place of Python, which
hands its arguments, folder, environment and open files to the server, passes signals on, and ends as the script ends;
if the client is killed, so is the script. Used by `launch(2, script, loaded=["torch"])`.
"""

from __future__ import annotations

import contextlib
import functools
import marshal
import os
import selectors
import signal
import socket
import sys
from typing import Any

RANKS = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", "OMP_NUM_THREADS": "1"}
"""Variables of all ranks of tests, which are read when Python or a framework starts."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_READ = selectors.EVENT_READ
_HIGH = 200
"""A file descriptor above those of any script's start."""


@functools.cache
def python(*modules: str) -> list[str]:
    """The words that run a script where `modules` are loaded, in place of the interpreter's path."""
    import atexit
    import subprocess
    import tempfile

    address = os.path.join(tempfile.mkdtemp(prefix="pycollective-warm-"), "server")
    environment = {**os.environ, **RANKS, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # the script's process does that
    environment.pop("PYTHONPATH", None)
    words = [sys.executable, __file__, "serve", address, *modules]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.read(1), f"no server with {', '.join(modules)}: see what it printed"
    atexit.register(process.communicate)  # closes its input, which ends it
    return [sys.executable, "-I", "-S", __file__, "start", address]


# -- the client ----------------------------------------------------------------------------------------------------


def _start(address: str, words: list[str]) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    files = [int(name) for name in os.listdir("/proc/self/fd")]
    files = [file for file in files if file != server.fileno() and os.path.exists(f"/proc/self/fd/{file}")]
    request = marshal.dumps((words, os.getcwd(), dict(os.environ), files))
    socket.send_fds(server, [len(request).to_bytes(8, "little")], files)
    server.sendall(request)
    for number in SIGNALS:
        signal.signal(number, lambda received, _: server.sendall(bytes([received])))
    answer = server.recv(8)
    code = int.from_bytes(answer, "little", signed=True) if answer else 1
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no other effect
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


# -- the server ----------------------------------------------------------------------------------------------------


class _Server:
    """Forks a process for each client, and tells the client how it has ended."""

    def __init__(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, _READ, self._accept)
        self._selector.register(sys.stdin, _READ, self._end)
        self._processes: dict[socket.socket, int] = {}
        self._request: Any = None

    def serve(self) -> Any:
        """Return a request, in a process forked for it; in the server itself never."""
        while True:
            for key, _ in self._selector.select():
                key.data(key.fileobj)
                if self._request is not None:
                    return self._request

    def _accept(self, listener: socket.socket) -> None:
        client = listener.accept()[0]
        length, files, _, _ = socket.recv_fds(client, 8, 64)
        content = client.recv(int.from_bytes(length, "little"), socket.MSG_WAITALL)
        process = os.fork()
        if process == 0:
            os.setsid()
            client.close()
            for key in self._selector.get_map().values():
                if isinstance(key.fileobj, int):
                    os.close(key.fileobj)
                elif key.fileobj is not sys.stdin:
                    key.fileobj.close()
            self._selector.close()
            self._request = (files, *marshal.loads(content))
            return
        for file in files:
            os.close(file)
        self._processes[client] = process
        self._selector.register(client, _READ, self._pass_on)
        self._selector.register(os.pidfd_open(process), _READ, functools.partial(self._ended, client))

    def _pass_on(self, client: socket.socket) -> None:
        """Handle the signals that the client has received, or its end."""
        if client not in self._processes:
            return
        numbers = b""
        with contextlib.suppress(ConnectionError):
            numbers = client.recv(16)
        if not numbers:
            self._selector.unregister(client)
        for number in numbers or [signal.SIGKILL]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._processes[client], number)

    def _ended(self, client: socket.socket, descriptor: int) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(self._processes.pop(client), 0)[1])
        self._selector.unregister(descriptor)
        os.close(descriptor)
        with contextlib.suppress(KeyError):
            self._selector.unregister(client)
        with contextlib.suppress(OSError):
            client.send(code.to_bytes(8, "little", signed=True))
        client.close()

    def _end(self, _: Any) -> None:
        for process in self._processes.values():
            os.kill(process, signal.SIGKILL)
        os._exit(0)


def _serve(address: str, modules: list[str]) -> None:
    import gc
    import importlib

    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # collections of scripts skip what is loaded, and do not copy its pages
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test run handles Ctrl-C
    server = _Server(address)
    os.write(1, b"1")
    _run(*server.serve())


# -- the script's process ------------------------------------------------------------------------------------------


def _run(received: list[int], words: list[str], folder: str, environment: dict[str, str], files: list[int]) -> None:
    _take_files(received, files)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    _set_up()
    if words[0] == "-m":
        import runpy

        sys.path[0], sys.argv = folder, words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = os.path.dirname(words[0]), words
        _run_script(words[0])


def _take_files(received: list[int], wanted: list[int]) -> None:
    for place, file in enumerate(received):
        os.dup2(file, _HIGH + place)
        os.close(file)
    for place, file in enumerate(wanted):
        os.dup2(_HIGH + place, file)
        os.close(_HIGH + place)


def _set_up() -> None:
    """Do what the interpreter does at its start with the environment, and what depends on chance."""
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules and os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
        sys.modules["torch"]._import_device_backends()


def _run_script(path: str) -> None:
    main = type(sys)("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    with open(path, "rb") as script:
        code = compile(script.read(), path, "exec")
    try:
        exec(code, main.__dict__)
    except Exception as error:
        own = error.__traceback__
        assert own is not None
        sys.excepthook(type(error), error.with_traceback(own.tb_next), own.tb_next)
        sys.exit(1)


if __name__ == "__main__":
    {"start": _start, "serve": _serve}[sys.argv[1]](sys.argv[2], sys.argv[3:])
