"""The reference for #wrong: it accepts correct results and detects single wrong elements."""

import numpy as np
import pytest

from pycollective.bench.workload.cases import MEASURED, Case, pair_partner
from pycollective.bench.workload.data import PERIOD, count_wrong, fill_input, poison
from pycollective.comm.arguments.arrays import numpy_dtype

RANKS = 3
COUNT = 2 * PERIOD + 12_345  # several periods and a remainder


def inputs(case: Case, dtype: str) -> list[np.ndarray]:
    made = []
    for rank in range(case.ranks):
        array = np.empty(case.send_count, numpy_dtype(dtype))
        fill_input(array, rank, dtype)
        made.append(array)
    return made


def perform(case: Case, send: list[np.ndarray], rank: int) -> np.ndarray:
    """Straightforward implementation of the collective in float64."""
    n, count, root = case.ranks, case.count, case.root
    pieces = [array.reshape(-1, count) for array in send]
    match case.collective:
        case "allreduce" | "reduce":
            out = np.sum([array.astype(np.float64) for array in send], 0)
        case "scan" | "exscan":
            out = np.sum([array.astype(np.float64) for array in send[: rank + (case.collective == "scan")]], 0)
        case "mix":
            out = np.sum([weight * send[q].astype(np.float64) for q, weight in case.graph(rank, n).items()], 0)
        case "reduce_scatter":
            out = np.sum([piece[rank].astype(np.float64) for piece in pieces], 0)
        case "broadcast":
            out = send[root]
        case "allgather" | "gather":
            out = np.concatenate(send)
        case "scatter":
            out = pieces[root][rank]
        case "sendrecv":
            out = send[rank ^ 1]
        case _:
            out = np.concatenate([pieces[peer][rank] for peer in range(n)])
    return np.asarray(out).astype(send[0].dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("collective", [name for name in MEASURED if name != "barrier"])
def test_right_results_pass_and_wrong_elements_are_counted(collective: str, dtype: str) -> None:
    weighted = MEASURED[collective].weighted
    if weighted and dtype == "int8":
        return  # refused
    case = Case(collective, dtype, "exponential" if weighted else "sum", COUNT, RANKS, 1)
    send = inputs(case, dtype)
    for rank in range(RANKS):
        if not (case.kind.has_output(rank, case.root) and case.kind.has_result(rank)):
            continue
        if collective == "sendrecv" and pair_partner(rank, RANKS) is None:
            continue
        out = perform(case, send, rank)
        assert count_wrong(out, case, rank) == 0
        for index in (0, PERIOD, out.size - 1):
            out[index] = 55
        assert count_wrong(out, case, rank) == 3


def test_a_misplaced_chunk_is_seen() -> None:
    case = Case("allreduce", "float32", "sum", 1 << 18, RANKS)
    out = perform(case, inputs(case, "float32"), 0)
    out[: 1 << 12] = out[1 << 16 : (1 << 16) + (1 << 12)].copy()
    assert count_wrong(out, case, 0) > 4000


@pytest.mark.parametrize("dtype", ["float32", "float16", "float8_e4m3fn", "int32", "uint8", "bool"])
def test_poison_is_not_a_result(dtype: str) -> None:
    case = Case("allreduce", dtype, "max" if dtype != "bool" else "lor", 1000, RANKS)
    out = np.empty(1000, numpy_dtype(dtype))
    poison(out)
    assert count_wrong(out, case, 0) > (400 if dtype == "bool" else 990)


def test_minimum_and_average_have_references_too() -> None:
    send = inputs(Case("allreduce", "float32", "min", 1000, RANKS), "float32")
    assert count_wrong(np.min(send, 0), Case("allreduce", "float32", "min", 1000, RANKS), 0) == 0
    assert count_wrong(np.mean(send, 0), Case("allreduce", "float32", "avg", 1000, RANKS), 0) == 0


def test_inputs_are_the_same_in_every_process_and_differ_between_ranks() -> None:
    case = Case("allreduce", "float32", "sum", 8, 2)
    first, second = inputs(case, "float32")
    assert not np.array_equal(first, second)
    assert np.array_equal(first, inputs(case, "float32")[0])


def test_a_barrier_and_the_rank_without_a_partner_have_no_result() -> None:
    nothing = np.empty(0, np.float32)
    assert count_wrong(nothing, Case("barrier", "float32", "none", 0, RANKS), 0) == 0
    garbage = np.full(10, 55, np.float32)
    messages = Case("sendrecv", "float32", "none", 10, RANKS)
    assert [count_wrong(garbage, messages, rank) for rank in range(3)] == [10, 10, 0]
