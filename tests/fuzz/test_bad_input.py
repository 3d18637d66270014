"""For any input, a public function returns, or raises an error that states what was given and what is expected.

PC_TEST_PUBLIC_CALLS sets the number of random calls, PC_TEST_SEED the seed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calls import on_each_rank
from seeds import SEED

import pycollective
from fuzz.random_driver import run_blocks
from fuzz.random_public_calls import CALLS
from pycollective import CommunicatorError, local_world, optim, schedule
from pycollective.optim import schedules

TOTAL = int(os.environ.get("PC_TEST_PUBLIC_CALLS", "1500"))
SHARES = {"communicators": 0.35, "schedules": 0.15, "optimizers": 0.2, "cli": 0.05, "hvd": 0.15, "c10d": 0.1}
"""Share of the calls, by surface."""
NEEDS_TORCH = ("hvd", "c10d", "communicators", "optimizers")
TORCH = importlib.util.find_spec("torch") is not None


@pytest.mark.fuzz
@pytest.mark.timeout(90 + TOTAL // 10)
def test_random_calls_return_or_raise_a_clear_error(tmp_path: Path) -> None:
    arguments = {
        f"{surface}.{SEED}": max(1, round(TOTAL * share / CALLS))
        for surface, share in SHARES.items()
        if TORCH or surface not in NEEDS_TORCH
    }
    found = run_blocks("fuzz.random_public_calls", arguments, tmp_path, {"PYCOLLECTIVE_TIMEOUT": "0.05"})
    assert not found, f"{len(found)} of {TOTAL} calls:\n" + "\n".join(found)


X = np.ones(4)
Refusal = tuple[Callable[[], Any], type[Exception], str]
"""A call, and its error."""
WRONG: list[Refusal] = [
    (lambda: local_world("2"), TypeError, r"size must be an integer from 1 to \d+, not '2' \(str\)"),
    (lambda: local_world(True), TypeError, r"size must be .*, not True \(bool\)"),
    (lambda: local_world(1 << 40), ValueError, "size must be an integer from 1 to"),
    (lambda: local_world(1).run(None), TypeError, "function must be a function of .*, not None"),
    (lambda: pycollective.op(3), TypeError, r"function must be .* two elements, not 3 \(int\)"),
    (lambda: pycollective.op(lambda a, b: a, 3), TypeError, "name must be a string, not 3"),
    (lambda: schedule.get(3), pycollective.TopologyError, "int is not a topology"),
    (lambda: schedule.get("wheel(hub=1.5)"), pycollective.TopologyError, "hub must be an integer"),
    (lambda: schedule.get("wheel(" + "(" * 9999), pycollective.TopologyError, "write name.parameter="),
    (lambda: schedule.topology("t")(3), TypeError, "must be a class, not 3"),
    (lambda: schedule.compile("ring", "allreduce", 2.5), TypeError, "size must be an integer"),
    (lambda: schedule.compile("tree", "allreduce", 1 << 62), ValueError, "size .* at most 65536"),
    (lambda: schedule.compile("ring", [], 2), pycollective.ProgramError, "no collective is"),
    (lambda: schedule.compile("ring", "allreduce", 2, placement="x"), TypeError, "placement must be"),
    (lambda: schedule.verify(3), TypeError, "schedule must be a compiled Schedule, not 3"),
    (lambda: schedule.verify_topology("ring", 3), TypeError, "sizes must be a sequence of integers"),
    (lambda: schedule.Network(latency="5us"), TypeError, "latency must be a finite number.*'5us'"),
    (lambda: schedule.simulate("ring", "allreduce", 2, 8, 3), TypeError, "network must be"),
    (lambda: schedule.simulate("ring", "allreduce", 2, 1 << 62), ValueError, "nbytes .* too many"),
    (lambda: schedule.load(3), TypeError, "where must be a string, not 3"),
    (lambda: optim.partition("3"), TypeError, r"n must be an integer from 0 to \d+, not '3'"),
    (lambda: optim.partition(-1), ValueError, r"n must be an integer from 0 to \d+, not -1"),
    (lambda: optim.partition(3, seed=1, epoch=-1), ValueError, "epoch must be an integer of at least 0"),
    (lambda: optim.partition(3, 5), TypeError, "comm must be a Communicator or None, not 5"),
    (lambda: optim.DistributedSGD([X], "fast"), TypeError, "lr must be a number, at least 0, not 'fast'"),
    (lambda: optim.DistributedOptimizer([X], 3), TypeError, "rule must be a function.*, not 3"),
    (lambda: optim.DistributedOptimizer([X], optim.lamb, lr=1, betas=9), TypeError, "betas must be a seq"),
    (lambda: schedules.decay_steps(["a"]), TypeError, r"milestones\[0\] must be a finite number"),
    (lambda: schedules.cosine(0), ValueError, "steps must be a finite number, above 0, not 0"),
    (lambda: schedules.GrowingBatch(1, [2], limit="x"), TypeError, "limit must be an integer"),
    (lambda: optim.save_checkpoint("\0", None), TypeError, "optimizer must be a DistributedSGD"),
]  # fmt: skip


def check_refusals(refusals: Iterable[Refusal]) -> None:
    for attempt, kind, words in refusals:
        try:
            attempt()
        except kind as error:
            assert re.search(words, str(error)), f"{error!r} instead of {words!r}"
        else:
            raise AssertionError(f"no error: {words}")


def test_errors_state_what_is_wrong() -> None:
    check_refusals(WRONG)


def test_a_program_of_too_many_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pycollective.schedule.language.program.MOST_PLACES", 2000)
    with pytest.raises(pycollective.ProgramError, match=r"alltoall on 33 ranks is too large .* more than 2000 places"):
        schedule.compile("direct", "alltoall", 33)


@on_each_rank(1)
def test_errors_of_calls_state_what_is_wrong(comm: Any) -> None:
    check_refusals([
        (lambda: comm.reduce(X, "0"), TypeError, r"root must be an integer from .*, not '0' \(str\)"),
        (lambda: comm.broadcast(X, 1 << 40), ValueError, "root must be an integer from"),
        (lambda: comm.broadcast(X, X), TypeError, "root must be .* not ndarray of shape .4,. and dtype float64"),
        (lambda: comm.allgatherv(X, [0.5]), TypeError, r"counts\[0\] must be an integer of at least 0, not 0.5"),
        (lambda: comm.allgatherv(X, 4), TypeError, "counts must be a sequence of integers, not 4"),
        (lambda: comm.alltoallv(X, [4], "x"), TypeError, "recv_counts must be a sequence of integers, not 'x'"),
        (lambda: comm.send(X, "1"), TypeError, "dest must be an integer"),
        (lambda: comm.recv(X, None), TypeError, "source must be an integer"),
        (lambda: comm.allreduce(X, timeout="1s"), TypeError, "timeout must be a number of seconds, not of type str"),
        (lambda: comm.allreduce(X, prescale="2"), TypeError, "prescale must be a number, not '2'"),
        (lambda: comm.allreduce(X, name=3), TypeError, "name must be a string, not 3"),
        (lambda: comm.empty("x"), TypeError, "shape must be a sequence of integers, not 'x'"),
        (lambda: comm.empty(3, "f9"), TypeError, "dtype must be an element type, not 'f9'"),
        (lambda: comm.split("red"), TypeError, "color must be an integer from .*, not 'red'"),
        (lambda: comm.group(0), TypeError, "ranks must be a sequence of integers, not 0"),
        (lambda: comm.shrink(np.nan), ValueError, "timeout must be a number, at least 0"),
        (lambda: comm.explain("allreduce", "8B"), TypeError, "nbytes must be an integer of at least 0, not '8B'"),
    ])  # fmt: skip
    assert comm.allreduce(X).tolist() == [1.0] * 4


@pytest.mark.torch
def test_errors_of_hvd_state_what_is_wrong() -> None:
    torch = pytest.importorskip("torch")
    import pycollective.torch as hvd

    hvd.init()
    x = torch.ones(3)
    try:
        check_refusals([
            (lambda: hvd.allreduce([1.0]), TypeError, r"tensor must be a torch.Tensor, not \[1.0\] \(list\)"),
            (lambda: hvd.allreduce_(x.to_sparse()), TypeError, "tensor must be a dense tensor in memory"),
            (lambda: hvd.allreduce(x, op="sum"), TypeError, r"op must be Average, Sum, .*, not 'sum' \(str\)"),
            (lambda: hvd.allreduce(x, op=99), ValueError, "op must be Average, Sum, .*, not 99"),
            (lambda: hvd.allreduce(x, prescale_factor="2"), TypeError, "prescale_factor must be a number, not '2'"),
            (lambda: hvd.allreduce(x, process_set=3), TypeError, r"process_set must be a ProcessSet, not 3 \(int\)"),
            (lambda: hvd.allreduce(x, compression=3), TypeError, "compression must be Compression.none"),
            (lambda: hvd.grouped_allreduce(x), TypeError, "tensors must be a list or tuple of tensors"),
            (lambda: hvd.broadcast(x, "0"), TypeError, "root_rank must be an integer, not '0'"),
            (lambda: hvd.broadcast(x, 5), ValueError, "root_rank 5 is not one of the ranks"),
            (lambda: hvd.alltoall(x, splits=x[:1]), ValueError, r"splits\[0\] must be an integer of at least 0, not 1"),
            (lambda: hvd.alltoall(x, splits=3), TypeError, "splits must be a sequence of integers, not 3"),
            (lambda: hvd.alltoall(x, splits=[1.5]), TypeError, r"splits\[0\] must be an integer"),
            (lambda: hvd.poll([]), TypeError, "handle must be what a function returned"),
            (lambda: hvd.DistributedOptimizer(3), TypeError, "optimizer must be a torch optimizer, not 3"),
            (lambda: hvd.broadcast_optimizer_state(3, 0), TypeError, "optimizer must be a torch optimizer, not 3"),
        ])  # fmt: skip
        assert hvd.allreduce(x, op=hvd.Sum).tolist() == [1.0] * 3
    finally:
        hvd.shutdown()
        pycollective.shutdown()


def test_threads_take_turns_on_one_communicator() -> None:
    """Calls of several threads of a rank may run at once if their order does not matter: in a world of one."""
    comm = pycollective.init()

    def work(number: int) -> None:
        for turn in range(200):
            value = float(number * 1000 + turn)
            out = comm.allreduce(np.full(100, value)) if turn % 3 else comm.broadcast(np.full(7, value))
            assert (out == value).all(), (number, turn)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    pycollective.shutdown()


@pytest.mark.torch
def test_threads_take_turns_in_hvd() -> None:
    torch = pytest.importorskip("torch")
    import pycollective.torch as hvd

    hvd.init()

    def work(number: int) -> None:
        for turn in range(50):
            value = float(number * 1000 + turn)
            assert (hvd.allreduce(torch.full((50,), value), name=f"{number}.{turn}") == value).all(), (number, turn)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    hvd.shutdown()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.allreduce(torch.ones(3))
    pycollective.shutdown()


@on_each_rank(1)
def test_a_freed_communicator_refuses_every_call(comm: Any) -> None:
    part = comm.dup()
    handle = part.iallreduce(X)
    assert handle.result().tolist() == [1.0] * 4
    part.free()
    part.free()
    assert handle.result().tolist() == [1.0] * 4  # completed results remain available
    for attempt in (
        lambda: part.allreduce(X), lambda: part.broadcast(X), lambda: part.iallgather(X), lambda: part.barrier(),
        lambda: part.ibarrier(), lambda: part.empty(3), lambda: part.split(0), lambda: part.dup(),
        lambda: part.group([0]), lambda: part.shrink(0.1), lambda: part.allgatherv(X),
        lambda: part.alltoallv(X, [4]),
    ):  # fmt: skip
        with pytest.raises(CommunicatorError, match=re.compile("freed|closed|free", re.IGNORECASE)):
            attempt()


def test_foreign_arrays_with_wrong_descriptions_are_refused() -> None:
    from fuzz.random_inputs import Described, Foreign, Inputs

    interface = {"shape": (4,), "typestr": "<f4", "data": (0, False), "version": 3}
    wrong = [
        Foreign(None), Foreign(3), Foreign(object()), Foreign(None, None), Foreign(None, ("x",)),
        Described("__array_interface__", {**interface, "shape": (-1,)}), Described("__array_interface__", {}),
        Described("__array_interface__", {**interface, "typestr": 3}), Described("__cuda_array_interface__", interface),
    ]  # fmt: skip

    def body(comm: Any) -> None:
        for x in wrong:
            with pytest.raises((TypeError, ValueError, BufferError, pycollective.Error)):
                comm.allreduce(x)
        pick = Inputs(SEED)
        for _ in range(300):  # none may end the process; refusals raise one of these
            with contextlib.suppress(TypeError, ValueError, BufferError, MemoryError):
                comm.allreduce(Foreign(pick.capsule))
        with pytest.raises(KeyError, match="no"):  # errors of the library pass unchanged
            comm.allreduce(Foreign(KeyError("no")))
        assert comm.allreduce(X).tolist() == [1.0] * 4

    local_world(1).run(body)
