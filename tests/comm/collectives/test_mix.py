"""mix on the CPU: every element type, every kind of memory, blocking and not; what ranks disagree on; bad input."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from calls import PLACES, on_each_rank, place
from processes import run
from reference import REALS, Array, numpy_type, same_bits

from pycollective import Communicator, MismatchError, graphs, local_world, topology
from pycollective.graphs import Graph

COUNTS = (0, 1, 7, 4099, 100_003)


def ring(rank: int, size: int, step: int = 0) -> dict[int, float]:
    near = {(rank + shift) % size for shift in (-1, 0, 1)}
    return dict.fromkeys(near, 1 / len(near))


def pairs(rank: int, size: int, step: int = 0) -> dict[int, float]:
    """The partner changes with the step; one of an odd number has none."""
    partner = (step - rank) % size
    return {rank: 1.0} if partner == rank else {rank: 0.25, partner: 0.75}


GRAPHS = {"ring": ring, "pairs": Graph("pairs", pairs, lambda size: size)}  # a Graph enters the core at once


def inputs(name: str, n: int, count: int) -> list[Array]:
    random = np.random.default_rng(count + n)
    return [random.uniform(-4, 4, count).astype(numpy_type(name)) for _ in range(n)]


def mixed(xs: list[Array], row: dict[int, float]) -> Array:
    """As documented: ascending sources, products and sums in float32 or float64, one rounding."""
    wide = np.float64 if xs[0].dtype == np.float64 else np.float32
    total = None
    for source, weight in sorted(row.items()):
        product = xs[source].astype(wide) * wide(weight)
        total = product if total is None else total + product
    assert total is not None
    return total.astype(xs[0].dtype)


@pytest.mark.parametrize("name", REALS)
@pytest.mark.parametrize("n", [1, 2, 3, 5])
@on_each_rank()
def test_mix_matches_the_reference_bit_for_bit(comm: Communicator, n: int, name: str) -> None:
    for count in COUNTS:
        xs = inputs(name, n, count)
        for step, graph in enumerate(GRAPHS.values()):
            wanted = mixed(xs, graph(comm.rank, n, step))
            for where in PLACES:
                x = place(comm, xs[comm.rank], where)
                assert same_bits(comm.mix(x, graph, step), wanted)
                assert same_bits(x, xs[comm.rank]), "x is unchanged"
                out = place(comm, np.ones_like(wanted), where)
                assert comm.mix(x, graph, step, out) is out
                assert same_bits(out, wanted)
                assert comm.mix(x, graph, step, x) is x
                assert same_bits(x, wanted), "in place"


@on_each_rank(3)
def test_windows_on_some_ranks_only_are_staged_on_all(comm: Communicator) -> None:
    xs = inputs("float32", 3, 50_001)
    window = place(comm, xs[comm.rank], "window")
    x = window if comm.rank == 1 else xs[comm.rank].copy()
    assert same_bits(comm.mix(x, ring), mixed(xs, ring(comm.rank, 3)))


def between_processes(comm: Communicator, link: Connection) -> None:
    n = comm.size
    for count in COUNTS:
        xs = inputs("float32", n, count)
        for step in range(4):
            wanted = mixed(xs, pairs(comm.rank, n, step))
            handle = comm.imix(xs[comm.rank], pairs, step)
            again = comm.imix(xs[comm.rank], pairs(comm.rank, n, step), step)
            assert same_bits(handle.result(), wanted)
            assert same_bits(again.result(), wanted)
    xs = inputs("float32", n, 70_000)
    out = comm.mix(place(comm, xs[comm.rank], "window"), ring, out=comm.empty(70_000, np.float32))
    assert same_bits(out, mixed(xs, ring(comm.rank, n)))


@on_each_rank(1)
def test_a_graph_is_evaluated_once_for_each_step_of_its_period(comm: Communicator) -> None:
    asked, evaluated = [], []

    def weights(rank: int, size: int, step: int) -> dict[int, float]:
        asked.append(step)
        return pairs(rank, size, step)

    for graph in (Graph("periodic", weights, lambda size: 2), Graph("random", weights, None), weights):
        asked.clear()
        for step in (0, 1, 2, 3, 0):
            comm.mix(np.ones(3), graph, step)
            comm.imix(np.ones(3), graph, step=step).wait()
        evaluated.append(sorted(asked))
    assert evaluated == [[0, 1], [0, 1, 2, 3], sorted([0, 1, 2, 3, 0] * 2)]


@pytest.mark.parametrize("n", [2, 4])
def test_mix_between_processes(n: int) -> None:
    run(n, between_processes)


def test_a_topology_with_programs_of_mix() -> None:
    @topology("twice_round")
    class TwiceRound:
        """Two steps on a ring, in one call."""

        def mix(self, p: Any) -> None:
            for _ in range(2):
                for c in p.chunks(2):
                    for rank in p.ranks:
                        p[rank, c] = p.mix({rank: 0.5, rank + 1: 0.5})

    def body(comm: Communicator) -> None:
        xs = inputs("float64", 4, 1001)
        half = [{rank: 0.5, (rank + 1) % 4: 0.5} for rank in range(4)]
        once = [mixed(xs, row) for row in half]
        twice = mixed(once, half[comm.rank])
        for where, given in (("plain", TwiceRound()), ("plain", TwiceRound), ("window", TwiceRound())):
            assert same_bits(comm.mix(place(comm, xs[comm.rank], where), given), twice)

    local_world(4).run(body)


def differing(mine: Any, theirs: Any, steps: tuple[int, int] = (0, 0)) -> str:
    """The error of two ranks that call mix with these graphs and steps."""

    def body(comm: Communicator) -> str:
        graph, step = (mine, theirs)[comm.rank], steps[comm.rank]
        with pytest.raises(MismatchError) as caught:
            comm.mix(np.ones(3), graph, step)
        return str(caught.value)

    return local_world(2).run(body)[0]


def test_ranks_with_different_graphs_or_steps_are_told_both() -> None:
    text = differing(ring, ring, steps=(3, 4))
    assert "step=3" in text and "step=4" in text
    text = differing(ring, pairs)
    assert "topology=ring, edges " in text and "topology=pairs, edges " in text

    def uneven(rank: int, size: int, step: int) -> dict[int, float]:  # differs in the other rank's row only
        return {0: 0.5, 1: 0.5} if rank == 0 else {0: 0.25, 1: 0.75}

    def even(rank: int, size: int, step: int) -> dict[int, float]:
        return {0: 0.5, 1: 0.5}

    assert "edges" in differing(even, uneven)
    assert "MismatchError" not in differing(ring, {1: 0.5, 0: 0.5})


@on_each_rank(4)
def test_pairs_that_do_not_read_each_other_notice_different_graphs(comm: Communicator) -> None:
    graph = pairs if comm.rank < 2 else (lambda rank, size, step: {rank: 1.0})
    with pytest.raises(MismatchError):  # a rank that reads nobody concerned is told in its next call
        comm.mix(np.ones(3), graph, 1)
        comm.barrier()


@pytest.mark.parametrize("x", [np.arange(3), np.ones(3, bool), np.ones(3, np.complex64), [1, 2]])
@on_each_rank(2)
def test_other_types_than_floating_point_are_refused(comm: Communicator, x: Any) -> None:
    out = np.zeros(len(x), np.asarray(x).dtype)
    for graph in (ring, graphs.ring):
        with pytest.raises(TypeError, match="mix takes floating-point types, not "):
            comm.mix(x, graph, 0, out)
    assert not out.any()
    assert comm.allreduce(np.ones(1))[0] == 2, "nothing was sent"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((lambda rank, size, step: {rank: 0.5},), ValueError, "the weights sum to 0.5"),
        (({5: 1.0},), ValueError, "graph given: rank 0 of 1: source 5 is not a rank"),
        ((3,), TypeError, "graph must be a function of"),
        ((Graph("half", lambda rank, size, step: {rank: 0.5}),), ValueError, "the weights sum to 0.5"),
        ((graphs.ring, -1), ValueError, "step must be"),
        ((graphs.ring, 1.5), TypeError, "step must be"),
        ((ring, -1), ValueError, "step must be"),
        ((ring, 1.5), TypeError, "step must be"),
        ((ring, 1 << 40), ValueError, "step must be"),
    ],
)
@on_each_rank(1)
def test_bad_arguments_are_refused(comm: Communicator, arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        comm.mix(np.ones(3), *arguments)


@on_each_rank(1)
def test_options_of_topologies_are_refused(comm: Communicator) -> None:
    for options in ({"topology": "ring"}, {"op": "sum"}, {"nonsense": 1}):
        for graph in (ring, graphs.ring):
            with pytest.raises(TypeError, match=r"unknown keyword|op, prescale and postscale"):
                comm.mix(np.ones(3), graph, **options)  # type: ignore[call-overload]
    assert comm.mix(np.ones(3), lambda rank, size, step: {rank: 2.0}, normalised=False)[0] == 2
