"""`pycollective._cuda` on CPU threads: built from the product's sources and tests/gpu/emulated, loaded under its name.

import gpu.emulation
gpu.emulation.install()            # in every process of a test, before the first GPU call
"""

from __future__ import annotations

import fcntl
import functools
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import processes

from pycollective.comm.arguments.operators import Op

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = Path(os.environ.get("PC_EMULATED_BUILD", ROOT / "build" / "emulated"))
FILE = FOLDER / f"_cuda{sysconfig.get_config_var('EXT_SUFFIX')}"
NAME = "pycollective._cuda"
NCCL = FOLDER / "libnccl.so.2"
"""The emulated NCCL, built with it."""
ON_DEVICE = "PC_TEST_ON_DEVICE"
"""Set to 1 for a test run on a real GPU, and for its child processes."""


def _path() -> str:
    """CMake and Ninja may come from this environment."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])


@functools.cache
def why_not() -> str:
    """Why this machine cannot build it; empty if it can."""
    tools = ("cmake", "ninja", os.environ.get("CXX", "c++"))
    missing = [tool for tool in tools if not shutil.which(tool, path=_path())]
    missing += [] if importlib.util.find_spec("pybind11") else ["pybind11"]
    return f"not found: {', '.join(missing)}" if missing else ""


def _run(*command: str | Path) -> None:
    words = [shutil.which(command[0], path=_path()) or command[0], *command[1:]]
    environment = {**os.environ, "PATH": _path()}
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert done.returncode == 0, "\n".join(done.stdout.splitlines()[-40:])


@functools.cache
def build() -> Path:
    """The extension's file."""
    import pybind11

    places = [f"-Dpybind11_DIR={pybind11.get_cmake_dir()}", f"-DPython_EXECUTABLE={sys.executable}"]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:  # several pytest processes may run at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        _run("cmake", "-S", HERE / "emulated", "-B", FOLDER, "-G", "Ninja", *places)
        _run("cmake", "--build", FOLDER)
    return FILE


@functools.cache
def _loaded(file: Path) -> ModuleType:
    # Under another name: pybind11 creates a module of a name once per process, and the real one may already exist.
    spec = importlib.util.spec_from_file_location("emulated._cuda", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _call_operators()
    return module


def load(file: Path) -> ModuleType:
    """The extension in `file`, as if it were the installed one."""
    import pycollective

    pycollective._cuda = sys.modules[NAME] = _loaded(file)  # type: ignore[attr-defined]
    return sys.modules[NAME]


def _call_operators() -> None:
    """The emulated kernels call a user-defined operator as the CPU's do: nothing is linked."""
    from pycollective.comm.cuda import operators

    def address(op: Op, dtype: str, _capability: tuple[int, int]) -> bytes:
        return op.address(dtype).to_bytes(8, sys.byteorder)

    operators.image_of = address


def build_nccl(folder: Path, source: str = "", version: int = 0) -> str:
    """A libnccl.so.2: of a source, of one that knows only its version, or (without either) the emulated one."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "libnccl.so.2"
    if source or version:
        (folder / "nccl.c").write_text(source or f"int ncclGetVersion(int* v) {{ *v = {version}; return 0; }}")
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", file, folder / "nccl.c"], check=True)
    else:
        shutil.copy(NCCL, file)
    return str(file)


def on_device() -> bool:
    """Whether the tests of this folder use the installed extension and a real GPU (`pytest -m gpu`)."""
    return os.environ.get(ON_DEVICE) == "1"


def install() -> ModuleType:
    """Load it in this process; if several processes do, `build` it first. On a device, load the installed one."""
    if on_device():
        return importlib.import_module(NAME)
    processes.patched = True
    return load(FILE)
