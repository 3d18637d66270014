"""Sparse gradients of a DistributedOptimizer: on all ranks, on some, dense on one and sparse on another."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hvd import with_ranks  # noqa: E402
from opt import agree, close, weights  # noqa: E402

pytestmark = pytest.mark.torch


@with_ranks(1, 2, 3, 4)
def test_sparse_gradients(hvd: Any) -> None:
    warnings.filterwarnings("error", module=r"pycollective\.")
    warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly")  # PyTorch 2.11, whatever its settings
    n, r = hvd.size(), hvd.rank()

    def words(rank: int, step: int) -> Any:
        return torch.tensor([[1, 2, rank + 3], [4, 4, step + 5]])

    kinds: list[Any] = [
        lambda p: torch.optim.SparseAdam(list(p), lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ]
    for kind in kinds:
        for as_dense in (False, True):
            for all_ranks in (True, False):
                model, alone = (torch.nn.Embedding(10, 3, sparse=True, dtype=torch.float64) for _ in range(2))
                hvd.broadcast_parameters(model.state_dict(), 0)
                alone.load_state_dict(model.state_dict())
                optimizer = hvd.DistributedOptimizer(kind(model.parameters()), sparse_as_dense=as_dense)
                other = kind(alone.parameters())
                for step in range(3):
                    optimizer.zero_grad()
                    other.zero_grad()
                    columns = torch.tensor([1, 1, step == 0])  # in a used row all elements count, zeros too
                    for rank in range(n):
                        if all_ranks or rank == step % n:
                            ((alone(words(rank, step)) * columns).pow(2).sum() / n).backward()
                            if rank == r:
                                (model(words(rank, step)) * columns).pow(2).sum().backward()
                    optimizer.step()
                    other.step()
                    assert model.weight.grad.is_sparse
                    close(model.weight.grad.to_dense(), alone.weight.grad.to_dense())
                    close(weights(model), weights(alone))


@with_ranks(2, 3)
def test_a_sparse_layer_among_dense_ones(hvd: Any) -> None:
    def network() -> Any:
        torch.manual_seed(3)
        words = torch.nn.EmbeddingBag(12, 4, sparse=True, mode="sum")
        return torch.nn.Sequential(words, torch.nn.Linear(4, 2)).double()

    for options in ({}, {"groups": 1}, {"sparse_as_dense": True}):
        model, alone = network(), network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters(), **options
        )
        other = torch.optim.SGD(alone.parameters(), lr=0.1)
        x = torch.arange(8 * hvd.size()).reshape(hvd.size(), 2, 4) % 12
        for _ in range(5):
            optimizer.zero_grad(set_to_none=False)
            other.zero_grad(set_to_none=False)
            model(x[hvd.rank()]).pow(2).mean().backward()
            alone(x.flatten(0, 1)).pow(2).mean().backward()
            optimizer.step()
            other.step()
        close(weights(model), weights(alone))


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
        plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), **options)
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
    model, alone = network(), network()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.05)
    ours = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), sparse_as_dense=True
    )
    for step in range(3):
        for o in (ours, optimizer):
            o.zero_grad(set_to_none=step % 2 == 0)
        loss(model, sparse=r == step % n).backward()
        loss(alone, sparse=False).backward()
        ours.step()
        optimizer.step()
        close(weights(model), weights(alone))
