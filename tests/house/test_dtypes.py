"""The tables of element types and operators match the core, NumPy and DLPack."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import pytest

from launch import run_command
from pycollective import _core, dtypes
from pycollective.comm.arguments.arrays import numpy_dtype
from pycollective.dtypes import DTYPES, OPERATORS, Dtype
from pycollective.schedule import collectives

ROOT = Path(__file__).resolve().parents[2]


def test_the_core_has_the_same_rows() -> None:
    assert _core.dtypes() == list(DTYPES)
    assert _core.operators() == [(row.name, row.meaning) for row in OPERATORS.values()]


@pytest.mark.parametrize("module", [dtypes, collectives])
def test_the_build_writes_the_header_without_the_package(module: Any, tmp_path: Path) -> None:
    written = tmp_path / "made" / "header.h"
    script = ROOT / f"{module.__name__.replace('.', '/')}.py"
    run_command(sys.executable, "-I", "-S", script, written, cwd=tmp_path)
    assert written.read_text() == module.header()


@pytest.mark.parametrize("row", DTYPES.values(), ids=DTYPES)
def test_rows_match_numpy(row: Dtype) -> None:
    found = numpy_dtype(row.name)
    assert (found.name, found.itemsize) == (row.name, row.itemsize)
    assert _core.dtype_name(found) == row.name
    assert row.extended == hasattr(ml_dtypes, row.name)
    if not row.extended:
        kinds = {"boolean": "b", "signed_integer": "i", "unsigned_integer": "u", "real": "f", "complex": "c"}
        assert kinds[row.kind] == found.kind
        codes = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # kDLInt, kDLUInt, kDLFloat, kDLComplex, kDLBool of dlpack.h
        assert row.dlpack == codes[found.kind]
