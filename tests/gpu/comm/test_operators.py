"""A user-defined operator on GPU arrays: run on the emulated runtime; compiled and linked for real, without a GPU."""

from __future__ import annotations

import re
import struct
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calls import on_each_rank

import pycollective as pc
from gpu.device import put, same
from launch import run_command
from pycollective.comm.communicator import Communicator

pytest.importorskip("numba")

COMPUTABLE = [*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float32", "float64", "bool"]


def later_unless_zero(a: Any, b: Any) -> Any:
    """Associative, not commutative: shows the order."""
    return b if b else a


LATER = pc.op(later_unless_zero)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("dtype", COMPUTABLE)
@on_each_rank(3)
def test_the_same_as_on_the_cpu(comm: Communicator, dtype: str) -> None:
    """Both data paths, remainders and odd sizes, in rank order."""
    for count in (0, 1, 7, 1000, 40001):
        x = np.random.default_rng(comm.rank).integers(0, 3, count).astype(dtype)
        same(comm.allreduce(put(x), op=LATER), comm.allreduce(x, op=LATER), count)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("function", "dtype", "prescale", "message"),
    [
        (lambda a, b: "x", "float32", 1.0, "returns unicode_type for two float32|returns .*str"),
        (lambda a, b: a.nothing, "float32", 1.0, "does not compile for float32"),
        (later_unless_zero, "float16", 1.0, "numba does not compute with float16"),
        (later_unless_zero, "float32", 2.0, "no prescale or postscale"),
    ],
)
@on_each_rank(2)
def test_refused_as_on_the_cpu(comm: Communicator, function: Any, dtype: str, prescale: float, message: str) -> None:
    for x in (np.ones(8, dtype), put(np.ones(8, dtype))):
        with pytest.raises(TypeError, match=message):
            comm.allreduce(x, op=pc.op(function), prescale=prescale)


@pytest.mark.usefixtures("cuda")
@on_each_rank(2)
def test_another_operator_is_a_mismatch(comm: Communicator) -> None:
    function = (lambda a, b: a + b) if comm.rank == 0 else (lambda a, b: a - b)
    with pytest.raises(pc.MismatchError):
        comm.allreduce(put(np.ones(8, "f4")), op=pc.op(function))


LINK = """
import pathlib, sys
import pycollective as pc
from pycollective.comm.cuda.operators import image_of
def mixed(a, b):
    return a * b + a
def differ(a, b):
    return a != b
file, dtype, major, minor = sys.argv[1:]
function = differ if dtype == "bool" else mixed
pathlib.Path(file).write_bytes(image_of(pc.op(function), dtype, (int(major), int(minor))))
"""


@pytest.mark.parametrize(("dtype", "capability"), [("int8", (9, 0)), ("bool", (8, 0)), ("float32", (10, 0))])
def test_compile_and_link_without_a_gpu(dtype: str, capability: tuple[int, int], tmp_path: Path) -> None:
    for module in ("numba_cuda", "cuda.bindings.nvjitlink"):
        pytest.importorskip(module, reason=f"needs {module}: pip install 'pycollective[cuda]'")
    # The emulated extension may be loaded in this process: check on disk, and link in a separate process.
    if PathFinder.find_spec("_cuda", pc.__path__) is None:
        pytest.skip("needs pycollective._cuda, which nvcc builds")
    file = tmp_path / "linked.cubin"
    run_command(sys.executable, "-c", LINK, file, dtype, *map(str, capability), cwd=tmp_path)
    check_cubin(file, capability)


def check_cubin(file: Path, capability: tuple[int, int]) -> None:
    """Both kernels exist, the operator is inlined into them, and no symbol is undefined."""
    listed = run_command("readelf", "-sW", file).stdout
    symbols = {name: section for section, name in re.findall(r" GLOBAL .* (\w+) (\S+)$", listed, re.MULTILINE)}
    assert {"pc_schedule", "pc_low_latency"} <= symbols.keys()
    assert "pc_operator" not in symbols
    assert "UND" not in symbols.values(), symbols
    flags = struct.unpack_from("<I", file.read_bytes(), 0x30)[0]
    number = capability[0] * 10 + capability[1]
    assert number in (flags & 0xFF, flags >> 8 & 0xFF)


@pytest.mark.parametrize("missing", ["numba_cuda", "cuda.bindings"])
def test_what_is_missing_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pycollective.comm.cuda import operators

    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(pc.CommunicatorError, match="pip install 'pycollective\\[cuda"):
        if missing == "numba_cuda":
            operators._ltoir(LATER, "float32", (9, 0))
        else:
            operators._link(LATER, b"", b"", (9, 0))
