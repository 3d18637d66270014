"""Sparse gradients of a DistributedOptimizer: on all ranks, on some, dense on one and sparse on another."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hvd import with_ranks  # noqa: E402
from opt import Twins, agree, close, weights  # noqa: E402

pytestmark = pytest.mark.torch


def plain(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@with_ranks(1, 2, 3, 4)
def test_sparse_gradients(hvd: Any) -> None:
    warnings.filterwarnings("error", module=r"pycollective\.")
    warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly")  # PyTorch 2.11, whatever its settings
    n, r = hvd.size(), hvd.rank()

    def network() -> Any:
        torch.manual_seed(0)
        return torch.nn.Embedding(10, 3, sparse=True, dtype=torch.float64)

    def words(rank: int, step: int) -> Any:
        return torch.tensor([[1, 2, rank + 3], [4, 4, step + 5]])

    kinds: list[Any] = [
        lambda p: torch.optim.SparseAdam(list(p), lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ]
    for kind, as_dense, all_ranks in itertools.product(kinds, (False, True), (True, False)):
        twins = Twins(hvd, lambda model, kind=kind: kind(model.parameters()), network, sparse_as_dense=as_dense)
        for step in range(3):
            twins.zero_grad()
            columns = torch.tensor([1, 1, step == 0])  # in a used row all elements count, zeros too
            for rank in range(n):
                if all_ranks or rank == step % n:
                    ((twins.alone(words(rank, step)) * columns).pow(2).sum() / n).backward()
                    if rank == r:
                        (twins.model(words(rank, step)) * columns).pow(2).sum().backward()
            twins.step()
            assert twins.model.weight.grad.is_sparse
            close(twins.model.weight.grad.to_dense(), twins.alone.weight.grad.to_dense())


@with_ranks(2, 3)
def test_a_sparse_layer_among_dense_ones(hvd: Any) -> None:
    def network() -> Any:
        torch.manual_seed(3)
        words = torch.nn.EmbeddingBag(12, 4, sparse=True, mode="sum")
        return torch.nn.Sequential(words, torch.nn.Linear(4, 2)).double()

    for options in ({}, {"groups": 1}, {"sparse_as_dense": True}):
        twins = Twins(hvd, plain, network, **options)
        x = torch.arange(8 * hvd.size()).reshape(hvd.size(), 2, 4) % 12
        for _ in range(5):
            twins.zero_grad(set_to_none=False)
            twins.model(x[hvd.rank()]).pow(2).mean().backward()
            twins.alone(x.flatten(0, 1)).pow(2).mean().backward()
            twins.step()


@with_ranks(2, 3)
def test_a_gradient_that_is_dense_here_and_sparse_there(hvd: Any) -> None:
    """All ranks learn which one, no rank hangs, and training may continue."""
    n, r = hvd.size(), hvd.rank()

    def network() -> Any:
        torch.manual_seed(3)
        return torch.nn.ModuleDict({"words": torch.nn.Embedding(6, 3), "last": torch.nn.Linear(3, 2)}).double()

    def loss(model: Any, sparse: bool) -> Any:
        rows = torch.nn.functional.embedding(torch.tensor([1, 4, 1]), model["words"].weight, sparse=sparse)
        return model["last"](rows).pow(2).mean()

    def backward(model: Any, sparse: list[int]) -> None:
        if r == 2:  # has no gradient of the embedding
            model["last"](torch.ones(1, 3, dtype=torch.float64)).sum().backward()
        else:
            loss(model, r in sparse).backward()

    for options in ({}, {"groups": 1}, {"compression": hvd.Compression.bf16}):
        model = network()
        momentum = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(momentum, model.named_parameters(), **options)
        for sparse in ([0], [1]):
            optimizer.zero_grad()
            backward(model, sparse)
            with pytest.raises(RuntimeError, match="sparse_as_dense=True") as caught:
                optimizer.step()
            assert f"'words.weight' is dense on rank {1 - sparse[0]}, sparse on rank {sparse[0]}" in str(caught.value)
        optimizer.zero_grad()
        backward(model, [])
        optimizer.step()
        agree(hvd, weights(model))
    twins = Twins(hvd, plain, network, sparse_as_dense=True)
    for step in range(3):
        twins.zero_grad(set_to_none=step % 2 == 0)
        loss(twins.model, sparse=r == step % n).backward()
        loss(twins.alone, sparse=False).backward()
        twins.step()
