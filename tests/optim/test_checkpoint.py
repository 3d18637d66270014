"""Checkpoints: written by rank 0 atomically, restored on every rank."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import pycollective as pc
from pycollective.optim import DistributedSGD, load_checkpoint, save_checkpoint


def optimizer(comm, value=0.0, **options):
    params = {"w": np.full((2, 3), value), "b": np.full(3, value, np.float32)}
    return DistributedSGD(params, 0.1, momentum=0.9, comm=comm, **options)


def step(sgd, value=1.0):
    sgd.step({name: np.full_like(p, value) for name, p in sgd.params.items()})


def bits(sgd):
    state = sgd.state_dict()
    velocity = state.pop("velocity") or {}
    return state, [(name, a.dtype.name, a.tobytes()) for arrays in (sgd.params, velocity) for name, a in arrays.items()]


def test_everything_is_restored_on_every_rank(tmp_path):
    def train(comm):
        # Only rank 0's path counts: the others' could not be used.
        path = tmp_path / "state.npz" if comm.rank == 0 else tmp_path / "missing" / "state.npz"
        sgd = optimizer(comm, weight_decay=0.01, nesterov=True)
        step(sgd, 1.0 + comm.rank)
        save_checkpoint(path, sgd, epoch=3, note={"learned": [1, 2.5]})
        assert (tmp_path / "state.npz").exists()
        fresh = optimizer(comm, value=comm.rank + 5.0)
        extra = load_checkpoint(path, fresh)
        step(sgd)
        step(fresh)
        return extra, bits(sgd), bits(fresh)

    ranks = pc.local_world(3).run(train)
    for extra, old, new in ranks:
        assert extra == {"epoch": 3, "note": {"learned": [1, 2.5]}}
        assert new == old == ranks[0][1]
    assert os.listdir(tmp_path) == ["state.npz"]


def test_a_checkpoint_from_before_the_first_step_has_no_velocity(tmp_path):
    def train(comm):
        sgd = optimizer(comm)
        save_checkpoint(tmp_path / "c", sgd)
        step(sgd)
        load_checkpoint(tmp_path / "c", sgd)
        return sgd.state_dict()["velocity"], float(sgd.params["w"].max())

    assert pc.local_world(2).run(train) == [(None, 0.0)] * 2
    assert os.listdir(tmp_path) == ["c"]  # taken literally


def test_lists_and_small_floats(tmp_path):
    kinds = ["float16", "bfloat16", "float8_e5m2"]

    def make(comm, value):
        params = [np.full(4, value).astype(getattr(ml_dtypes, kind, kind)) for kind in kinds]
        return DistributedSGD(params, 0.1, momentum=0.5, comm=comm)

    def train(comm):
        sgd = make(comm, 1.5)
        sgd.step([p * 0 + p for p in sgd.params])
        save_checkpoint(tmp_path / "c", sgd)
        fresh = make(comm, 0.0)
        load_checkpoint(tmp_path / "c", fresh)
        old = sgd.params + sgd.state_dict()["velocity"]
        new = fresh.params + fresh.state_dict()["velocity"]
        assert all((a == b).all() for a, b in zip(old, new, strict=True))
        return [array.dtype.name for array in new if array.any()]

    assert pc.local_world(2).run(train) == [kinds * 2] * 2


def failing(path, comm, work):
    """What every rank raises if the file of a valid checkpoint was tampered with; checks that nothing changed."""
    sgd = optimizer(comm, value=2.0)
    step(sgd)
    before = bits(sgd)
    with pytest.raises(Exception) as caught:
        work(path, sgd)
    assert bits(sgd) == before
    step(sgd)  # and that the communicator still works
    return type(caught.value), str(caught.value)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "state.npz"

    def save(comm):
        sgd = optimizer(comm)
        step(sgd)
        save_checkpoint(path, sgd)

    pc.local_world(1).run(save)
    return path


def flip(path):
    content = bytearray(path.read_bytes())
    where = content.index(b"NUMPY", content.index(b"parameters/w")) + 150  # within the array's numbers
    content[where] ^= 1
    path.write_bytes(content)


def rename_array(old, new):
    def tamper(path):
        with np.load(path) as file:
            content = {name.replace(old, new): file[name] for name in file.files}
        with open(path, "wb") as file:
            np.savez(file, **content)

    return tamper


def reshape_velocity(path):
    with np.load(path) as file:
        content = {name: file[name][:1] if name == "velocity/w" else file[name] for name in file.files}
    with open(path, "wb") as file:
        np.savez(file, **content)


@pytest.mark.parametrize(
    ("tamper", "error", "message"),
    [
        (Path.unlink, FileNotFoundError, "state.npz"),
        (lambda path: path.write_bytes(b""), ValueError, "damaged"),
        (lambda path: path.write_bytes(b"something else"), ValueError, "damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), ValueError, "damaged"),
        (flip, ValueError, "damaged"),
        (rename_array("about", "other"), ValueError, "damaged"),
        (rename_array("parameters/w", "parameters/v"), ValueError, "no parameters/w"),
        (rename_array("velocity/b", "velocity/c"), ValueError, "no velocity/b"),
        (reshape_velocity, ValueError, "shape"),
    ],
)
def test_a_file_that_cannot_be_used_raises_on_every_rank_and_changes_nothing(saved, tamper, error, message):
    tamper(saved)
    for kind, text in pc.local_world(3).run(lambda comm: failing(saved, comm, load_checkpoint)):
        assert issubclass(kind, error) and message in text, text


OTHERS = {
    "more": ({"w": np.ones((2, 3)), "b": np.ones(3, "f4"), "c": np.ones(1)}, ValueError, "parameters/c"),
    "dtype": ({"w": np.ones((2, 3)), "b": np.ones(3)}, TypeError, "'b' has dtype float64"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_models_file_is_refused(name, tmp_path):
    params, error, message = OTHERS[name]
    path = tmp_path / "state.npz"
    pc.local_world(1).run(lambda comm: save_checkpoint(path, DistributedSGD(params, 0.1, comm=comm)))
    for kind, text in pc.local_world(2).run(lambda comm: failing(path, comm, load_checkpoint)):
        assert kind is error and message in text


def test_a_failed_save_raises_on_every_rank_and_leaves_the_old_file(saved, monkeypatch):
    old = saved.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for kind, text in pc.local_world(3).run(lambda comm: failing(saved, comm, save_checkpoint)):
        assert kind is OSError and "No space left" in text
    assert saved.read_bytes() == old and os.listdir(saved.parent) == [saved.name]


def test_what_json_cannot_represent_is_rejected_on_every_rank(saved):
    def work(path, sgd):
        save_checkpoint(path, sgd, extra={1, 2})

    for kind, text in pc.local_world(2).run(lambda comm: failing(saved, comm, work)):
        assert kind is TypeError and "set" in text


def test_a_device_is_not_replaced(tmp_path):
    """As root, a checkpoint named /dev/null once replaced the device."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PermissionError, match="not a regular file"):
        pc.local_world(1).run(lambda comm: save_checkpoint(tmp_path / "pipe", optimizer(comm)))
    assert (tmp_path / "pipe").is_fifo()
