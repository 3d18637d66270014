"""Arrays in GPU memory in the engine: any order, the fusion buffer, reductions in place, and streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import on_each_rank
from engine.operations import every_engine
from hypothesis import given
from hypothesis import strategies as st

import pycollective as pc
from gpu.device import Interface, data, get, put, same
from gpu.ranks import on_processes
from pycollective.comm.communicator import Communicator
from pycollective.comm.cuda import arrays
from pycollective.comm.cuda.runtime import load
from pycollective.engine import Engine, Item
from pycollective.engine.device import tiles
from pycollective.engine.settings import Settings

pytestmark = pytest.mark.usefixtures("cuda")

SHAPES = [(5,), (300, 7), (), (0, 3), (4096,), (1,), (33,)]
SMALL = Settings(gpu_fusion_buffer=4096)
"""A buffer through which larger arrays pass in several parts."""


@every_engine(3)
def test_any_order_beside_cpu_arrays(engine: Engine) -> None:
    for turn in range(3):
        works = {}
        for i in np.random.default_rng([turn, engine.rank]).permutation(len(SHAPES)):
            x = data(10 * i + engine.rank, SHAPES[i])
            works[f"gpu {i}"] = engine.submit([Item("allreduce", f"gpu {i}", put(x), op="avg")])[0]
            works[f"cpu {i}"] = engine.submit([Item("allreduce", f"cpu {i}", x, op="avg")])[0]
        for i in range(len(SHAPES)):
            same(works[f"gpu {i}"].wait(), works[f"cpu {i}"].wait(), turn, i)


@every_engine(2)
def test_in_place_and_the_other_collectives(engine: Engine) -> None:
    rank = engine.rank
    x = put(np.full(9, rank + 1, "f4"))
    assert engine.run([Item("allreduce", "sum", x, x, prescale=2.0)])[0] is x
    assert (get(x) == 6).all()
    (found,) = engine.run([Item("broadcast", "root", put(np.full(3, rank)), root=1)])
    assert (get(found) == 1).all()
    (found,) = engine.run([Item("allgather", "rows", put(np.full((rank + 1, 2), rank)))])
    assert get(found)[:, 0].tolist() == [0, 1, 1]
    (found,) = engine.run([Item("reducescatter", "part", put(np.arange(4.0)))])
    assert get(found).tolist() == [[0, 2], [4, 6]][rank]
    x = data(rank, (5, 3))
    (expected,) = engine.run([Item("adasum", "on the cpu", x)])
    same(engine.run([Item("adasum", "on the gpu", put(x))])[0], expected)
    moved = put(np.full((3, 2), rank))
    ((rows, counts),) = engine.run([Item("alltoall", "rows", moved, splits=[1, 2])])
    assert counts == [rank + 1] * 2 and get(rows)[:, 0].tolist() == [0] * counts[0] + [1] * counts[1]


# -- the fusion buffer -----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 200), max_size=20), st.integers(1, 6))
def test_tiles_hold_every_byte_once_and_aligned(sizes: list[int], vectors: int) -> None:
    room, at, pieces = 16 * vectors, 1000, []
    for nbytes in sizes:
        pieces.append((at, at + 100_000, nbytes))
        at += nbytes
    inputs = []
    for tile in tiles(pieces, room):
        free = 0
        for offset, (x, out, nbytes) in tile:
            assert offset % 16 == 0 and offset >= free and out == x + 100_000
            free = offset + nbytes
            inputs += range(x, x + nbytes)
        assert free <= room
    assert inputs == list(range(1000, at))


def test_a_rank_without_arrays_has_no_addresses_in_tiles() -> None:
    assert tiles([(0, 0, 40)], 16) == [[(0, (0, 0, 16))], [(0, (0, 0, 16))], [(0, (0, 0, 8))]]


def test_moves_of_all_alignments_and_of_more_pieces_than_a_launch_takes() -> None:
    cuda, random = load(), np.random.default_rng(3)
    source, target = random.integers(0, 256, 1 << 20, np.uint8), np.full(1 << 20, 7, np.uint8)
    x, out = put(source), put(target)
    rows, end = [], 0
    for number in range(400):
        begin = end + int(random.integers(0, 20))
        nbytes = int(random.choice([0, 1, 3, 16, 100, 1000])) if number else 100_001  # more than a block's part
        end, at = begin + nbytes, int(random.integers(0, len(source) - nbytes))
        empty = number % 7 == 3
        rows.append((out.address + begin, 0 if empty else x.address + at, nbytes))
        target[begin:end] = 0 if empty else source[at : at + nbytes]
    cuda.move(0, rows, 0)
    assert (get(out) == target).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "float8_e5m2"])
@pytest.mark.parametrize("settings", [SMALL, Settings()], ids=["in parts", "at once"])
@on_each_rank(3)
def test_a_group_gives_the_bits_of_its_members(comm: Communicator, dtype: str, settings: Settings) -> None:
    op = "max" if dtype == "bool" else "sum"
    engine = Engine(comm, settings)
    arrays = [put(data(10 * i + comm.rank, shape, dtype)) for i, shape in enumerate(SHAPES)]
    alone = [get(engine.run([Item("allreduce", f"alone {i}", x, op=op)])[0]) for i, x in enumerate(arrays)]
    before = engine.traffic()[1]
    together = engine.run([Item("allreduce", f"together {i}", x, op=op) for i, x in enumerate(arrays)])
    assert engine.traffic()[1] - before == 1, "one batch"
    in_place = engine.run([Item("allreduce", f"in place {i}", x, x, op=op) for i, x in enumerate(arrays)])
    assert all(out is x for out, x in zip(in_place, arrays, strict=True))
    for i, expected in enumerate(alone):
        same(together[i], expected, SHAPES[i])
        same(arrays[i], expected, SHAPES[i], "in place")
    engine.close()


@every_engine(2)
def test_factors_and_average(engine: Engine) -> None:
    arrays = [put(np.full(n, engine.rank + 1.0, "f4")) for n in (3, 50)]
    items = [Item("allreduce", str(i), x, op="avg", prescale=2.0, postscale=10.0) for i, x in enumerate(arrays)]
    for found in engine.run(items):
        assert (get(found) == 30).all()


@on_processes(2)
def test_arrays_in_windows_are_reduced_where_they_are_and_packed_where_one_rank_has_another(comm: Communicator) -> None:
    rank, engine = comm.rank, Engine(comm, SMALL)
    engine.run([Item("allreduce", "first", put(np.ones(1, "f4")))])  # creates the engine's GPU side
    window = engine.comm.empty(3000, "float32", device=0)
    parts = [load().DeviceArray(window, window.address + 4000 * i, (1000,), "float32", 0) for i in range(3)]

    def fill(seed: int) -> Any:
        host = np.concatenate([data(seed + i + rank, 1000) for i in range(3)])
        window.copy_from_host(host.view(np.uint8))
        return [data(seed + i, 1000) + data(seed + i + 1, 1000) for i in range(3)]

    def reduce(expected: Any) -> None:
        engine.run([Item("allreduce", f"part {i}", x, x) for i, x in enumerate(parts)])
        for x, sums in zip(parts, expected, strict=True):
            np.testing.assert_allclose(get(x), sums, rtol=1e-5, atol=1e-5)

    reduce(fill(0))
    assert engine._stream is not None and engine._stream._buffer is None, "nothing was packed"

    expected = fill(50)
    if rank == 0:  # not in a window on this rank: all pack it
        parts[1] = put(data(51, 1000))
    reduce(expected)
    assert engine._stream._buffer is not None

    fill(100)
    if rank == 0:  # a rank that has joined contributes zeros
        pair = (parts[0], parts[2])
        engine.run([Item("allreduce", f"part {i}", x, x, prescale=2.0) for i, x in enumerate(pair)])
        np.testing.assert_allclose(get(parts[0]), 2 * data(100, 1000), rtol=1e-5, atol=1e-5)
    engine.join()
    engine.close()


# -- streams ---------------------------------------------------------------------------------------------------------


@on_processes(2)
def test_operations_follow_what_was_submitted_before_them_and_waiting_streams_follow_them(comm: Communicator) -> None:
    cuda = load()
    engine = Engine(comm)
    slow, source = put(np.zeros(1 << 22, "f4")), put(np.ones(1000, "f4"))
    copy = put(np.zeros(1 << 22, "f4"))
    for turn in range(5):
        arrays = [put(np.zeros(1000, "f4")) for _ in range(2)]
        for x in arrays:  # the inputs are written late, in the stream that is current at submission
            cuda.copy(copy.address, slow.address, slow.nbytes, 0)
            cuda.copy(x.address, source.address, source.nbytes, 0)
        works = engine.submit([Item("allreduce", f"{turn}.{i}", x, x) for i, x in enumerate(arrays)])
        for work in works:  # the results arrive there too, and stream 0 waits for them
            work.wait()
        for x in arrays:
            assert (get(x) == comm.size).all(), turn
    engine.close()


@every_engine(1)
def test_a_stream_that_is_captured_is_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, x, stream = load(), put(np.ones(4, "f4")), load().Stream(0)
    with monkeypatch.context() as patch:  # as if a library had made it current
        patch.setattr(arrays, "_current_stream", lambda _: stream.address)
        cuda.begin_capture(stream.address)
        with pytest.raises(ValueError, match="graph"):
            engine.submit([Item("allreduce", "x", x)])
        cuda.end_capture(stream.address)
    assert (get(engine.run([Item("allreduce", "x", x)])[0]) == 1).all()


# -- ranks that differ, and what is refused -------------------------------------------------------------------------


@every_engine(3)
def test_a_rank_that_has_joined_takes_part_with_zeros(engine: Engine) -> None:
    if engine.rank == 1:
        assert engine.join() in (0, 2)
    else:
        arrays = [put(np.full(n, engine.rank + 1, "i4")) for n in (2, 70)]
        for found in engine.run([Item("allreduce", f"sum {i}", x) for i, x in enumerate(arrays)]):
            assert (get(found) == 1 + 3).all()
        (alone,) = engine.run([Item("allreduce", "alone", arrays[0], arrays[0])])
        assert (get(alone) == 1 + 3).all()
        (rows,) = engine.run([Item("allgather", "rows", arrays[1])])
        assert get(rows).tolist() == [1] * 70 + [3] * 70
        with pytest.raises(pc.CommunicatorError, match="joined"):
            engine.run([Item("broadcast", "b", arrays[0], root=0)])
        engine.join()


@pytest.mark.parametrize("collective", ["allreduce", "broadcast", "allgather", "reducescatter", "alltoall", "adasum"])
@every_engine(2)
def test_gpu_here_and_cpu_there_is_a_mismatch_on_both(engine: Engine, collective: str) -> None:
    x = np.ones(4, "f4")
    with pytest.raises(pc.MismatchError, match="on a GPU"):
        engine.run([Item(collective, "x", put(x) if engine.rank else x, root=0)])
    (found,) = engine.run([Item("allreduce", "x", put(x))])
    assert (get(found) == 2).all()


@every_engine(2)
def test_what_cannot_work_is_refused_by_the_rank_that_submits_it(engine: Engine) -> None:
    x = put(np.ones(4, "f4"))
    view = Interface(x, data=(x.address, True))
    with pytest.raises(TypeError, match="out is float64"):
        engine.submit([Item("allreduce", "x", x, put(np.ones(4)))])
    with pytest.raises(ValueError, match="out has shape"):
        engine.submit([Item("allreduce", "x", x, put(np.ones(5, "f4")))])
    with pytest.raises(ValueError, match="read-only"):
        engine.submit([Item("allreduce", "x", view, view)])
    assert (get(engine.run([Item("allreduce", "x", x)])[0]) == 2).all()
