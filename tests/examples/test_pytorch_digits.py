"""The Horovod-style example as a reader would run it: it learns, and ranks, launchers and plain torch agree."""

from __future__ import annotations

import argparse
import functools
import hashlib
import pickle
from typing import Any

import c10d
import hvd
import pytest

from labs import EXAMPLES, example, trained
from launch import find_mpirun, launch, needs

torch: Any = pytest.importorskip("torch")
needs("sklearn")
pytestmark = pytest.mark.torch


@functools.cache
def digits(n: int, launcher: str, *args: str) -> tuple[float, str]:
    """(accuracy, digest) of a run."""
    options = {"env": {"OMP_NUM_THREADS": "1"}, "timeout": 120, "loaded": ["torch", "sklearn.datasets"]}
    return trained(launch(n, EXAMPLES / "pytorch_digits.py", *args, launcher=launcher, **options))


@pytest.mark.mpi
@pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")
def test_the_launcher_does_not_change_bits() -> None:
    weights = hvd.run(2, _weights, rows("float32"), "float32")[0]
    assert digits(2, "mpirun", "--epochs", "2")[1] == hashlib.sha256(weights).hexdigest()[:16]


def test_it_learns_alone() -> None:
    assert digits(1, "alone")[0] >= 0.96


@pytest.mark.parametrize(("n", "compression"), [(4, "fp16"), (3, "bf16")])
def test_it_learns_on_more_ranks_and_from_gradients_of_16_bits(n: int, compression: str) -> None:
    ends = hvd.run(n, _accuracy, rows("float32"), compression)
    assert ends[0][0] >= 0.96
    assert all(end == ends[0] for end in ends)


def _accuracy(hvd: Any, sets: bytes, compression: str) -> tuple[float, bytes]:
    digits = example("pytorch_digits")
    training, held_out = pickle.loads(sets)
    model = digits.train(training, arguments("float32", epochs=12, compression=compression))
    return digits.accuracy(model, held_out), weights_of(model)


def test_fusion_does_not_change_bits() -> None:
    """Each gradient alone, some fused, and cycles long enough for a complete step."""
    settings: list[dict[str, str]] = [{}, {"HOROVOD_CYCLE_TIME": "5"}]
    settings += [{"HOROVOD_FUSION_THRESHOLD": threshold} for threshold in ("0", "6000")]
    ends = [weights for env in settings for weights in hvd.run(3, _weights, rows("float32"), "float32", 1, env=env)]
    assert all(end == ends[0] for end in ends)


def test_in_float64_all_numbers_of_ranks_and_torch_alone_and_ddp_end_with_the_same_weights() -> None:
    expected = _alone()
    for n in (1, 2, 3, 4):
        results = hvd.run(n, _weights, rows("float64"), "float64")
        assert all(weights == results[0] for weights in results)
        assert_close(results[0], expected)
    assert_close(c10d.run(2, _ddp, rows("float64"), gloo=False)[0], expected)


def assert_close(weights: bytes, expected: Any) -> None:
    found = torch.frombuffer(bytearray(weights), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def _weights(hvd: Any, sets: bytes, dtype: str, epochs: int = 2) -> bytes:
    return weights_of(example("pytorch_digits").train(pickle.loads(sets)[0], arguments(dtype, epochs)))


def _ddp(world: Any, sets: bytes) -> bytes:
    return weights_of(example("pytorch_ddp").train(pickle.loads(sets)[0], arguments("float64")))


def _alone() -> Any:
    """The result of one process on full batches, without pycollective."""
    from torch.utils.data import DistributedSampler

    args = arguments("float64")
    x, y = pickle.loads(rows("float64"))[0].tensors
    torch.manual_seed(args.seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).double()
    sgd = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    sampler = DistributedSampler(x, 1, 0, seed=args.seed)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for chosen in torch.tensor(list(sampler)).split(args.batch):
            if len(chosen) == args.batch:
                sgd.zero_grad()
                torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen], label_smoothing=0.1).backward()
                sgd.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@functools.cache
def rows(dtype: str) -> bytes:
    """The training set and the held-out set, pickled: every rank would load scikit-learn, which takes long."""
    return pickle.dumps(example("pytorch_digits").read_digits(getattr(torch, dtype)))


def arguments(dtype: str, epochs: int = 2, compression: str = "none") -> argparse.Namespace:
    given = {"epochs": epochs, "dtype": dtype, "compression": compression}
    return argparse.Namespace(lr=0.1, batch=48, seed=0, verbose=False, **given)


def weights_of(model: Any) -> bytes:
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters())
