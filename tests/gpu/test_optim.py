"""Optimizers on arrays in GPU memory give the bits of NumPy's, without a copy through the host."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import pycollective as pc
from pycollective import graphs
from pycollective.comm.world import Communicator
from pycollective.optim import (
    DistributedOptimizer,
    DistributedSGD,
    GossipSGD,
    GradientNoise,
    NoiseScale,
    consensus_distance,
    lamb,
    larc,
    lars,
    load_checkpoint,
    novograd,
    save_checkpoint,
)

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
    return (array if isinstance(array, np.ndarray) else array.host).copy()


def train(comm: Communicator, convert: Any, make: Any, path: Path) -> dict[str, Any]:
    """Broadcast, steps, a checkpoint in the middle, and more steps from there."""
    params = {name: convert(array) for name, array in numbers(comm.rank).items()}
    optimizer = make(params, comm)
    optimizer.broadcast_parameters()
    for t in range(2):
        optimizer.step({name: convert(array) for name, array in numbers(t, comm.rank).items()})
    save_checkpoint(path, optimizer)
    optimizer.step(optimizer.gradients)
    load_checkpoint(path, optimizer)
    optimizer.zero_grad()
    for name, array in numbers(7, comm.rank).items():
        optimizer.gradients[name][...] = convert(array)
    optimizer.step()
    return {name: host(p) for name, p in params.items()}


MAKERS = {
    "SGD": lambda params, comm: DistributedSGD(params, 0.1, 0.9, 0.01, comm=comm, nesterov=True),
    "LARS": lambda params, comm: DistributedOptimizer(params, lars, comm=comm, lr=0.1, weight_decay=0.01),
    "LARC": lambda params, comm: DistributedOptimizer(params, larc, comm=comm, lr=0.1),
    "LAMB": lambda params, comm: DistributedOptimizer(params, lamb, comm=comm, lr=0.1, weight_decay=0.01),
    "NovoGrad": lambda params, comm: DistributedOptimizer(params, novograd, comm=comm, lr=0.1),
}


@pytest.mark.parametrize("name", MAKERS)
def test_arrays_on_a_gpu_give_the_bits_of_numpy(library: ModuleType, name: str, tmp_path: Path) -> None:
    make = MAKERS[name]
    ours = pc.local_world(3).run(lambda comm: train(comm, np.array, make, tmp_path / "host.npz"))
    theirs = pc.local_world(3).run(lambda comm: train(comm, library.asarray, make, tmp_path / "gpu.npz"))
    for one, other in zip(ours, theirs, strict=True):
        for parameter in SHAPES:
            np.testing.assert_array_equal(other[parameter], one[parameter], strict=True)


@pytest.mark.parametrize("order", ["combine_then_adapt", "adapt_then_combine"])
def test_gossip_on_a_gpu_gives_the_bits_of_numpy(library: ModuleType, order: str) -> None:
    def train(comm: Communicator, convert: Any) -> tuple[dict[str, Any], float]:
        params = {name: convert(array) for name, array in numbers(comm.rank).items()}
        sgd = GossipSGD(params, graphs.one_peer, 0.1, 0.9, 0.01, comm=comm, order=order, average_every=3)
        for t in range(4):
            sgd.step({name: convert(array) for name, array in numbers(t, comm.rank).items()})
        return {name: host(p) for name, p in params.items()}, consensus_distance(comm, params)

    ours = pc.local_world(3).run(lambda comm: train(comm, np.array))
    theirs = pc.local_world(3).run(lambda comm: train(comm, library.asarray))
    for (one, distance), (other, found) in zip(ours, theirs, strict=True):
        assert found == distance > 0
        for parameter in SHAPES:
            np.testing.assert_array_equal(other[parameter], one[parameter], strict=True)


def test_gradients_are_parts_of_one_buffer_on_the_gpu(library: ModuleType) -> None:
    def look(comm: Communicator) -> None:
        sgd = DistributedSGD({"w": library.asarray(np.zeros((8, 8))), "b": library.asarray(np.zeros(8))}, 1, comm=comm)
        (flat,) = sgd._fused.buffers
        sgd.gradients["b"][...] = 3.0
        sgd.gradients["w"][...] = 2.0
        assert flat.host.tolist() == [2.0] * 64 + [3.0] * 8

    pc.local_world(2).run(look)


def test_parameters_on_both_sides_are_averaged_each_in_its_memory(library: ModuleType) -> None:
    def work(comm: Communicator) -> None:
        params = {"gpu": library.asarray(np.zeros(5)), "cpu": np.zeros(5)}
        sgd = DistributedSGD(params, 1.0, comm=comm)
        mean = np.full(5, comm.rank + 1.0)
        sgd.step({"gpu": library.asarray(mean), "cpu": mean})
        assert params["gpu"].host.tolist() == params["cpu"].tolist() == [-1.5] * 5
        with pytest.raises(TypeError, match="'gpu' is in CPU memory, its parameter on a GPU"):
            sgd.step({"gpu": mean, "cpu": mean})

    pc.local_world(2).run(work)


def test_a_rank_whose_parameters_are_elsewhere_is_reported(library: ModuleType) -> None:
    def work(comm: Communicator) -> None:
        zeros = np.zeros(5)
        with pytest.raises(pc.MismatchError, match=r"parameters differ: rank 0 has .*float64, rank 1 has .* on a GPU"):
            DistributedSGD([library.asarray(zeros) if comm.rank else zeros], 1.0, comm=comm)

    pc.local_world(2).run(work)


def test_integers_on_a_gpu_are_refused(library: ModuleType) -> None:
    def work(comm: Communicator) -> None:
        with pytest.raises(TypeError, match="has dtype int32; only floating-point parameters"):
            DistributedSGD([library.asarray(np.zeros(5, np.int32))], 1.0, comm=comm)

    pc.local_world(1).run(work)


def test_noise_and_its_estimate(library: ModuleType) -> None:
    def work(comm: Communicator, convert: Any) -> tuple[Any, float]:
        losses = GradientNoise(64, 16, comm=comm).rows(convert(np.arange(4, dtype=np.float32)), step=2)
        scale = NoiseScale(rows=8, comm=comm)
        local = [convert(np.arange(4.0) + comm.rank)]
        return host(losses), scale.update(local, [comm.allreduce(local[0], op="avg")])

    ours = pc.local_world(2).run(lambda comm: work(comm, np.array))
    theirs = pc.local_world(2).run(lambda comm: work(comm, library.asarray))
    for (losses, scale), (other, found) in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(other, losses, strict=True)
        assert found == scale
