"""Which copy of NCCL a process loads: with none, an old one, a new one, several. Each case is a separate process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import IMPORTABLE

from gpu.emulation import build_nccl
from launch import run_command

Run = Callable[..., str]
pytestmark = pytest.mark.emulated

_HEAD = """
import os, sys
import gpu.emulation
gpu.emulation.install()
import pycollective as pc
from pycollective.comm.cuda.nccl import library as nccl
"""
_SHOW = """
found = nccl.library()
print(found.source, found.path, found.version_text, found.reason, sep="\\n")
"""


@pytest.fixture
def run(built: Path, tmp_path: Path) -> Run:
    """Run a snippet; no NCCL can be found unless its environment, or a folder "site" or "system", provides one."""

    def start(snippet: str, **env: str) -> str:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYCOLLECTIVE_", "PC_EMULATED_NCCL"))}
        path = os.pathsep.join([str(tmp_path / "site"), IMPORTABLE["PYTHONPATH"]])
        clean |= {"LD_LIBRARY_PATH": str(tmp_path / "system"), "PYTHONPATH": path}
        return run_command(sys.executable, "-c", _HEAD + snippet, env=clean | env, cwd=tmp_path, timeout=60).stdout

    return start


def _has_wheel() -> bool:
    return any(Path(folder or ".", "nvidia", "nccl", "lib", "libnccl.so.2").exists() for folder in sys.path)


@pytest.mark.skipif(_has_wheel(), reason="a wheel nvidia-nccl-cu* is installed here")
def test_missing(run: Run) -> None:
    text = run("print(nccl.why_not())")
    assert "libnccl.so.2" in text and "pip install nvidia-nccl-cu13" in text and "PYCOLLECTIVE_NCCL" in text


def test_a_named_file_that_cannot_be_used(run: Run, tmp_path: Path) -> None:
    for file, text in (
        (str(tmp_path / "nothing.so"), "nothing.so"),
        (build_nccl(tmp_path / "old", version=2708), "is NCCL 2.7.8; 2.17.0 or newer is needed"),
        (build_nccl(tmp_path / "other", "int x;"), "is not NCCL"),
        (build_nccl(tmp_path / "half", version=22304), "(NCCL 2.23.4) lacks ncclGetUniqueId"),
    ):
        why = run("print(nccl.describe())", PYCOLLECTIVE_NCCL=file)
        assert text in why and "no NCCL can be used" in why


def test_new(run: Run, tmp_path: Path) -> None:
    """A version newer than any known one."""
    file = build_nccl(tmp_path / "new")
    source, path, version, reason = run(_SHOW, PYCOLLECTIVE_NCCL=file, PC_EMULATED_NCCL_VERSION="31205").splitlines()
    assert (source, path, version) == ("PYCOLLECTIVE_NCCL", file, "3.12.5") and "named by" in reason


_WHEEL = Path("site", "nvidia", "nccl", "lib")


def test_wheel_before_system_unless_it_is_too_old(run: Run, tmp_path: Path) -> None:
    wheel, system = build_nccl(tmp_path / _WHEEL), build_nccl(tmp_path / "system")
    source, path, _, reason = run(_SHOW).splitlines()
    assert (source, path) == ("wheel", wheel) and "torch is not loaded" in reason
    build_nccl(tmp_path / _WHEEL, version=21003)
    source, path, _, reason = run(_SHOW).splitlines()
    if not _has_wheel():
        assert (source, path) == ("system", system)
    assert "2.10.3; 2.17.0 or newer is needed" in reason


_AS_TORCH = """
import ctypes, types
sys.modules["torch"] = types.ModuleType("torch")
if "TORCHS" in os.environ:
    ctypes.CDLL(os.environ["TORCHS"])
"""


def test_torchs_copy_comes_first(run: Run, tmp_path: Path) -> None:
    wheel = build_nccl(tmp_path / _WHEEL)
    source, path, _, reason = run(_AS_TORCH + _SHOW).splitlines()
    assert (source, path) == ("wheel", wheel) and "torch has loaded none" in reason
    torchs = build_nccl(tmp_path / "torch" / "lib")
    source, path, _, reason = run(_AS_TORCH + _SHOW, TORCHS=torchs).splitlines()
    assert (source, path) == ("torch", torchs) and "torch has loaded it" in reason
    torchs = build_nccl(tmp_path / "old torch" / "lib", version=21003)
    text = run(_AS_TORCH + "print(nccl.why_not())", TORCHS=torchs)
    assert "torch: " in text and "2.10.3" in text, "a second copy in the same process would be unsafe: refused"


def test_ranks_that_share_a_gpu(run: Run) -> None:
    """NCCL allows this from 2.30 on, with its flag set and its blocks capped."""
    run("""
def why(*arguments):
    try:
        return nccl.blocks_for(*arguments)
    except pc.CommunicatorError as error:
        return str(error)
assert why(1, 132, 22304, 0) == 0 and why(1, 132, 22304, 5) == 5
assert "from 2.30 on" in why(2, 132, 22907, 0)
assert "set NCCL_MULTI_RANK_GPU_ENABLE=1" in why(2, 132, 23000, 0)
os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
assert why(2, 132, 23000, 0) == 66 and why(4, 132, 23000, 8) == 8 and why(4, 132, 23000, 64) == 33
os.environ["NCCL_MAX_CTAS"] = "80"
assert "NCCL_MAX_CTAS=80" in why(2, 132, 23000, 0)
os.environ["NCCL_MAX_CTAS"] = "16"
assert why(2, 132, 23000, 0) == 66
""")


def test_what_nccl_lacks(run: Run) -> None:
    run("""
from pycollective.comm.cuda.signature import Signature
def why(collective, dtype, op="sum", scale=(1.0, 1.0), version=22304, capability=(9, 0)):
    return nccl.lacks(Signature(collective, dtype, 1, None, -1, op, "nccl", scale, 0), version, capability)
assert why("scan", "float32") == "NCCL has no scan" and why("mix", "float32") == "NCCL has no mix"
assert why("allreduce", "float32") is None and why("allreduce", "bool", "bor") is None
assert "int16" in why("allreduce", "int16") and why("broadcast", "int16") is None
assert "operator band" in why("reduce", "int32", "band") and "bxor" in why("reduce", "bool", "bxor")
assert "user-defined" in why("allreduce", "float32", pc.op(lambda a, b: a + b))
assert "2.24" in why("allreduce", "float8_e5m2")
assert "9.0" in why("allreduce", "float8_e5m2", version=22400, capability=(8, 0))
assert why("allreduce", "float8_e4m3fn", version=22400) is None
assert "sums and averages" in why("allreduce", "float32", "max", (2.0, 1.0))
assert "by integers" in why("allreduce", "int32", "sum", (0.5, 1.0))
assert why("allreduce", "int32", "sum", (3.0, 1.0)) is None and why("allreduce", "float16", "avg", (0.5, 3.0)) is None
""")
