"""Fusion changes no bits, for any threshold, groups, order and location of the tensors."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import run
from reference import DTYPES as EVERY_TYPE
from reference import OPERATORS, Array, contributions, numpy_type, takes
from seeds import examples

import pycollective
from engine.operations import SECONDS, on_engines, ones
from pycollective import Communicator, local_world
from pycollective.engine import Engine, Item, Settings

DTYPES = ("float32", "float64", "float16", "bfloat16")
THRESHOLDS = (0, 1, 1000, 64 << 10, 128 << 20)
SHAPES = [(1,), (3,), (1000,), (64, 3, 7, 7), (17, 129), (0,), (), (31_337,), (128,), (255,), (4097,)]


def gradients(rank: int, dtype: str, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """In a range where the order of additions affects the last bits."""
    source = np.random.default_rng(rank)
    return [
        np.asarray(source.standard_normal(shape) * 10.0 ** source.integers(-3, 4, shape)).astype(numpy_type(dtype))
        for shape in shapes
    ]


def unfused(comm: Communicator, arrays: list[Array], options: dict[str, Any]) -> list[bytes]:
    """Each separately, on the communicator: the reference."""
    return [np.asarray(comm.allreduce(array, **options)).tobytes() for array in arrays]


def fused(engine: Engine, arrays: list[Array], options: dict[str, Any], seed: int, windows: bool) -> list[bytes]:
    """Through the engine, in a few groups and a rank-specific order; in place in `windows` and shared arrays."""
    groups: list[list[int]] = [[]]
    for index in range(len(arrays)):
        if random.Random(f"{seed} {index}").random() < 0.5:  # the same groups on all ranks
            groups.append([])
        groups[-1].append(index)
    held = list(arrays)
    if windows:  # every other one, some adjacent
        whole = engine.comm.empty(sum(array.size for array in arrays), arrays[0].dtype)
        ends = np.cumsum([array.size for array in arrays])
        for index, (array, end) in enumerate(zip(arrays, ends, strict=True)):
            if index % 4 < 2:
                held[index] = whole[end - array.size : end].reshape(array.shape)
                held[index][...] = array
            elif array.nbytes >= 64 << 10 and (engine.rank or seed % 3):  # elsewhere on one rank
                with pycollective.shared_arrays():
                    held[index] = array.copy()
    random.Random(f"{seed} {engine.rank}").shuffle(groups)
    works: dict[int, Any] = {}
    for group in groups:
        items = [
            Item("allreduce", f"{index}", held[index], None if held[index] is arrays[index] else held[index], **options)
            for index in group
        ]
        works.update(zip(group, engine.submit(items) if items else [], strict=True))
    return [np.asarray(works[index].wait(SECONDS)).tobytes() for index in range(len(arrays))]


def in_one_world(
    engine: Engine,
    comm: Communicator,
    dtype: str,
    seed: int,
    options: dict[str, Any],
    shapes: Sequence[tuple[int, ...]] = SHAPES,
) -> None:
    arrays = gradients(engine.rank, dtype, shapes)
    right = unfused(comm, arrays, options)
    for threshold in THRESHOLDS:
        comm.barrier()
        engine.tune(threshold, 1e-4)
        comm.barrier()
        assert fused(engine, arrays, options, seed + threshold, seed % 2 == 1) == right, threshold


@pytest.mark.fuzz
@examples(25)
@given(
    n=st.integers(1, 5),
    dtype=st.sampled_from(DTYPES),
    op=st.sampled_from(("sum", "avg", "prod", "max")),
    scale=st.sampled_from((1.0, 0.37)),
    buffer=st.sampled_from((4096, 100_000, 1 << 20)),
    seed=st.integers(0, 1000),
)
def test_threads(n: int, dtype: str, op: str, scale: float, buffer: int, seed: int) -> None:
    options = {"op": op, "prescale": scale, "postscale": 1 / scale}

    def body(engine: Engine) -> None:
        in_one_world(engine, engine.comm.dup(), dtype, seed, options)

    on_engines(n, body, settings=Settings(fusion_buffer=buffer))


def in_processes(comm: Communicator, link: Connection, dtype: str, seed: int) -> None:
    engine = Engine(comm)
    in_one_world(engine, comm, dtype, seed, {"op": "avg"}, [*SHAPES, (40_000,), (600_000,)])
    engine.close()


@pytest.mark.parametrize(("n", "dtype"), [(2, "float32"), (3, "float16"), (4, "float32"), (5, "bfloat16")])
def test_processes(n: int, dtype: str) -> None:
    run(n, in_processes, dtype, n)


def test_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Horovod's variables, in its units; rank 0's apply."""
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "12345")
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2.5")
    monkeypatch.setenv("HOROVOD_CACHE_CAPACITY", "99")
    monkeypatch.setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "7")
    monkeypatch.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "8")
    made = Settings.read()
    assert (made.fusion_threshold, made.cycle_time, made.cache_capacity) == (12345, 2.5e-3, 99)
    assert (made.stall_check_time, made.stall_shutdown_time) == (7, 8)
    assert on_engines(2, lambda engine: engine.settings) == [made] * 2
    given_by_hand = replace(made, fusion_threshold=0)
    assert on_engines(2, lambda engine: engine.settings, settings=given_by_hand) == [given_by_hand] * 2
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "soon")
    with pytest.raises(ValueError, match="HOROVOD_CYCLE_TIME"):
        Settings.read()
    for name, text in (("HOROVOD_FUSION_THRESHOLD", "nan"), ("HOROVOD_LOG_LEVEL", "loud")):
        with pytest.raises(ValueError, match=f"{name}='{text}'"):
            Settings.read({name: text})


def test_settings_without_end() -> None:
    """The largest possible value: nothing overflows internally."""
    names = "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY", "HOROVOD_STALL_CHECK_TIME"
    endless = Settings.read(dict.fromkeys(names, "inf"))

    assert on_engines(2, lambda engine: engine.run([ones("a")])[0][0], settings=endless) == [2.0, 2.0]


def test_defaults_are_horovods_but_for_the_deadline() -> None:
    made = Settings.read({})
    assert (made.fusion_threshold, made.cycle_time, made.cache_capacity) == (128 << 20, 1e-3, 1024)
    assert (made.stall_check_time, made.stall_shutdown_time) == (60, 300)
    assert Settings.read({"PYCOLLECTIVE_TIMEOUT": "7"}).stall_shutdown_time == 7
    assert Settings.read({"PYCOLLECTIVE_TIMEOUT": "7", "HOROVOD_STALL_SHUTDOWN_TIME": "0"}).stall_shutdown_time == 0


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 2, 0)])
def test_between_hosts_every_type_and_operator_has_the_bits_of_one_host(hosts: tuple[int, ...]) -> None:
    def reduce(comm: Communicator) -> list[bytes]:
        engine = Engine(comm)
        items = [
            Item("allreduce", f"{op} {name} {count}", contributions(name, op, comm.size, count)[comm.rank], op=op)
            for name in EVERY_TYPE
            for op in OPERATORS
            for count in (1, 7, 1000)
            if takes(op, name)
        ]
        results = [np.asarray(result).tobytes() for result in engine.run(items)]
        engine.close()
        return results

    here, across = local_world(4).run(reduce), local_world(4, hosts=hosts).run(reduce)
    assert here == across
