"""`horovod.run`: call a function on several ranks that are started for it, on this host."""

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
"""It stands in for a package: pycollective.horovod knows where its modules are."""
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
    """func(*args, **kwargs) on each of `num_proc` new ranks, which `pycollective run` starts; what each returned.

    Args:
        func: pickled; where cloudpickle is not installed it must stand in a module, or in a script that does nothing
            unless its `__name__` is "__main__".
        num_proc: number of ranks; `np` is its older name.
        hosts: "host:ranks"; this host alone can be named.
        use_gloo, use_mpi: either; there is one way here.
        executable: the Python to run; by default this one.
        others: Horovod's further arguments. Those about networks and checks have no effect.

    Raises:
        ValueError: arguments that ask for other hosts, for elastic training, or for something else that is not here.
        RuntimeError: a rank failed; the others were stopped.
    """
    ranks = num_proc if np is None else np
    _refuse(ranks, hosts, use_gloo and use_mpi, others)
    with tempfile.TemporaryDirectory(prefix="pycollective-") as folder:
        Path(folder, "task").write_bytes(_task(func, args, kwargs or {}))
        launcher = [sys.executable, "-m", "pycollective.cli.main", "run", "-np", str(ranks)]
        rank = [executable or sys.executable, "-m", "pycollective.horovod.task", folder]
        # The ranks must find this very package, whatever made it importable here.
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        code = subprocess.run([*launcher, *rank], env={**os.environ, "PYTHONPATH": path}, check=False).returncode
        if code != 0:
            raise RuntimeError(f"horovod.run: a rank failed, see its output; exit code {code}")
        # What ranks without cloudpickle call this script. multiprocessing sets it too, but perhaps to what ran first.
        sys.modules["__mp_main__"] = sys.modules["__main__"]
        return [pickle.loads(Path(folder, str(r)).read_bytes()) for r in range(ranks)]


def _refuse(ranks: int, hosts: str | None, both: bool | None, others: Mapping[str, Any]) -> None:
    if not isinstance(ranks, int) or ranks < 1:
        raise ValueError(f"num_proc={ranks!r} is no number of ranks")
    if both:
        raise ValueError("use_gloo and use_mpi exclude each other")
    for host in (part.partition(":")[0] for part in hosts.split(",")) if hosts else ():
        if host not in ("localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn()):
            raise ValueError(f"hosts={hosts!r}: horovod.run starts ranks on this host alone; for others use mpirun")
    refused = [name for name, value in others.items() if value is not None and name not in _WITHOUT_EFFECT]
    if refused:
        raise ValueError(f"horovod.run does not take {', '.join(refused)} here")


def _task(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Where a rank is to look for modules, and the call; pickled."""
    here = {"sys_path": [entry or str(Path.cwd()) for entry in sys.path], "sys_argv": sys.argv, "dir": str(Path.cwd())}
    if pickler() is pickle:  # it names the functions of a script; the ranks have to read it
        main = sys.modules["__main__"]
        if main.__spec__ is not None:
            here["init_main_from_name"] = main.__spec__.name
        elif getattr(main, "__file__", None):
            here["init_main_from_path"] = str(Path(str(main.__file__)).resolve())
    return pickle.dumps((here, pickler().dumps((func, tuple(args), dict(kwargs)))))


def pickler() -> Any:
    """cloudpickle, or pickle where that is not installed."""
    try:
        import cloudpickle
    except ImportError:
        return pickle
    return cloudpickle
