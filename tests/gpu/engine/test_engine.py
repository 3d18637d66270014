"""Arrays in GPU memory in the engine: agreed like all others, run in the stream that was current at submission."""

from __future__ import annotations

import numpy as np
import pytest

import pycollective as pc
from gpu.device import data, get, put
from pycollective.comm.communicator import Communicator
from pycollective.engine import Engine, Item

pytestmark = pytest.mark.usefixtures("cuda")


def test_any_order_beside_cpu_arrays() -> None:
    shapes = [(5,), (300, 7), (), (4096,)]

    def work(comm: Communicator) -> None:
        engine = Engine(comm)
        for turn in range(3):
            works = {}
            for i in np.random.default_rng([turn, comm.rank]).permutation(len(shapes)):
                x = data(10 * i + comm.rank, shapes[i])
                works[f"gpu {i}"] = engine.submit([Item("allreduce", f"gpu {i}", put(x), op="avg")])[0]
                works[f"cpu {i}"] = engine.submit([Item("allreduce", f"cpu {i}", x, op="avg")])[0]
            for i in range(len(shapes)):
                assert get(works[f"gpu {i}"].wait()).tobytes() == works[f"cpu {i}"].wait().tobytes()
        engine.close()

    pc.local_world(3).run(work)


def test_in_place_and_the_other_collectives() -> None:
    def work(comm: Communicator) -> None:
        engine = Engine(comm)
        x = put(np.full(9, comm.rank + 1, "f4"))
        assert engine.run([Item("allreduce", "sum", x, x, prescale=2.0)])[0] is x
        assert (get(x) == 6).all()
        (found,) = engine.run([Item("broadcast", "root", put(np.full(3, comm.rank)), root=1)])
        assert (get(found) == 1).all()
        (found,) = engine.run([Item("allgather", "rows", put(np.full((comm.rank + 1, 2), comm.rank)))])
        assert get(found)[:, 0].tolist() == [0, 1, 1]
        (found,) = engine.run([Item("reducescatter", "part", put(np.arange(4.0)))])
        assert get(found).tolist() == [[0, 2], [4, 6]][comm.rank]
        engine.close()

    pc.local_world(2).run(work)


def test_a_gpu_array_here_and_a_cpu_array_there_is_a_mismatch() -> None:
    def work(comm: Communicator) -> None:
        engine = Engine(comm)
        x = np.ones(4, "f4")
        with pytest.raises(pc.MismatchError, match="on a GPU"):
            engine.run([Item("allreduce", "x", put(x) if comm.rank else x)])
        assert (get(engine.run([Item("allreduce", "x", put(x))])[0]) == 2).all()
        engine.close()

    pc.local_world(2).run(work)
