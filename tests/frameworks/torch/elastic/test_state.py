"""TorchState and ElasticSampler: what is committed, restored, synchronized and distributed."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hvd import with_ranks

torch: Any = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from pycollective.torch.elastic import sampler as samplers  # noqa: E402
from pycollective.torch.elastic.state import ObjectState, State  # noqa: E402

pytestmark = pytest.mark.torch


class Parts:
    """A model, its optimizer, a scheduler, a sampler and plain values, different on every rank."""

    def __init__(self, hvd: Any) -> None:
        rank = hvd.rank()
        torch.manual_seed(rank)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.1 + rank)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.sampler = hvd.elastic.ElasticSampler(range(24))
        for _ in range(rank):
            self.train()
        self.state = hvd.elastic.TorchState(
            self.model, self.optimizer, scheduler=self.scheduler, sampler=self.sampler, epoch=rank, seen=[rank]
        )

    def train(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(5, 3)).square().sum().backward()
        self.optimizer.step()
        self.scheduler.step()
        self.sampler.record_batch(0, 2)

    def everything(self) -> Any:
        """All that the state holds, in comparable form."""
        parts = [self.model.state_dict(), self.optimizer.state_dict(), self.scheduler.state_dict()]
        parts += [self.sampler.state_dict(), self.state.epoch, self.state.seen]
        return plain(parts)


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


@with_ranks(1, 2, 3, 4)
def test_sync_gives_all_ranks_what_rank_0_has(hvd: Any) -> None:
    parts = Parts(hvd)
    before = parts.everything()
    parts.state.sync()
    after = parts.everything()
    gathered = hvd.allgather_object((before, after))
    assert all(own == gathered[0][0] for _, own in gathered)
    parts.train()
    parts.state.epoch, parts.state.seen = 99, parts.state.seen + [99]
    assert parts.everything() != after
    parts.state.restore()  # to the common state, without a commit
    assert parts.everything() == after
    assert parts.state.model is parts.model and parts.state.optimizer is parts.optimizer
    assert parts.optimizer.param_groups[0]["params"][0] is parts.model[0].weight
    assert (before != after) == (hvd.rank() > 0)


@with_ranks(1, 3)
def test_restore_goes_back_to_the_commit_as_often_as_needed(hvd: Any) -> None:
    parts = Parts(hvd)
    parts.train()
    parts.state.seen.append("committed")
    parts.state.commit()
    committed = parts.everything()
    for _ in range(2):  # a restore must not alias the saved values with those that training modifies
        parts.train()
        parts.state.seen.append("lost")
        assert parts.everything() != committed
        parts.state.restore()
        assert parts.everything() == committed


@with_ranks(1)
def test_parts_can_be_replaced(hvd: Any) -> None:
    state = hvd.elastic.TorchState(torch.nn.Linear(1, 1), None, count=1)
    assert state.optimizer is None
    other = torch.nn.Linear(2, 2)
    weight = other.weight.detach().clone()
    state.model = other
    state.later = "not a part"
    with torch.no_grad():
        other.weight.zero_()
    state.count = 2
    state.restore()
    assert state.model is other and torch.equal(other.weight, weight)
    assert state.count == 1 and state.later == "not a part"


@with_ranks(2)
def test_handlers_of_ones_own(hvd: Any) -> None:
    from pycollective.torch.elastic.state import StateHandler, get_handler_registry, set_handler_registry

    class Counter:
        count = 0

        def state_dict(self) -> Any:
            return {"count": self.count}

        def load_state_dict(self, state: Any) -> None:
            self.count = state["count"]

    before = list(get_handler_registry())
    set_handler_registry([*before, (Counter, StateHandler)])
    counter = Counter()
    counter.count = hvd.rank() + 5
    state = hvd.elastic.TorchState(counter=counter)
    state.sync()
    assert state.counter is counter and counter.count == 5
    counter.count = 6
    state.restore()
    assert counter.count == 5
    set_handler_registry(before)


@with_ranks(2)
def test_a_reset_reaches_the_sampler(hvd: Any) -> None:
    """With skip_sync the sampler is redistributed all the same."""
    sampler = hvd.elastic.ElasticSampler(range(12), shuffle=False)
    state = hvd.elastic.TorchState(sampler=sampler)
    sampler.num_replicas = 4  # as if there had been more ranks
    state.on_reset()
    assert sampler.num_replicas == hvd.size()


def test_a_state_of_ones_own_way_of_sending() -> None:
    sent = []

    def send(value: Any) -> Any:
        sent.append(value)
        return {"a": 1, "b": [2]}

    state = ObjectState(bcast_object=send, get_rank=lambda: 0, a=5, b=[])
    state.sync()
    assert sent == [{"a": 5, "b": []}] and (state.a, state.b) == (1, [2])
    state.b.append(3)
    state.restore()
    assert state.b == [2]


def test_a_state_without_messages() -> None:
    state = State(lambda value: value, lambda: 0)
    for method in (state.save, state.restore, state.sync):
        with pytest.raises(NotImplementedError):
            method()


# -- the sampler -----------------------------------------------------------------------------------------------------


def shares(length: int, size: int, processed: int = 0, **options: Any) -> list[list[int]]:
    """The share of each of `size` ranks."""
    dealt_out = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samplers, "size", lambda: size)
        for rank in range(size):
            patch.setattr(samplers, "rank", lambda rank=rank: rank)
            sampler = samplers.ElasticSampler(range(length), **options)
            sampler.load_state_dict({"epoch": 3, "processed_num": processed})
            dealt_out.append(list(sampler))
            assert len(sampler) == len(dealt_out[-1])
            assert list(sampler) == dealt_out[-1]  # on every iteration
    return dealt_out


@given(st.integers(0, 40), st.integers(1, 9), st.integers(0, 50), st.integers(0, 3), st.booleans())
def test_the_rest_is_distributed_evenly_and_completely(
    length: int, size: int, processed: int, seed: int, shuffle: bool
) -> None:
    dealt_out = shares(length, size, processed, seed=seed, shuffle=shuffle)
    order = list(range(length))
    if shuffle:
        random.Random(seed + 3).shuffle(order)
    left = order[processed:]
    assert len({len(share) for share in dealt_out}) == 1
    dealt = [index for turn in zip(*dealt_out, strict=True) for index in turn]
    assert dealt[: len(left)] == left
    assert len(dealt) < len(left) + size
    assert dealt == [left[i % len(left)] for i in range(len(dealt))]  # the first ones again


def test_other_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "size", lambda: 2)
    monkeypatch.setattr(samplers, "rank", lambda: 0)
    sampler = samplers.ElasticSampler(range(40))
    first = list(sampler)
    sampler.record_batch(0, 3)
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 6}
    sampler.set_epoch(1)
    assert sampler.state_dict() == {"epoch": 1, "processed_num": 0}
    assert list(sampler) != first and len(sampler) == 20


@with_ranks(1, 2, 4)
def test_an_epoch_with_a_loss_sees_every_index_once(hvd: Any) -> None:
    """Three batches of two, then a loss."""
    sampler = hvd.elastic.ElasticSampler(range(48), seed=1)
    state = hvd.elastic.TorchState(sampler=sampler, seen=[], lost=False)

    @hvd.elastic.run
    def train(state: Any) -> None:
        for number, batch in enumerate(torch.utils.data.DataLoader(range(48), 2, sampler=sampler)):
            gathered = hvd.allgather(batch).tolist()
            state.seen = state.seen + gathered
            sampler.record_batch(number, len(batch))
            state.commit()
            if number == 2 and not state.lost:
                state.lost = True
                state.commit()
                raise hvd.HorovodInternalError("a loss, as it were")

    train(state)
    assert sorted(state.seen) == list(range(48))
