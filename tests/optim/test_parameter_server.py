"""ParameterServer: every gradient counts once, pulls are not torn, workers stay within the bound, errors name ranks."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from calls import on_each_rank
from processes import Job, all_say

import pycollective as pc
from pycollective.optim import ParameterServer


def take_steps(server, count):
    for _ in range(count):
        server.pull()
        server.push([np.ones(3)])


@on_each_rank(4)
def test_every_gradient_is_applied_once_and_all_end_with_the_same_weights(comm):
    params = {"w": np.full(5, 7.0 + comm.rank), "b": np.zeros((2, 3), np.float32), "none": np.zeros(0)}
    server = ParameterServer(params, 0.5, comm=comm, server=1)
    assert params["w"][0] == 8  # the server's
    for i in range(3 + comm.rank):  # different numbers of steps
        server.pull()
        server.push({"w": np.full(5, float(i)), "b": np.ones((2, 3), np.float32), "none": np.zeros(0)})
    server.finish()
    pushes = 3 + 4 + 5 + 6
    assert server.version == sum(server.staleness_counts.values()) == pushes
    total = sum(sum(range(3 + rank)) for rank in range(4))
    np.testing.assert_array_equal(params["w"], np.full(5, 8 - 0.5 * total))
    np.testing.assert_array_equal(params["b"], np.full((2, 3), -0.5 * pushes, np.float32))
    assert comm.allgather_object(server.staleness_counts) == [server.staleness_counts] * 4


@on_each_rank(1)
def test_a_single_worker_is_sgd_with_momentum(comm):
    rng = np.random.default_rng(0)
    params, x, v = [np.ones(4)], np.ones(4), np.zeros(4)
    server = ParameterServer(params, 0.1, 0.9, 0, comm)
    for _ in range(5):
        g = rng.normal(size=4)
        v = 0.9 * v + g
        x = x - 0.1 * v
        server.pull()
        server.push([g])
        server.pull()
        np.testing.assert_allclose(params[0], x, rtol=1e-14)
    server.finish()
    assert server.staleness_counts == {0: 5}


@on_each_rank(4)
def test_a_pull_is_one_version_of_all_arrays(comm):
    """Every push subtracts 1 from all elements: at any time all of a version are the same number."""
    params = [np.zeros(50_000), np.zeros((300, 100), np.float32)]
    ones = [np.ones_like(p) for p in params]
    server = ParameterServer(params, 1.0, comm=comm)
    versions = []
    for _ in range(30):
        versions.append(server.pull())
        assert all((p == -versions[-1]).all() for p in params)
        server.push(ones)
    server.finish()
    assert versions == sorted(versions)


def test_a_worker_waits_when_it_is_too_far_ahead_of_the_slowest():
    blocked, released = threading.Event(), threading.Event()

    def body(comm):
        server = ParameterServer([np.zeros(3)], 1.0, staleness=2, comm=comm, timeout=60)
        if comm.rank == 0:  # fast: may be 2 steps ahead, so that its pull for step 3 waits
            take_steps(server, 3)
            blocked.set()
            server.pull()
            released.set()
        else:
            assert blocked.wait(60)
            assert not released.wait(0.2)
            server.pull()
            assert not released.is_set()
            server.push([np.ones(3)])
            assert released.wait(60)
        server.finish()
        return server.staleness_counts

    assert pc.local_world(2).run(body) == [{0: 4}, {0: 4}]


def test_without_a_bound_nobody_waits():
    done = threading.Event()

    def body(comm):
        server = ParameterServer([np.zeros(3)], 1.0, comm=comm)
        if comm.rank == 1:
            take_steps(server, 20)
            done.set()
        server.pull()
        assert done.wait(60)
        server.push([np.ones(3)])
        server.finish()
        return server.staleness_counts

    counts = pc.local_world(2).run(body)[0]
    assert sum(counts.values()) == 22
    assert max(counts) >= 1


@on_each_rank(3)
def test_a_rank_that_only_serves_holds_nobody_back(comm):
    params = [np.zeros(3)]
    server = ParameterServer(params, 1.0, staleness=0, comm=comm, timeout=20)
    if comm.rank:
        take_steps(server, 5)
    server.finish()
    assert params[0][0] == -10


def test_a_late_worker_is_named_on_the_others():
    over = threading.Event()

    def body(comm):
        server = ParameterServer([np.zeros(3)], 1.0, staleness=0, comm=comm, timeout=0.5)
        if comm.rank == 2:
            assert over.wait(60)
            return
        with pytest.raises(pc.TimeoutError, match="rank 2"):
            take_steps(server, 3)
        if comm.rank == 0:
            over.set()

    pc.local_world(3).run(body)


def train(comm: pc.Communicator, link: Connection) -> None:
    server = ParameterServer([np.zeros(100)], 1.0, staleness=4, comm=comm)
    for step in range(10**9):
        server.pull()
        server.push([np.ones(100)])
        if step == 3:
            link.send("busy")


@pytest.mark.parametrize("victim", [0, 2])
def test_the_loss_of_a_worker_or_of_the_server_ends_all(victim: int) -> None:
    with Job(4, train) as job:
        all_say(job, "busy")
        job.kill(victim)
        outcomes: Any = job.outcomes()
    for rank, outcome in outcomes.items():
        if rank != victim:
            assert isinstance(outcome.error, pc.PeerLostError), outcome.trace
            assert outcome.error.rank == victim
            assert f"rank {victim}" in str(outcome.error)


@pytest.mark.parametrize(
    "arguments, error, reason",
    [
        ({"lr": -1.0}, ValueError, "lr must be"),
        ({"momentum": "much"}, TypeError, "momentum must be"),
        ({"staleness": -1}, ValueError, "staleness must be an integer of at least 0"),
        ({"server": 2}, ValueError, "server must be an integer from 0 to 1, not 2"),
        ({"timeout": 0}, ValueError, "timeout must be"),
        ({"params": [1.0]}, TypeError, "'0' must be an array, not 1.0"),
    ],
)
@on_each_rank(2)
def test_wrong_arguments_are_named_before_anything_is_sent(comm, arguments, error, reason):
    with pytest.raises(error, match=reason):
        ParameterServer(**{"params": [np.zeros(3)], "comm": comm, "lr": 0.1, **arguments})
    assert comm.allreduce(np.ones(1)) == 2


@on_each_rank(2)
def test_wrong_gradients_are_refused_and_training_continues(comm):
    params = [np.zeros(3)]
    server = ParameterServer(params, 1.0, comm=comm)
    server.pull()
    with pytest.raises(ValueError, match="shape"):
        server.push([np.ones(4)])
    with pytest.raises(TypeError, match="dtype"):
        server.push([np.ones(3, np.float32)])
    server.push([np.ones(3)])
    server.finish()
    for attempt in (server.pull, lambda: server.push([np.ones(3)])):
        with pytest.raises(ValueError, match="has finished"):
            attempt()
    assert params[0][0] == -2
