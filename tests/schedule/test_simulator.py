"""The simulator: closed forms of the field, lower bounds, and the bytes of the compiled schedules."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seeds import examples

from pycollective.errors import ProgramError, TopologyError
from pycollective.schedule import COLLECTIVES, Placement, Program, compile, compile_program, describe, topology, traffic
from pycollective.schedule.simulator.executions import Executions
from pycollective.schedule.simulator.fitting import Measurement, fit
from pycollective.schedule.simulator.messages import FIRST, LAST, messages_of
from pycollective.schedule.simulator.network import Network
from pycollective.schedule.simulator.simulator import chunk_sizes, simulate

from .random_programs import programs

LATENCY, BANDWIDTH, REDUCTION = 5e-6, 12.5e9, 20e9
NETWORK = Network(LATENCY, BANDWIDTH, REDUCTION)
A, B, G = LATENCY, 1 / BANDWIDTH, 1 / REDUCTION
ALL = [
    (row.name, collective, small)
    for row in describe()
    if row.cls.__module__.startswith("pycollective.")
    for collective in row.collectives
    for small in ((False, True) if hasattr(row.cls, f"{collective}_small") else (False,))
]


def seconds(topology: object, collective: str, n: int, nbytes: int, network: Network = NETWORK, **how: Any) -> float:
    return simulate(topology, collective, n, nbytes, network, **how).seconds


@pytest.mark.parametrize(("name", "collective", "small"), ALL)
def test_nodes_are_the_hosts_that_programs_know(name: str, collective: str, small: bool) -> None:
    """And a value crosses to each of them once, as in the compiled schedule."""
    for n, each in ((4, 2), (5, 2), (6, 3)):
        schedule = compile(name, collective, n, small=small, hosts=[rank // each for rank in range(n)])
        share = 64 * 60  # bytes of a chunk; of an alltoall's n * n chunks a rank has n
        nbytes = share * schedule.chunks // (n if collective == "alltoall" else 1)
        found = simulate(name, collective, n, nbytes, replace(NETWORK, ranks_per_node=each), small=small)
        assert found.bytes_between_nodes == sum(traffic(schedule).values()) * schedule.chunks * share


class Flat:
    """A broadcast in which all ranks read the root's memory."""

    def broadcast(self, p: Program, root: int) -> None:
        for c in p.chunks(1):
            p[p.ranks, c] = p[root, c]


def test_a_value_that_reached_a_node_is_read_there() -> None:
    a, b, m = 1e-7, 1e-11, 6400
    network = Network(A, BANDWIDTH, REDUCTION, 3, a, 1 / b)
    found = simulate(topology("flat")(Flat), "broadcast", 6, m, network)
    assert found.bytes_between_nodes == m
    # Rank 0 sends to rank 5 on the other node, then to ranks 2 and 1, while rank 5 sends to ranks 4 and 3.
    across, within = A + m * B, a + m * b
    assert found.finish[5] == pytest.approx(across)
    assert found.finish[4] == found.finish[2] == pytest.approx(across + within)
    assert found.seconds == found.finish[3] == found.finish[1] == pytest.approx(across + 2 * within)
    assert found.critical_path[0].rank == 5


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13])
def test_closed_forms(n: int) -> None:
    """With one port each way: ring, star and direct as in every textbook; a binomial tree in ceil(log2 n) rounds."""
    S = 64 * n * 1000
    rounds = math.ceil(math.log2(n))
    share = S / n
    near = pytest.approx
    assert seconds("ring", "allreduce", n, S) == near(2 * (n - 1) * (A + share * B) + (n - 1) * share * G)
    assert seconds("ring", "reduce_scatter", n, S) == near((n - 1) * (A + share * (B + G)))
    assert seconds("ring", "broadcast", n, S) == near((n - 1) * (A + S * B))
    assert seconds("tree", "broadcast", n, S, small=True, root=n // 2) == near(rounds * (A + S * B))
    assert seconds("star", "allreduce", n, S) == near(2 * (n - 1) * (A + S * B) + (n - 1) * S * G)
    assert seconds("direct", "allreduce", n, S, small=True) == near((n - 1) * (A + S * (B + G)))
    assert seconds("direct", "allreduce", n, S, small=False) == near((n - 1) * (2 * A + share * (2 * B + G)))
    assert seconds("direct", "alltoall", n, S) == near((n - 1) * (A + share * B))


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_closed_forms_of_powers_of_two(rounds: int) -> None:
    """Chunks with the same route in a round are one message, in any order of statements."""
    n = 2**rounds
    S = 64 * n * 100
    moved = (n - 1) / n * S
    near = pytest.approx
    assert seconds("halving_doubling", "allreduce", n, S, small=True) == near(rounds * (A + S * (B + G)))
    assert seconds("halving_doubling", "allreduce", n, S, small=False) == near(2 * rounds * A + moved * (2 * B + G))
    for name in ("tree", "halving_doubling"):
        assert seconds(name, "gather", n, S, root=n - 1) == near(rounds * A + moved * B)
        assert seconds(name, "scatter", n, S, root=1) == near(rounds * A + moved * B)
    assert simulate("halving_doubling", "allreduce", n, S, small=False).messages == 2 * rounds * n


def test_tiles_pipeline_a_chain() -> None:
    n, tiles, piece = 5, 10, 6400
    expected = (n - 2 + tiles) * (A + piece * B)
    assert seconds("ring", "broadcast", n, tiles * piece, tile=piece) == pytest.approx(expected)
    assert simulate("ring", "broadcast", n, tiles * piece, tile=piece).messages == tiles * (n - 1)


class Levels:
    """Reduce within each of two nodes, across, and broadcast."""

    def allreduce(self, p: Program) -> None:
        half = p.size // 2
        for c in p.chunks(half):
            for first in (0, half):
                p[first + c, c] = p.sum(p[first + r, c] for r in range(half))
            p[(c, half + c), c] = p.sum((p[c, c], p[half + c, c]))
            for first in (0, half):
                p[range(first, first + half), c] = p[first + c, c]


@pytest.mark.parametrize("shared", [False, True])
def test_two_nodes(shared: bool) -> None:
    """Within a node at its own speed; between nodes each rank with a port, or the node through one."""
    m, share = 4, 6400
    S = m * share
    a, b = 1e-6, 1 / 100e9
    network = Network(A, BANDWIDTH, REDUCTION, m, a, 100e9, shared)
    within = 2 * (m - 1) * (a + share * b) + (m - 1) * share * G
    across = (m if shared else 1) * (A + share * B) + share * G
    found = simulate(topology("levels")(Levels), "allreduce", 2 * m, S, network)
    assert found.seconds == pytest.approx(within + across)
    assert found.bytes_between_nodes == 2 * m * share
    assert found.bytes_sent == 2 * m * share * (2 * (m - 1) + 1)


@pytest.mark.parametrize(("name", "collective", "small"), ALL)
def test_bytes_are_those_of_the_compiled_schedule(name: str, collective: str, small: bool) -> None:
    for n in (1, 2, 3, 5, 8, 9):
        S, root = 1000 * n + 13, (n - 1 if COLLECTIVES[collective].rooted else None)
        schedule = compile(name, collective, n, root, Placement.INPLACE, small)
        sizes = chunk_sizes(collective, n, schedule.chunks, S)
        sent: Counter[int] = Counter()
        for rank, mine in enumerate(schedule.ranks):
            for step in mine.steps:
                length = sizes[step.chunk]
                for source in step.sources:
                    sent[source.rank] += length * (source.rank != rank)
                sent[rank] += length * sum(target.rank != rank for target in step.targets)
        found = simulate(name, collective, n, S, root=root, small=small)
        assert found.bytes_sent == sum(sent.values())
        assert found.bytes_most == max(sent.values(), default=0)
        assert bool(found.messages) == (n > 1)


def test_chunks_are_cut_as_the_executor_cuts() -> None:
    assert chunk_sizes("allreduce", 3, 3, 1000) == [384, 384, 232]
    assert chunk_sizes("allreduce", 3, 3, 4) == [4, 0, 0]
    assert chunk_sizes("allgather", 3, 3, 1000) == [334, 333, 333]
    assert sum(chunk_sizes("alltoall", 3, 9, 999)) == 3 * 999
    ring = simulate("ring", "allreduce", 8, 4, NETWORK)
    assert ring.seconds == pytest.approx(14 * (A + 4 * B) + 7 * 4 * G)  # one chunk has everything; the others are free
    assert (ring.messages, ring.bytes_sent) == (14, 56)


@examples(40)
@given(
    case=st.sampled_from(ALL),
    n=st.integers(1, 9),
    nbytes=st.integers(1, 10**7),
    latency=st.floats(0, 1e-3),
    bandwidth=st.floats(1e6, 1e12),
    node=st.integers(1, 4),
    more=st.floats(1, 10),
)
def test_bounds_and_monotony(
    case: tuple[str, str, bool], n: int, nbytes: int, latency: float, bandwidth: float, node: int, more: float
) -> None:
    name, collective, small = case
    network = Network(latency, bandwidth, 1e10, node, latency / 7, bandwidth * 3)

    def run(network: Network) -> float:
        return seconds(name, collective, n, nbytes, network, small=small)

    time = run(network)
    assert time == run(network)
    once = 1 - 1e-9
    assert run(replace(network, latency=latency * more)) >= time * once
    assert run(replace(network, bandwidth=bandwidth / more)) >= time * once
    assert run(replace(network, reduction=1e10 / more)) >= time * once
    assert run(replace(network, shared_port=True)) >= time * once
    flat = run(Network(latency, bandwidth))
    if collective in ("allreduce", "broadcast", "reduce"):
        assert flat >= math.ceil(math.log2(n)) * latency * once
    arrives = {"allreduce": (n - 1) / n, "broadcast": n > 1, "reduce": n > 1}.get(collective, 0)
    assert flat >= nbytes * arrives / bandwidth * once
    found = simulate(name, collective, n, nbytes, Network(latency, bandwidth), small=small)
    assert flat >= found.bytes_most / bandwidth * once
    assert found.seconds == max(found.finish)


@pytest.mark.parametrize(("name", "collective", "small"), ALL)
def test_order_of_independent_statements_does_not_matter(
    name: str, collective: str, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks are independent of each other: written last chunk first, the result is the same."""
    from pycollective.schedule.simulator import simulator

    n = 7
    network = replace(NETWORK, ranks_per_node=3, node_latency=1e-6)
    before = simulate(name, collective, n, 64 * n * n, network, small=small)

    class Backwards(simulator.Executions):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.kept: list[Any] = []

        def record(self, statement: Any) -> None:
            self.kept.append(statement)

        def finish(self) -> None:
            for statement in sorted(self.kept, key=lambda statement: -statement.chunk):
                super().record(statement)
            super().finish()

    monkeypatch.setattr(simulator, "Executions", Backwards)
    simulator._prepared.cache_clear()
    after = simulate(name, collective, n, 64 * n * n, network, small=small)
    simulator._prepared.cache_clear()
    assert (after.seconds, after.finish, after.messages) == (before.seconds, before.finish, before.messages)


def test_the_critical_path_leads_from_the_start_to_the_end() -> None:
    ring = simulate("ring", "allreduce", 5, 64 * 5, NETWORK, steps=True)
    assert len(ring.critical_path) == 8
    assert ring.critical_path[0].begin == 0
    assert ring.critical_path[-1].end == ring.seconds
    assert all(one.end == other.begin for one, other in pairwise(ring.critical_path))
    assert len({step.chunk for step in ring.critical_path}) == 1  # all are equal: the path follows one
    assert len(ring.steps) == 5 * 8
    assert set(ring.critical_path) <= set(ring.steps)


class Waste:
    """A copy that is already in place, one that is never read, one that is overwritten, and a push."""

    def broadcast(self, p: Program, root: int) -> None:
        for c in p.chunks(1):
            p[root, c] = p[root, c]
            p[root + 1, c] = p[root, c]
            p[root + 1, c] = p.sum((p[root, c], p[root, c]))
            p[root + 1, c] = p.copy(p[root, c], at=root)


def test_unused_values_are_not_simulated() -> None:
    found = simulate(topology("waste")(Waste), "broadcast", 2, 100, NETWORK)
    assert (found.messages, found.bytes_sent) == (1, 100)
    assert found.finish == (pytest.approx(A + 100 * B), pytest.approx(A + 100 * B))


def test_the_variant_is_the_librarys_choice() -> None:
    assert simulate("tree", "allreduce", 4, 65536).small
    assert not simulate("tree", "allreduce", 4, 65537).small
    assert not simulate("ring", "allreduce", 4, 4, small=True).small


def test_bandwidths_are_those_of_nccl_tests() -> None:
    found = simulate("ring", "allreduce", 4, 10**8, Network(0.0, 1e9))
    assert found.algbw == pytest.approx(2 / 3, rel=1e-3)
    assert found.busbw == pytest.approx(1, rel=1e-3)
    assert simulate("ring", "allreduce", 1, 4).busbw == 0


def test_a_thousand_ranks_and_too_many() -> None:
    n = 1000
    assert seconds("star", "allreduce", n, 64) == pytest.approx((n - 1) * (2 * (A + 64 * B) + 64 * G))
    with pytest.raises(ProgramError, match=r"ring.py:\d+: allreduce on 1000 ranks is too large.* first \d+ statements"):
        simulate("ring", "allreduce", n, 64, limit=10_000)
    with pytest.raises(ProgramError, match="its first 1 statements read and write more than 8388608 places"):
        simulate("direct", "allreduce", 20 * n, 64)  # before it is expanded: 400 million


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"size": 0}, TopologyError),
        ({"root": 4, "collective": "broadcast"}, TopologyError),
        ({"collective": "alltoall"}, TopologyError),
        ({"collective": "alreduce"}, ProgramError),
        ({"topology": "rimg"}, TopologyError),
        ({"nbytes": 0}, ValueError),
        ({"tile": 0}, ValueError),
        ({"tile": 1, "nbytes": 10**9}, ValueError),
    ],
)
def test_wrong_input(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        simulate(**{"topology": "ring", "collective": "allreduce", "size": 4, "nbytes": 100} | wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"latency": -1}, {"latency": math.inf}, {"bandwidth": 0}, {"bandwidth": math.nan}, {"node_latency": -1}]
    + [{"ranks_per_node": 0}, {"node_bandwidth": -1}, {"reduction": 0}],
)
def test_wrong_network(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Network(**wrong)


@examples(60)
@given(programs())
def test_random_programs_move_what_the_compiler_moves(program: Program) -> None:
    """What is read from peers and written to them, chunk by chunk; a rank executes steps sequentially."""
    if program.collective not in ("allreduce", "broadcast", "allgather"):
        return  # if a rank has no output, the compiler leaves a push with the one that pushes
    executions = Executions(program.collective, program.size, program.root, 10**6)
    executions.chunks(program.chunk_count)
    for statement in program.statements:
        executions.record(statement)
    executions.finish()
    messages = messages_of(executions)
    moved = Counter(
        (int(source), int(target), executions.chunk[execution])
        for execution, source, target in zip(messages.execution, messages.source, messages.target, strict=True)
        if source != target
    )
    expected: Counter[tuple[int, int, int]] = Counter()
    for rank, mine in enumerate(compile_program(program, Placement.INPLACE).ranks):
        for step in mine.steps:
            expected.update((source.rank, rank, step.chunk) for source in step.sources if source.rank != rank)
            expected.update((rank, target.rank, step.chunk) for target in step.targets if target.rank != rank)
    assert moved == expected

    done: set[int] = set()
    busy: dict[int, int] = {}
    for execution, kind in zip(messages.execution, messages.kind, strict=True):
        if kind & FIRST:
            assert done.issuperset(executions.before[slice(*executions.before_at[execution : execution + 2])])
            assert executions.rank[execution] not in busy
            busy[executions.rank[execution]] = execution
        assert busy[executions.rank[execution]] == execution
        if kind & LAST:
            done.add(busy.pop(executions.rank[execution]))
    assert len(done) == len(executions)


@pytest.mark.parametrize("gamma", [0.0, 2e-10])
def test_a_fit_finds_the_network_that_the_times_are_from(gamma: float) -> None:
    truth = Network(3e-6, 2e9, math.inf if gamma == 0 else 1 / gamma)
    names, sizes = ("ring", "tree", "direct"), (1000, 100_000, 10**7)
    cases = [(name, "allreduce", n, size) for name in names for n in (2, 4, 8) for size in sizes]
    exact = [Measurement(*case, None, simulate(*case, truth).seconds) for case in cases]
    found = fit(exact)
    assert found.network.latency == pytest.approx(3e-6, rel=1e-3)
    assert found.network.bandwidth == pytest.approx(2e9, rel=1e-3)
    assert 1 / found.network.reduction == pytest.approx(gamma, rel=1e-3, abs=1e-13)
    assert found.largest_error < 1e-3
    noisy = [replace(one, seconds=one.seconds * (0.9, 1.1)[i % 2]) for i, one in enumerate(exact)]
    assert 0.05 < fit(noisy).rms_error < 0.11
    with pytest.raises(ValueError, match="2 measurements"):
        fit(noisy[:2])
