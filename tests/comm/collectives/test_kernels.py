"""The vector code: every value of the small types, and the same bits from every instruction set."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import pytest
from processes import IMPORTABLE
from reference import NARROW, Array, finfo, in_rank_order, numpy_type, same_bits

from launch import launch
from make_wheels import best_level
from pycollective import local_world

OPERATORS = ("sum", "prod", "min", "max", "land", "lor")


def every_value(dtype: str) -> Array:
    kind = numpy_type(dtype)
    bits = np.arange(1 << 8 * kind.itemsize, dtype=np.uint32)
    return bits.astype(f"uint{8 * kind.itemsize}").view(kind)


def partners(dtype: str) -> Array:
    """All values of an 8-bit type; of a 16-bit one those that halve, double, cancel, overflow and round to even."""
    kind = numpy_type(dtype)
    if kind.itemsize == 1:
        return every_value(dtype)
    limits = finfo(kind)
    eps, largest, tiny = float(limits.eps), float(limits.max), float(limits.smallest_subnormal)
    chosen = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, eps, eps / 2, 1 + eps, largest, -largest, tiny, 3 * tiny, 1 / 3, 1000.0]
    return np.array([*chosen, np.inf, -np.inf, np.nan]).astype(kind)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("dtype", NARROW)
def test_all_values_against_ml_dtypes(dtype: str, op: str) -> None:
    left, right = np.meshgrid(every_value(dtype), partners(dtype))
    xs = np.stack([left.ravel(), right.ravel()])
    expected = in_rank_order(dtype, op, xs)
    for got in local_world(2).run(lambda comm: comm.allreduce(xs[comm.rank], op=op)):
        assert same_bits(got, expected)


@pytest.mark.parametrize("dtype", NARROW)
def test_averages_of_all_values(dtype: str) -> None:
    """Division gives values that sums of the type never reach: subnormals and ties."""
    xs = np.stack([every_value(dtype)] * 3)
    expected = in_rank_order(dtype, "avg", xs, 0.01, 1.7)
    for got in local_world(3).run(lambda comm: comm.allreduce(xs[comm.rank], op="avg", prescale=0.01, postscale=1.7)):
        assert same_bits(got, expected)


def _digests() -> None:
    import hashlib
    from collections.abc import Iterator
    from typing import Any

    import numpy as np
    from reference import DTYPES, INTEGERS, OPERATORS, REALS, contributions, takes

    from pycollective import _core, local_world

    def calls() -> Iterator[tuple[str, list[Any], str, dict[str, float]]]:
        """(the line that a result belongs to, inputs, operator, options)"""
        for dtype in DTYPES:
            for op in OPERATORS:
                if not takes(op, dtype):
                    continue
                scalable = dtype in REALS and op in ("sum", "avg", "prod", "min", "max")
                for count in (1, 15, 64, 1000, 70001):
                    xs = contributions(dtype, op, 3, count + 3)
                    for offset in range(4) if count < 10000 else [1]:
                        views = [x[offset : offset + count] for x in xs]
                        options = {"prescale": 0.3, "postscale": 1.7} if scalable and offset == 1 else {}
                        yield f"{dtype} {op}", views, op, options
        for dtype in INTEGERS:  # also conversions with processor-dependent results
            for factor in (-1.0, 1e30, float("-inf"), float("nan")):
                for name in ("prescale", "postscale"):
                    yield f"{dtype} {name} {factor}", contributions(dtype, "sum", 3, 70), "sum", {name: factor}

    digests: dict[str, Any] = {}

    def work(comm: Any) -> None:
        for line, views, op, options in given:
            got = comm.allreduce(views[comm.rank], op=op, **options)
            if comm.rank == 0:
                if got.dtype.kind not in "biu":
                    got[np.isnan(got)] = np.nan
                digests.setdefault(line, hashlib.sha256()).update(got.tobytes())

    given = list(calls())
    local_world(3).run(work)
    print(_core.instruction_set())
    for line, hashed in digests.items():
        print(line, hashed.hexdigest())


def test_all_instruction_sets_give_the_same_bits() -> None:
    reports = {}
    for level in (1, 2, 3):
        output = launch(1, _digests, launcher="alone", env=IMPORTABLE | {"PYCOLLECTIVE_ISA": str(level)}, check=True)[0]
        name, *lines = output.splitlines()
        reports[name] = lines
    assert "baseline" in reports
    assert len(reports["baseline"]) > 100
    for name, lines in reports.items():
        assert lines == reports["baseline"], name


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have one set of kernels")
def test_the_best_instruction_set_is_chosen() -> None:
    """Without it everything works, but several times slower: no other test would detect that."""
    expected = best_level(Path("/proc/cpuinfo").read_text())
    chosen = launch(1, "from pycollective import _core; print(_core.instruction_set())", launcher="alone", check=True)
    assert chosen[0].strip() == expected
