"""`pycollective doctor`: what this machine supports, and which path a call would take. Changes nothing."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import json
import mmap
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pycollective.cli import outputs
from pycollective.cli.commands import refusing
from pycollective.comm.host.cores import cpu_quota, ranges, usable_cores

ENOUGH_SHM = 1 << 30
"""Bytes of /dev/shm below which the doctor warns: containers often have only 64 MiB."""
_PATH_SIZES = (1 << 10, 1 << 20, 1 << 26)
_PROBE_SECONDS = 30
_TENSORFLOW_SECONDS = 150


@dataclass(frozen=True)
class Finding:
    """One line of the report: `ok` is False for errors that prevent use, None for missing optional features."""

    group: str
    name: str
    value: str
    ok: bool | None = True
    why: str = ""


def examine(frameworks: bool = False) -> list[Finding]:
    """All findings. A check that fails is a finding, too; nothing raises."""
    findings: list[Finding] = []
    checks = [_machine, _memory, _core, _packages, _mpi, _gpu, _job, _paths, _settings]
    for check in [*checks, _tensorflow] if frameworks else checks:
        try:
            findings.extend(check())
        except Exception as error:  # the report must continue
            findings.append(Finding(check.__name__.strip("_"), "check failed", repr(error), ok=None))
    return findings


def report(json_file: Path | None, frameworks: bool = False) -> int:
    """Print the findings; the exit code is 1 if one of them prevents use."""
    with refusing():
        outputs.check(None, json_file)
    return publish(examine(frameworks), json_file)


def publish(findings: list[Finding], json_file: Path | None) -> int:
    """Print or write findings; the exit code is 1 if one of them prevents use."""
    if json_file is not None:
        groups: dict[str, dict[str, dict[str, object]]] = {}
        for finding in findings:
            fields = {k: v for k, v in asdict(finding).items() if k not in ("group", "name")}
            groups.setdefault(finding.group, {})[finding.name] = fields
        outputs.write_text(json_file, json.dumps(groups, indent=2) + "\n")
    if json_file != outputs.STDOUT:
        _print(findings)
    return int(any(finding.ok is False for finding in findings))


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    marks = {True: "[green]✓[/]", None: "[yellow]–[/]", False: "[red]✗[/]"}
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    group = ""
    for finding in findings:
        if finding.group != group:
            table.add_row("", f"[cyan]{finding.group}[/]", "", end_section=False)
            group = finding.group
        why = f" [dim]({escape(finding.why)})[/]" if finding.why else ""
        table.add_row(marks[finding.ok], "  " + escape(finding.name), escape(finding.value) + why)
    Console().print(table)


# -- the machine -------------------------------------------------------------------------------------------


def _machine() -> Iterator[Finding]:
    usable = usable_cores()
    total = os.cpu_count() or len(usable)
    yield Finding("machine", "system", f"{platform.system()} {platform.release()} {platform.machine()}")
    yield Finding("machine", "cores", f"{len(usable)} usable of {total}", why=f"affinity {ranges(usable)}")
    quota = cpu_quota()
    if quota is not None:
        why = "a container's limit: ranks beyond it are throttled" if quota < len(usable) else ""
        yield Finding("machine", "CPU quota", f"{quota:g} cores", None if why else True, why)
    nodes = list(Path("/sys/devices/system/node").glob("node[0-9]*"))
    yield Finding("machine", "NUMA nodes", str(max(1, len(nodes))))
    yield Finding("machine", "CPU vectors", _cpu_vectors())


def _cpu_vectors() -> str:
    lines = (line for line in _read("/proc/cpuinfo").splitlines() if line.startswith(("flags", "Features")))
    flags = set(next(lines, "").split())
    known = ["avx512_bf16", "avx512_fp16", "avx512f", "avx2", "f16c", "sse4_2", "sve", "asimd"]
    return " ".join(flag for flag in known if flag in flags) or "none known"


def _memory() -> Iterator[Finding]:
    yield _shm()
    yield _try("memory", "memfd", _memfd, "windows use POSIX shared memory instead")
    pages = _read("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    chosen = pages.partition("[")[2].partition("]")[0]
    usable = chosen in ("always", "within_size", "advise", "force")
    why = (
        "" if usable else "windows use small pages; `advise` in .../transparent_hugepage/shmem_enabled allows huge ones"
    )
    yield Finding("memory", "huge pages for windows", chosen or "unknown", True if usable else None, why)
    yield _try("memory", "pidfd", _pidfd, "dead ranks are detected by polling")
    locked = _read("/proc/self/limits").partition("Max locked memory")[2].split()
    yield Finding("memory", "locked memory", (locked[0] if locked else "unknown") + " bytes")


def _shm() -> Finding:
    try:
        shm = os.statvfs("/dev/shm")
    except OSError as error:
        return Finding("memory", "/dev/shm", "none", None, error.strerror or "")
    size, free = shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize
    why = "" if size >= ENOUGH_SHM else "small; in a container raise it with --shm-size"
    return Finding("memory", "/dev/shm", f"{_bytes(size)}, {_bytes(free)} free", None if why else True, why)


def _memfd() -> str:
    descriptor = os.memfd_create("pycollective-doctor")
    try:
        os.ftruncate(descriptor, mmap.PAGESIZE)
        with mmap.mmap(descriptor, mmap.PAGESIZE) as window:
            window[0] = 1
    finally:
        os.close(descriptor)
    return "works"


def _pidfd() -> str:
    os.close(os.pidfd_open(os.getpid()))
    return "works"


def _try(group: str, name: str, probe: Callable[[], str], without: str) -> Finding:
    try:
        return Finding(group, name, probe())
    except (OSError, AttributeError) as error:
        return Finding(group, name, "not available", None, f"{error}; {without}")


# -- software ----------------------------------------------------------------------------------------------


def _core() -> Iterator[Finding]:
    yield Finding("pycollective", "version", _version("pycollective") or "not installed")
    try:
        core = importlib.import_module("pycollective._core")
    except ImportError as error:
        yield Finding(
            "pycollective",
            "native core",
            "missing",
            False,
            f"{error}; install the package, e.g. `make install`",
        )
        return
    yield Finding("pycollective", "native core", str(getattr(core, "__file__", "built in")))
    if hasattr(core, "instruction_set"):
        yield Finding("pycollective", "vector code", str(core.instruction_set()))


def _packages() -> Iterator[Finding]:
    yield Finding("packages", "python", platform.python_version(), why=sys.executable)
    for name, use in (
        ("numpy", "arrays"),
        ("ml_dtypes", "bfloat16 and the 8-bit floats"),
        ("numba", "operators of your own"),
        ("torch", "the Gloo column of bench, torch tensors"),
        ("matplotlib", "drawings and plots"),
    ):
        version = _version(name)
        yield Finding("packages", name, version or "not installed", True if version else None, use)


def _mpi() -> Iterator[Finding]:
    version = _version("mpi4py")
    mpirun = _mpirun()
    if mpirun is None:
        yield Finding(
            "MPI",
            "mpirun",
            "not found",
            None,
            "`pip install 'pycollective[mpi]'`; `pycollective run` needs none",
        )
    else:
        yield Finding("MPI", "mpirun", _first_line([mpirun, "--version"]), why=mpirun)
    if version is None:
        yield Finding("MPI", "mpi4py", "not installed", None, "`pip install 'pycollective[mpi]'` to start under mpirun")
        return
    # In a separate process: importing mpi4py loads the MPI library, which may be broken.
    code = "import mpi4py; mpi4py.rc.initialize = False; import mpi4py.MPI as m; print(m.Get_library_version())"
    library = _first_line([sys.executable, "-c", code]).split(", package")[0]
    usable = "MPI" in library
    yield Finding("MPI", "mpi4py", version)
    yield Finding(
        "MPI",
        "library",
        library if usable else "cannot be loaded",
        True if usable else None,
        "" if usable else library,
    )


def _tensorflow() -> Iterator[Finding]:
    """How TensorFlow's graphs call, tried in a separate process: importing TensorFlow takes 5 s."""
    version = next(filter(None, map(_version, ("tensorflow", "tensorflow-cpu"))), None)
    if version is None:
        yield Finding("TensorFlow", "tensorflow", "not installed", None)
        return
    yield Finding("TensorFlow", "tensorflow", version)
    found = _run([sys.executable, "-c", _TENSORFLOW], seconds=_TENSORFLOW_SECONDS).strip().splitlines()
    try:
        graphs, compiled = json.loads(found[-1])
    except (IndexError, ValueError):
        yield Finding("TensorFlow", "graphs", "cannot be loaded", None, found[-1] if found else "")
        return
    way = "by numpy_function, which blocks a thread" if graphs else "by an operation of pycollective"
    yield Finding("TensorFlow", "graphs", way, None if graphs else True, graphs)
    yield Finding("TensorFlow", "jit_compile", "raises" if compiled else "works", None if compiled else True, compiled)


_TENSORFLOW = """
import json, os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from pycollective.tensorflow import graph_calls, xla_calls
print(json.dumps([graph_calls.why_not(), xla_calls.why_not()]))
"""


def _mpirun() -> str | None:
    """The mpirun next to this Python (an environment's own), else the one on the PATH."""
    sibling = Path(sys.executable).parent / "mpirun"
    return str(sibling) if sibling.exists() else shutil.which("mpirun")


def _gpu() -> Iterator[Finding]:
    yield _cuda()
    nvcc = shutil.which("nvcc") or next((p for p in ["/usr/local/cuda/bin/nvcc"] if Path(p).exists()), None)
    if nvcc is None:
        yield Finding("GPU", "nvcc", "not found", None, "GPU ranks cannot be built here")
    else:
        yield Finding("GPU", "nvcc", _first_line([nvcc, "--version"], line=-2), why=nvcc)
    yield _nccl()
    yield from _gpu_path()


def _gpu_path() -> Iterator[Finding]:
    """Whether a call on GPU arrays would work, and if not, the error that it would raise."""
    from pycollective.comm.cuda.runtime import load, why_not

    built = importlib.util.find_spec("pycollective._cuda") is not None or "pycollective._cuda" in sys.modules
    yield Finding("GPU", "pycollective._cuda", "built" if built else "not built", True if built else None)
    reason = why_not()
    if reason is not None:
        yield Finding("GPU", "GPU path", "none", None, reason)
        return
    cuda = load()
    for device in range(cuda.device_count()):
        has = cuda.properties(device)
        major, minor = has["compute_capability"]
        text = f"{has['name']}, sm_{major}{minor}, {has['multiprocessors']} SMs, {_bytes(has['memory_bytes'])}"
        yield Finding("GPU", f"device {device}", text)
    text = _run([sys.executable, "-c", _GPU_TRIAL])
    right = text.strip().endswith("TRIAL right")
    what = "an allreduce of two ranks on device 0"
    yield Finding("GPU", "GPU path", f"{what} {'is right' if right else 'fails'}", right, "" if right else text[-2000:])


_GPU_TRIAL = """
import numpy, pycollective
from pycollective.comm.cuda.arrays import allocate

def work(comm):
    x, host = allocate((1000,), "float32", 0), numpy.full(1000, comm.rank + 1, numpy.float32)
    x.copy_from_host(host)
    comm.allreduce(x, out=x).copy_to_host(host)
    return bool((host == 3).all())

print("TRIAL", "right" if all(pycollective.local_world(2).run(work)) else "wrong")
"""


def _cuda() -> Finding:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Finding("GPU", "CUDA driver", "not found", None, "no libcuda.so.1: no NVIDIA driver on this machine")
    status = cuda.cuInit(0)
    if status != 0:
        return Finding("GPU", "CUDA driver", "does not start", None, f"cuInit returned {status}")
    count, version = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    cuda.cuDriverGetVersion(ctypes.byref(version))
    text = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}, {count.value} devices"
    return Finding("GPU", "CUDA driver", text, True if count.value else None)


def _nccl() -> Finding:
    """The library that `topology="nccl"` would load here, and why."""
    from pycollective.comm.cuda.nccl import library
    from pycollective.errors import CommunicatorError

    try:
        found = library()
    except ImportError:
        return Finding("GPU", "NCCL", "not looked for", None, "pycollective._cuda, which loads it, is not built")
    except CommunicatorError as error:
        return Finding("GPU", "NCCL", "not found", None, str(error))
    return Finding("GPU", "NCCL", found.version_text, why=f"{found.source}: {found.path}; {found.reason}")


# -- what a call would do ----------------------------------------------------------------------------------


def _job() -> Iterator[Finding]:
    from pycollective.comm.bootstrap.detection import launcher

    kind = launcher(os.environ)
    texts = {"alone": "a world of one; start ranks with `pycollective run`, mpirun, torchrun or srun"}
    yield Finding("this process", "started by", kind, why=texts.get(kind, ""))
    usable = usable_cores()
    total = os.cpu_count() or len(usable)
    bound = f"to {'core' if len(usable) == 1 else 'cores'} {ranges(usable)} of {total}"
    yield Finding("this process", "binding", bound if len(usable) < total else "none")


_TRIAL = """
import dataclasses, json, sys, numpy, pycollective
comm = pycollective.init()
total = comm.allreduce(numpy.full(1000, comm.rank + 1.0))
right = bool((total == comm.size * (comm.size + 1) / 2).all())
paths = [dataclasses.asdict(comm.explain("allreduce", int(size))) for size in sys.argv[1:]]
if comm.rank == 0:
    print("TRIAL" + json.dumps([right, paths]))
"""


def _paths() -> Iterator[Finding]:
    """Test as well as query: start one rank per core, connect, and reduce."""
    ranks = max(2, len(usable_cores()))
    group = f"an allreduce on {ranks} ranks here"
    command = [sys.executable, "-m", "pycollective.cli.main", "run", "-np", str(ranks), sys.executable, "-c", _TRIAL]
    output = _run([*command, *map(str, _PATH_SIZES)])
    line = next((line for line in output.splitlines() if line.startswith("TRIAL")), None)
    if line is None:
        yield Finding(group, "tried", "failed", False, output.strip()[-2000:])
        return
    right, paths = json.loads(line.removeprefix("TRIAL"))
    yield Finding(group, "tried", "right" if right else "wrong result", right)
    for nbytes, path in zip(_PATH_SIZES, paths, strict=True):
        text = f"{path['topology']}, {path['variant']} variant; comm.empty: {path['window']}; others: {path['plain']}"
        yield Finding(group, _bytes(nbytes), text)
    yield Finding(group, "cores", paths[0]["waiting"])


def _settings() -> Iterator[Finding]:
    """The table of settings: each with its value here, and the value's source."""
    from pycollective import settings

    for row in settings.TABLE.values():
        set_by, text = row.find(os.environ)
        if not set_by and row.reader in (settings.OWN_LAUNCHER, settings.HOROVODS_LAUNCHERS):
            continue
        default = row.write(row.default)
        source = (f"from {set_by}" if set_by == row.older else "from the environment") if set_by else "default"
        try:
            value, ok = row.write(settings.read(row.name)), True
        except ValueError as error:
            value, ok, source = text, False, str(error)
        value = "(set)" if value and row.kind == "secret" else value
        unit = f" {row.kind}" if value and row.kind.endswith(("seconds", "bytes")) else ""
        usual = f", default {default}" if set_by and default else ""
        yield Finding("settings", row.name, (value or "-") + unit, ok, f"{row.meaning}; {source}{usual}")
    for name, sentence in settings.unknown(os.environ).items():
        yield Finding("settings", name, "unknown", None, sentence)


# -- helpers -----------------------------------------------------------------------------------------------


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_line(command: list[str], line: int = 0) -> str:
    """One line of a command's output; the last if it fails, as a traceback ends with its error."""
    try:
        output = _run(command, check=True)
    except subprocess.CalledProcessError as error:
        output, line = error.stdout or f"exit code {error.returncode}", -1
    lines = output.strip().splitlines()
    return lines[line].strip() if lines else ""


def _run(command: list[str], check: bool = False, seconds: float = _PROBE_SECONDS) -> str:
    """A command's output on both streams; the reason if it cannot run."""
    try:
        return subprocess.run(
            command,
            cwd="/",  # not a source tree, which `python -c` would import from
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=check,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} TiB"
