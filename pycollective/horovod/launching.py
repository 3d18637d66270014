"""`horovod.run`: start ranks on this host and call a function on each of them."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__path__: list[str] = []
"""Makes this module a package: pycollective.horovod finds its modules."""
_WITHOUT_EFFECT = {"disable_cache", "network_interface", "network_interfaces", "start_timeout", "verbose"}


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    *,
    np: int | None = None,
    hosts: str | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    executable: str | None = None,
    **others: Any,
) -> list[Any]:
    """Call func(*args, **kwargs) on each of `num_proc` new ranks, started by `pycollective run`; returns the results.

    Args:
        func: pickled; without cloudpickle it must be defined in a module, or in a script that does nothing unless its
            `__name__` is "__main__".
        num_proc: number of ranks; `np` is its older name.
        hosts: "host:ranks"; only this host is supported.
        use_gloo, use_mpi: either; there is only one implementation.
        executable: the Python to run; by default this one.
        others: Horovod's further arguments. Those about networks and checks have no effect.

    Raises:
        ValueError: arguments that request other hosts, elastic training, or anything else that is not supported.
        RuntimeError: a rank failed; the others were stopped.
    """
    ranks = num_proc if np is None else np
    _refuse(ranks, hosts, use_gloo and use_mpi, others)
    with tempfile.TemporaryDirectory(prefix="pycollective-") as folder:
        Path(folder, "task").write_bytes(_task(func, args, kwargs or {}))
        launcher = [sys.executable, "-m", "pycollective.cli.main", "run", "-np", str(ranks)]
        rank = [executable or sys.executable, "-m", "pycollective.horovod.task", folder]
        # The ranks must find this package, however it was made importable here.
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        code = subprocess.run([*launcher, *rank], env={**os.environ, "PYTHONPATH": path}, check=False).returncode
        if code != 0:
            raise RuntimeError(f"horovod.run: a rank failed, see its output; exit code {code}")
        # The name of this script on ranks without cloudpickle. multiprocessing sets it too, but perhaps to an earlier
        # script.
        sys.modules["__mp_main__"] = sys.modules["__main__"]
        return [pickle.loads(Path(folder, str(r)).read_bytes()) for r in range(ranks)]


def _refuse(ranks: int, hosts: str | None, both: bool | None, others: Mapping[str, Any]) -> None:
    if not isinstance(ranks, int) or ranks < 1:
        raise ValueError(f"num_proc={ranks!r} is not a number of ranks")
    if both:
        raise ValueError("use_gloo and use_mpi exclude each other")
    for host in (part.partition(":")[0] for part in hosts.split(",")) if hosts else ():
        if host not in ("localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn()):
            raise ValueError(f"hosts={hosts!r}: horovod.run starts ranks on this host only; for others use mpirun")
    refused = [name for name, value in others.items() if value is not None and name not in _WITHOUT_EFFECT]
    if refused:
        raise ValueError(f"horovod.run does not take {', '.join(refused)} here")


def _task(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The module search path of a rank and the call; pickled."""
    here = {"sys_path": [entry or str(Path.cwd()) for entry in sys.path], "sys_argv": sys.argv, "dir": str(Path.cwd())}
    if pickler() is pickle:  # it refers to functions by name; the ranks must load the script
        main = sys.modules["__main__"]
        if main.__spec__ is not None:
            here["init_main_from_name"] = main.__spec__.name
        elif getattr(main, "__file__", None):
            here["init_main_from_path"] = str(Path(str(main.__file__)).resolve())
    return pickle.dumps((here, pickler().dumps((func, tuple(args), dict(kwargs)))))


def pickler() -> Any:
    """cloudpickle, or pickle if that is not installed."""
    try:
        import cloudpickle
    except ImportError:
        return pickle
    return cloudpickle
