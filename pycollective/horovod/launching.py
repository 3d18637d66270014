"""`horovod.run`: start ranks and call a function on each of them."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pycollective.cli.launch.elastic_options import ElasticOptions

__path__: list[str] = []
"""Makes this module a package: pycollective.horovod finds its modules."""
_PACKAGES = str(Path(__file__).parents[2])
"""Where ranks must find this package, however it was made importable here."""
HERE = ("localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn())
"""Names of this host."""
LAUNCHER = (sys.executable, "-m", "pycollective.cli.main", "run", "-np")
"""The launcher of ranks on this host, to be followed by their number."""


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[float, float] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    *,
    host_discovery_script: str | None = None,
    elastic_timeout: float | None = None,
) -> list[Any]:
    """Call func(*args, **kwargs) on each of `num_proc` new ranks; returns the results by rank.

    With min_num_proc or host_discovery_script the job is elastic: lost ranks are replaced, and hosts may come and go,
    as with `horovodrun`; `func` trains in a function under `hvd.elastic.run`. Then the results are those of all ranks
    that have completed (Horovod returns those of the first min_num_proc).

    Args:
        func: pickled; without cloudpickle it must be defined in a module, or in a script that does nothing unless its
            `__name__` is "__main__".
        num_proc: number of ranks, of an elastic job those to begin with; np: older name.
        min_num_proc, max_num_proc: elastic: fewest ranks to continue with, by default num_proc, and most ranks, by
            default as many as there are slots; min_np, max_np: older names.
        host_discovery_script: elastic: a program that writes lines HOST:SLOTS, called about once a second.
        slots: elastic: of hosts that the script lists without a number.
        reset_limit: elastic: how often the set of ranks may change until the job fails; None: any number.
        cooldown_range: elastic: least and most seconds without ranks for hosts that fail; None: for good.
        elastic_timeout: elastic: seconds to wait for hosts and ranks; None: HOROVOD_ELASTIC_TIMEOUT.
        hosts: "a:4,b:2", or hostfile: a file with lines HOST slots=N; by default this host. Others are reached by ssh
            and have this Python and this package at the same paths.
        ssh_port, ssh_identity_file: of these hosts.
        network_interface: by which hosts reach each other: a name, an address or a network.
        executable: the Python to run; by default this one.
        use_gloo, use_mpi: either; there is only one implementation.
        start_timeout, disable_cache, verbose: without effect.
        output_filename, mpi_args: refused.

    Raises:
        ValueError: arguments that exclude each other, are out of range, or are not supported.
        RuntimeError: a rank failed and the others were stopped, or an elastic job could not go on.
        BootstrapError: this host has no address that the others can reach.
    """
    elastic = ElasticOptions(
        host_discovery_script,
        slots,
        _renamed("min_np", min_np, "min_num_proc", min_num_proc),
        _renamed("max_np", max_np, "max_num_proc", max_num_proc),
        reset_limit,
        None if cooldown_range is None else (cooldown_range[0], cooldown_range[1]),
        elastic_timeout,
    )
    ranks = _renamed("np", np, "num_proc", None if num_proc == 1 else num_proc)
    ranks = 1 if ranks is None else ranks
    _refuse(ranks, use_gloo, use_mpi, {"output_filename": output_filename, "mpi_args": mpi_args})
    listed = _listed(hosts, hostfile)
    elastic.check(bool(listed), str)
    call = _pickled_call(func, args, kwargs or {})
    program = [executable or sys.executable, "-m", "pycollective.horovod.task"]
    if elastic or any(host not in HERE for host, _ in listed):
        if use_mpi:
            raise ValueError("use_mpi: ranks on other hosts, and elastic jobs, are started without MPI")
        from pycollective.cli.launch.remote_agent import ssh

        results = _run_by_driver(call, program, ranks, elastic, listed, ssh(ssh_port, ssh_identity_file),
                                 network_interface or "")  # fmt: skip
    else:
        results = _run_here(call, program, ranks)
    # The name of this script on ranks without cloudpickle. multiprocessing sets it too, but perhaps to an earlier
    # script.
    sys.modules["__mp_main__"] = sys.modules["__main__"]
    return [pickle.loads(result) for result in results]


def _run_here(call: bytes, program: Sequence[str], ranks: int) -> list[bytes]:
    """The results of ranks that `pycollective run` starts on this host; they are exchanged in files."""
    with tempfile.TemporaryDirectory(prefix="pycollective-") as folder:
        Path(folder, "task").write_bytes(call)
        command = [*LAUNCHER, str(ranks), *program, folder]
        code = subprocess.run(command, env=environment(_PACKAGES), check=False).returncode
        if code != 0:
            raise RuntimeError(f"horovod.run: a rank failed, see its output; exit code {code}")
        files = [Path(folder, str(rank)) for rank in range(ranks)]
        return _complete({rank: file.read_bytes() for rank, file in enumerate(files) if file.exists()}, ranks)


def _run_by_driver(
    call: bytes,
    program: Sequence[str],
    ranks: int,
    options: ElasticOptions,
    listed: Sequence[tuple[str, int]],
    shell: Sequence[str],
    interface: str,
) -> list[bytes]:
    """The results of ranks that the driver of elastic jobs starts, which also passes the call and the results on.

    A job on other hosts that is not elastic is one whose ranks are not replaced.
    """
    from pycollective.cli.launch import elastic, signals
    from pycollective.cli.launch.hosts import place_ranks
    from pycollective.elastic import FixedHosts, Limits, Task

    if "," in interface:
        raise ValueError(f"network_interface={interface!r}: name one interface, or a network")
    limits, discovery = options.limits(ranks), options.discovery(listed, ranks)
    if not options:
        limits = Limits(ranks, ranks, ranks, timeout=float("inf"), replace=False)
        discovery = FixedHosts({host.name: host.count for host in place_ranks(listed, ranks)})
    task = Task(call)
    driver = elastic.make_driver(
        program, discovery, limits, shell=shell, interface=interface, env=environment(_PACKAGES), task=task
    )
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        driver.stop(number)

    with signals.handled_by(stop):
        code = driver.run()
    if received:
        signal.raise_signal(received[0])  # now that the ranks have ended: of this process's own handler
    if code != 0:
        raise RuntimeError(f"horovod.run: {driver.failure}; see the output of the ranks; exit code {code}")
    return _complete(task.results, task.size)


def _complete(results: Mapping[int, bytes], ranks: int) -> list[bytes]:
    """The results by rank.

    Raises:
        RuntimeError: one is missing.
    """
    missing = [rank for rank in range(ranks) if rank not in results]
    if missing:
        raise RuntimeError(f"horovod.run: rank {missing[0]} has ended without a result: did it call sys.exit?")
    return [results[rank] for rank in range(ranks)]


def environment(folder: str) -> dict[str, str]:
    """os.environ for processes that look for modules in a folder first."""
    folders = [folder, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def _renamed(old: str, old_value: int | None, new: str, value: int | None) -> int | None:
    """The value of an argument that has an older name, which counts if the newer one is not given."""
    if old_value is not None:
        warnings.warn(f"{old} is deprecated, use {new} instead", DeprecationWarning, stacklevel=3)
    return old_value if value is None else value


def _listed(hosts: str | None, hostfile: str | None) -> list[tuple[str, int]]:
    from pycollective.cli.launch.hosts import listed_hosts

    if hosts is not None and hostfile is not None:
        raise ValueError("hosts and hostfile exclude each other")
    return listed_hosts(hosts, None if hostfile is None else Path(hostfile))


def _refuse(ranks: int, use_gloo: bool | None, use_mpi: bool | None, others: Mapping[str, Any]) -> None:
    if not isinstance(ranks, int) or ranks < 1:
        raise ValueError(f"num_proc={ranks!r} is not a number of ranks")
    if use_gloo and use_mpi:
        raise ValueError("use_gloo and use_mpi exclude each other")
    refused = [name for name, value in others.items() if value is not None]
    if refused:
        raise ValueError(f"horovod.run does not take {', '.join(refused)} here")


def _pickled_call(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The module search path of a rank and the call."""
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
