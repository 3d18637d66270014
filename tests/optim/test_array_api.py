"""The optimizer on arrays of other libraries gives NumPy's bits; `array_api_strict` has only the standard."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from calls import on_each_rank

import pycollective as pc
from pycollective.optim import DistributedSGD, load_checkpoint, save_checkpoint
from pycollective.optim.arrays import namespace

SHAPES = {"w": (40, 30), "b": (30,), "none": (0, 2), "scalar": ()}
DTYPES = {"w": "float32", "b": "float64", "none": "float64", "scalar": "float32"}


def numbers(*seed):
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(size=shape), DTYPES[name]) for name, shape in SHAPES.items()}


def train(comm, convert, path):
    """Broadcast, steps, a checkpoint in the middle, and more steps from there; ends with NumPy arrays."""
    params = {name: convert(array) for name, array in numbers(comm.rank).items()}
    sgd = DistributedSGD(params, 0.1, 0.9, 0.01, comm=comm, nesterov=True)
    sgd.broadcast_parameters()
    for t in range(2):
        sgd.step({name: convert(array) for name, array in numbers(t, comm.rank).items()})
    save_checkpoint(path, sgd)
    sgd.step(sgd.gradients)
    load_checkpoint(path, sgd)
    sgd.zero_grad()
    for name, array in numbers(7, comm.rank).items():
        sgd.gradients[name][...] = convert(array)
    sgd.step()
    return {name: np.from_dlpack(p).copy() for name, p in params.items()}


@pytest.mark.parametrize("library", ["array_api_strict", pytest.param("torch", marks=pytest.mark.torch)])
def test_other_libraries_give_the_bits_of_numpy(library, tmp_path):
    xp = pytest.importorskip(library)
    ranks = pc.local_world(3).run(lambda comm: train(comm, np.array, tmp_path / "numpy"))
    theirs = pc.local_world(3).run(lambda comm: train(comm, lambda a: xp.asarray(a.copy()), tmp_path / "other"))
    for ours, other in zip(ranks, theirs, strict=True):
        for name in SHAPES:
            np.testing.assert_array_equal(other[name], ours[name], strict=True)


@on_each_rank(2)
def test_their_gradients_are_in_the_window(comm):
    xp = pytest.importorskip("array_api_strict")
    sgd = DistributedSGD({"w": xp.zeros((8, 8)), "b": xp.zeros(8)}, 0.1, comm=comm)
    (flat,) = sgd._fused.buffers
    sgd.gradients["b"][...] = xp.asarray(3.0)
    sgd.gradients["w"][...] = xp.asarray(2.0)
    assert np.from_dlpack(flat).tolist() == [2.0] * 64 + [3.0] * 8


def check_brain_floats(comm, convert):
    params = [convert(np.arange(8.0) + comm.rank)]
    sgd = DistributedSGD(params, 0.5, 0.5, comm=comm)
    sgd.broadcast_parameters()
    for _ in range(2):
        sgd.step([convert(np.full(8, comm.rank + 1.0))])
    assert [float(element) for element in params[0]] == [i - 0.75 - 0.5 * (0.75 + 1.5) for i in range(8)]


@on_each_rank(2)
def test_bfloat16(comm):
    check_brain_floats(comm, lambda a: a.astype(ml_dtypes.bfloat16))


@pytest.mark.torch
@on_each_rank(2)
def test_bfloat16_of_torch(comm):
    """NumPy cannot export a bfloat16 window, so the fused buffer is torch's own and staged."""
    torch = pytest.importorskip("torch")
    check_brain_floats(comm, lambda a: torch.asarray(a).bfloat16())


class Immutable:
    """Like arrays of functional libraries: items cannot be set."""

    __module__ = "numpy.made_up"
    dtype, shape = np.dtype(np.float64), (3,)


@on_each_rank(1)
def test_arrays_that_cannot_be_written_are_refused(comm):
    with pytest.raises(TypeError, match="'0' cannot be written"):
        DistributedSGD([Immutable()], 0.1, comm=comm)


def test_a_namespace_is_the_arrays_own_or_that_of_its_package():
    xp = pytest.importorskip("array_api_strict")
    assert namespace(xp.zeros(3)) is xp
    assert namespace(np.zeros(3)) is np
    assert namespace(Immutable()) is np  # as for NumPy 1, which does not report it
    for other in (1.0, [1.0], "text", memoryview(b"")):
        with pytest.raises(TypeError, match="is not an array"):
            namespace(other)


@pytest.mark.torch
@on_each_rank(2)
def test_bfloat16_of_torch_cannot_be_checkpointed(comm, tmp_path):
    torch = pytest.importorskip("torch")
    sgd = DistributedSGD([torch.zeros(2, dtype=torch.bfloat16)], lr=1.0, comm=comm)
    save_checkpoint(tmp_path / "numpy.npz", DistributedSGD([np.zeros(2, ml_dtypes.bfloat16)], lr=1.0, comm=comm))
    with pytest.raises(TypeError, match="'parameters/0' is bfloat16, which torch cannot take from NumPy"):
        load_checkpoint(tmp_path / "numpy.npz", sgd)
    with pytest.raises(TypeError, match=r"'0': a .npz file cannot hold torch.bfloat16"):
        save_checkpoint(tmp_path / "brain.npz", sgd)
