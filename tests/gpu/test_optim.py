"""Optimizers on arrays in GPU memory give the bits of NumPy's, without a copy through the host."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from calls import on_each_rank

import pycollective as pc
from pycollective import graphs, optim
from pycollective.comm.world import Communicator

pytestmark = [pytest.mark.usefixtures("cuda"), pytest.mark.emulated]
SHAPES = {"w": (40, 30), "b": (30,), "none": (0, 2), "scalar": ()}
DTYPES = {"w": "float32", "b": "float64", "none": "float64", "scalar": "float32"}


def numbers(*seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(size=shape), DTYPES[name]) for name, shape in SHAPES.items()}


@pytest.fixture
def library(cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    from gpu import library

    monkeypatch.setitem(sys.modules, "cupy", library)
    return library


def host(array: Any) -> Any:
    return array.host if hasattr(array, "host") else array


def same_on_both(library: ModuleType, n: int, train: Callable[[Communicator, Callable[[Any], Any]], Any]) -> None:
    """Check that all ranks get the same arrays and numbers from NumPy's arrays and from a GPU's."""
    ours = pc.local_world(n).run(lambda comm: train(comm, np.array))
    theirs = pc.local_world(n).run(lambda comm: train(comm, library.asarray))
    for one, other in zip(ours, theirs, strict=True):
        assert other.keys() == one.keys()
        for name, expected in one.items():
            np.testing.assert_array_equal(host(other[name]), expected, strict=True)


MAKERS = {
    "SGD": lambda params, comm: optim.DistributedSGD(params, 0.1, 0.9, 0.01, comm=comm, nesterov=True),
    "LARS": lambda params, comm: optim.DistributedOptimizer(params, optim.lars, comm=comm, lr=0.1, weight_decay=0.01),
    "LARC": lambda params, comm: optim.DistributedOptimizer(params, optim.larc, comm=comm, lr=0.1),
    "LAMB": lambda params, comm: optim.DistributedOptimizer(params, optim.lamb, comm=comm, lr=0.1, weight_decay=0.01),
    "NovoGrad": lambda params, comm: optim.DistributedOptimizer(params, optim.novograd, comm=comm, lr=0.1),
}


@pytest.mark.parametrize("name", MAKERS)
def test_arrays_on_a_gpu_give_the_bits_of_numpy(library: ModuleType, name: str, tmp_path: Path) -> None:
    """Broadcast, steps, a checkpoint in the middle, and more steps from there."""

    def train(comm: Communicator, convert: Any) -> dict[str, Any]:
        path = tmp_path / f"{convert.__name__}.npz"
        params = {name: convert(array) for name, array in numbers(comm.rank).items()}
        optimizer = MAKERS[name](params, comm)
        optimizer.broadcast_parameters()
        for t in range(2):
            optimizer.step({name: convert(array) for name, array in numbers(t, comm.rank).items()})
        optim.save_checkpoint(path, optimizer)
        optimizer.step(optimizer.gradients)
        optim.load_checkpoint(path, optimizer)
        optimizer.zero_grad()
        for parameter, array in numbers(7, comm.rank).items():
            optimizer.gradients[parameter][...] = convert(array)
        optimizer.step()
        return params

    same_on_both(library, 3, train)


@pytest.mark.parametrize("order", ["combine_then_adapt", "adapt_then_combine"])
def test_gossip_on_a_gpu_gives_the_bits_of_numpy(library: ModuleType, order: str) -> None:
    def train(comm: Communicator, convert: Any) -> dict[str, Any]:
        params = {name: convert(array) for name, array in numbers(comm.rank).items()}
        sgd = optim.GossipSGD(params, graphs.one_peer, 0.1, 0.9, 0.01, comm=comm, order=order, average_every=3)
        for t in range(4):
            sgd.step({name: convert(array) for name, array in numbers(t, comm.rank).items()})
        distance = optim.consensus_distance(comm, params)
        assert distance > 0
        return {**params, "distance": distance}

    same_on_both(library, 3, train)


def test_noise_and_its_estimate(library: ModuleType) -> None:
    def work(comm: Communicator, convert: Any) -> dict[str, Any]:
        losses = optim.GradientNoise(64, 16, comm=comm).rows(convert(np.arange(4, dtype=np.float32)), step=2)
        local = [convert(np.arange(4.0) + comm.rank)]
        scale = optim.NoiseScale(rows=8, comm=comm).update(local, [comm.allreduce(local[0], op="avg")])
        return {"losses": losses, "scale": scale}

    same_on_both(library, 2, work)


@on_each_rank(2)
def test_gradients_are_parts_of_one_buffer_on_the_gpu(comm: Communicator, library: ModuleType) -> None:
    params = {"w": library.asarray(np.zeros((8, 8))), "b": library.asarray(np.zeros(8))}
    sgd = optim.DistributedSGD(params, 1.0, comm=comm)
    (flat,) = sgd._fused.buffers
    sgd.gradients["b"][...] = 3.0
    sgd.gradients["w"][...] = 2.0
    assert flat.host.tolist() == [2.0] * 64 + [3.0] * 8


@on_each_rank(2)
def test_parameters_on_both_sides_are_averaged_each_in_its_memory(comm: Communicator, library: ModuleType) -> None:
    params = {"gpu": library.asarray(np.zeros(5)), "cpu": np.zeros(5)}
    sgd = optim.DistributedSGD(params, 1.0, comm=comm)
    mean = np.full(5, comm.rank + 1.0)
    sgd.step({"gpu": library.asarray(mean), "cpu": mean})
    assert params["gpu"].host.tolist() == params["cpu"].tolist() == [-1.5] * 5
    with pytest.raises(TypeError, match="'gpu' is in CPU memory, its parameter on a GPU"):
        sgd.step({"gpu": mean, "cpu": mean})


@on_each_rank(2)
def test_a_rank_whose_parameters_are_elsewhere_is_reported(comm: Communicator, library: ModuleType) -> None:
    zeros = np.zeros(5)
    with pytest.raises(pc.MismatchError, match=r"parameters differ: rank 0 has .*float64, rank 1 has .* on a GPU"):
        optim.DistributedSGD([library.asarray(zeros) if comm.rank else zeros], 1.0, comm=comm)


@on_each_rank(1)
def test_integers_on_a_gpu_are_refused(comm: Communicator, library: ModuleType) -> None:
    with pytest.raises(TypeError, match="has dtype int32; only floating-point parameters"):
        optim.DistributedSGD([library.asarray(np.zeros(5, np.int32))], 1.0, comm=comm)
