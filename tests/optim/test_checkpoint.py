"""Checkpoints: written by rank 0 atomically, restored on every rank."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from calls import on_each_rank

import pycollective as pc
from pycollective.optim import DistributedSGD, broadcast_object, load_checkpoint, save_checkpoint


def optimizer(comm, value=0.0, **options):
    params = {"w": np.full((2, 3), value), "b": np.full(3, value, np.float32)}
    return DistributedSGD(params, 0.1, momentum=0.9, comm=comm, **options)


def step(sgd, value=1.0):
    sgd.step({name: np.full_like(p, value) for name, p in sgd.params.items()})


def bits(sgd):
    state = sgd.state_dict()
    velocity = state.pop("velocity") or {}
    return state, [(name, a.dtype.name, a.tobytes()) for arrays in (sgd.params, velocity) for name, a in arrays.items()]


@on_each_rank(3)
def test_everything_is_restored_on_every_rank(comm, tmp_path):
    # Only rank 0's path counts: the others' could not be used.
    path = tmp_path / "state.npz" if comm.rank == 0 else tmp_path / "missing" / "state.npz"
    sgd = optimizer(comm, weight_decay=0.01, nesterov=True)
    step(sgd, 1.0 + comm.rank)
    save_checkpoint(path, sgd, epoch=3, note={"learned": [1, 2.5]})
    assert os.listdir(tmp_path) == ["state.npz"]
    fresh = optimizer(comm, value=comm.rank + 5.0)
    assert load_checkpoint(path, fresh) == {"epoch": 3, "note": {"learned": [1, 2.5]}}
    step(sgd)
    step(fresh)
    assert bits(fresh) == bits(sgd) == broadcast_object(bits(sgd), 0, comm)


@on_each_rank(2)
def test_a_checkpoint_from_before_the_first_step_has_no_velocity(comm, tmp_path):
    sgd = optimizer(comm)
    save_checkpoint(tmp_path / "c", sgd)
    step(sgd)
    load_checkpoint(tmp_path / "c", sgd)
    assert sgd.state_dict()["velocity"] is None and not sgd.params["w"].any()
    assert os.listdir(tmp_path) == ["c"]  # taken literally


@on_each_rank(2)
def test_lists_and_small_floats(comm, tmp_path):
    kinds = ["float16", "bfloat16", "float8_e5m2"]

    def make(value):
        params = [np.full(4, value).astype(getattr(ml_dtypes, kind, kind)) for kind in kinds]
        return DistributedSGD(params, 0.1, momentum=0.5, comm=comm)

    sgd, fresh = make(1.5), make(0.0)
    sgd.step([p * 0 + p for p in sgd.params])
    save_checkpoint(tmp_path / "c", sgd)
    load_checkpoint(tmp_path / "c", fresh)
    old = sgd.params + sgd.state_dict()["velocity"]
    new = fresh.params + fresh.state_dict()["velocity"]
    assert all((a == b).all() for a, b in zip(old, new, strict=True))
    assert [array.dtype.name for array in new if array.any()] == kinds * 2


def fails(path, work, error, message):
    """Every rank raises the same, and nothing changes."""

    def body(comm):
        sgd = optimizer(comm, value=2.0)
        step(sgd)
        before = bits(sgd)
        with pytest.raises(error, match=message):
            work(path, sgd)
        assert bits(sgd) == before
        step(sgd)  # the communicator still works

    pc.local_world(3).run(body)


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


def change(name, change_name=str, change_array=np.array):
    """Another name, or content, of one of the file's arrays."""

    def tamper(path):
        with np.load(path) as file:
            content = dict(file)
        content[change_name(name)] = change_array(content.pop(name))
        with open(path, "wb") as file:
            np.savez(file, **content)

    return tamper


def of_another_model(params):
    one = pc.local_world(1)
    return lambda path: one.run(lambda comm: save_checkpoint(path, DistributedSGD(params, 0.1, comm=comm)))


@pytest.mark.parametrize(
    ("tamper", "error", "message"),
    [
        (Path.unlink, FileNotFoundError, "state.npz"),
        (lambda path: path.write_bytes(b""), ValueError, "damaged"),
        (lambda path: path.write_bytes(b"something else"), ValueError, "damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), ValueError, "damaged"),
        (flip, ValueError, "damaged"),
        (change("about", str.upper), ValueError, "damaged"),
        (change("parameters/w", str.upper), ValueError, "no parameters/w"),
        (change("velocity/b", str.upper), ValueError, "no velocity/b"),
        (change("velocity/w", change_array=lambda array: array[:1]), ValueError, "shape"),
        (of_another_model({"w": np.ones((2, 3)), "b": np.ones(3, "f4"), "c": np.ones(1)}), ValueError, "parameters/c"),
        (of_another_model({"w": np.ones((2, 3)), "b": np.ones(3)}), TypeError, "'b' has dtype float64"),
    ],
)
def test_a_file_that_cannot_be_used_raises_on_every_rank_and_changes_nothing(saved, tamper, error, message):
    tamper(saved)
    fails(saved, load_checkpoint, error, message)


def test_a_failed_save_raises_on_every_rank_and_leaves_the_old_file(saved, monkeypatch):
    old = saved.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    fails(saved, save_checkpoint, OSError, "No space left")
    assert saved.read_bytes() == old and os.listdir(saved.parent) == [saved.name]


def test_what_json_cannot_represent_is_rejected_on_every_rank(saved):
    fails(saved, lambda path, sgd: save_checkpoint(path, sgd, extra={1, 2}), TypeError, "set")


def test_a_device_is_not_replaced(tmp_path):
    """As root, a checkpoint named /dev/null once replaced the device."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PermissionError, match="not a regular file"):
        pc.local_world(1).run(lambda comm: save_checkpoint(tmp_path / "pipe", optimizer(comm)))
    assert (tmp_path / "pipe").is_fifo()
