"""Sizes on the command line, and what a case states about bytes and bandwidth."""

import pytest

from pycollective.bench.workload.cases import MEASURED, Case, element_size, pair_partner, sweep_cases
from pycollective.cli.units import format_size, parse_size, parse_sizes


def test_a_size() -> None:
    sizes = {"4": 4, "64K": 65536, "1.5MiB": 1572864, "256M": 2**28, "2GB": 2**31, "1k": 1024}
    assert {text: parse_size(text) for text in sizes} == sizes


@pytest.mark.parametrize("text", ["", "x", "-4", "4T", "K", "4 4"])
def test_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


def test_sizes() -> None:
    sizes = {text: [4, 16, 64] for text in ("4:64:x4", "4:100:x4", "4:64")}
    sizes |= {"64M:256M": [64 << 20, 256 << 20], "1K:3K:+1K": [1024, 2048, 3072]}
    sizes |= {"64,4,1K": [4, 64, 1024], "8,4:16:x2": [4, 8, 16]}
    assert {text: parse_sizes(text) for text in sizes} == sizes


@pytest.mark.parametrize("text", ["64:4:x4", "4:64:x1", "4:64:4", "0:64:x4", "4:64:+0", "4:8:x2:3", "4:64:y4"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError):
        parse_sizes(text)


def test_format_size() -> None:
    assert [format_size(n) for n in (4, 1024, 1536, 2**26, 2**30)] == ["4 B", "1 KiB", "1.5 KiB", "64 MiB", "1 GiB"]


def test_element_sizes() -> None:
    names = ["float32", "int8", "uint64", "bfloat16", "float8_e4m3fn", "bool"]
    assert [element_size(name) for name in names] == [4, 1, 8, 2, 1, 1]
    with pytest.raises(ValueError, match="complex6"):
        element_size("complex6")


def test_bandwidth_is_that_of_nccl_tests() -> None:
    # its doc/PERFORMANCE.md: 2(n-1)/n for allreduce, (n-1)/n for gather-like ones, 1 for broadcast and reduce
    factors = {"allreduce": 1.5, "reduce": 1, "broadcast": 1, "scan": 1, "exscan": 1, "mix": 1, "sendrecv": 2}
    for name in set(MEASURED) - {"barrier"}:
        case = Case(name, "float32", "sum", 1000, 4)
        assert case.algbw(1e-6) == pytest.approx(case.nbytes / 1e-6 / 1e9)
        assert case.busbw(1e-6) == pytest.approx(case.algbw(1e-6) * factors.get(name, 0.75))


def test_size_is_that_of_the_larger_buffer() -> None:
    assert Case("allgather", "float32", "none", 10, 4).nbytes == 160
    assert Case("reduce_scatter", "float32", "sum", 10, 4).nbytes == 160
    assert Case("allreduce", "float32", "sum", 10, 4).nbytes == 40


def test_a_sweep_has_each_case_once_and_at_least_an_element_a_rank() -> None:
    cases = sweep_cases("allgather", "float32", "sum", [4, 8, 16, 64], 4)
    assert [case.count for case in cases] == [1, 4]
    assert {case.op for case in cases} == {"none"}
    assert sweep_cases("reduce", "float32", "max", [64], 4, root=2)[0].root == 2
    assert sweep_cases("allreduce", "float32", "max", [64], 4, root=2)[0].root == -1


def test_a_barrier_is_measured_once_and_has_no_bandwidth() -> None:
    [case] = sweep_cases("barrier", "float32", "sum", [4, 64], 3)
    assert (case.nbytes, case.op, case.root, case.algbw(1.0), case.busbw(1.0)) == (0, "none", -1, 0.0, 0.0)


def test_messages_go_between_pairs() -> None:
    assert [pair_partner(rank, 5) for rank in range(5)] == [1, 0, 3, 2, None]
