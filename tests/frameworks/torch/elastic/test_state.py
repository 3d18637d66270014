"""TorchState and ElasticSampler: what is committed, also in a file, restored, synchronized and distributed."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from hvd import job, run, with_ranks

torch: Any = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from pycollective.torch.elastic import sampler as samplers  # noqa: E402
from pycollective.torch.elastic.state import ObjectState, State  # noqa: E402


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


# -- commits in a file: a job that ends is restarted, on other ranks, and continues from the last one -----------------

STEPS, ROWS = 9, 12  # ROWS: per step, on all ranks together


def parts(hvd: Any) -> Any:
    """A state with every kind of part."""
    torch.manual_seed(5)
    model = torch.nn.Linear(3, 1).double()
    plain = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    sampler = hvd.elastic.ElasticSampler(range(STEPS * ROWS), shuffle=False)
    return hvd.elastic.TorchState(model, optimizer, schedule=schedule, sampler=sampler, step=0, seen={"steps": []})


def train(hvd: Any, state: Any, fails_in: int | None) -> None:
    """To the end, with a commit every second step, or until it fails."""
    indices = list(state.sampler)
    for i in range(0, len(indices), ROWS // hvd.size()):
        if state.step == fails_in:
            raise KeyError("no more")
        batch = indices[i : i + ROWS // hvd.size()]
        x = torch.tensor([[k, k * k % 7, 1] for k in batch], dtype=torch.float64) / 50
        state.optimizer.zero_grad()
        (state.model(x) - x.sin().sum(1, keepdim=True)).pow(2).mean().backward()
        state.optimizer.step()
        state.schedule.step()
        state.sampler.record_batch(i, len(batch))
        state.seen["steps"].append((state.step, hvd.size()))
        state.step += 1
        if state.step % 2 == 0:
            state.commit()


def _part_of_it(hvd: Any, fails_in: int | None) -> Any:
    state, sizes = parts(hvd), []
    state.register_reset_callbacks([lambda: sizes.append(hvd.size())])
    try:
        hvd.elastic.run(lambda state: train(hvd, state, fails_in))(state)
    except KeyError:
        return None
    state.step += 1  # not committed
    assert hvd.elastic.run(lambda state: state.step)(state) == STEPS + 1  # the file is only for the beginning
    weights = torch.cat([p.detach().flatten() for p in state.model.parameters()])
    assert torch.equal(weights, hvd.broadcast(weights, 0))
    return state.seen["steps"], sizes, weights.tolist()


def test_continues_with_more_ranks_and_with_fewer(tmp_path: Path) -> None:
    file = {"PYCOLLECTIVE_ELASTIC_FILE": str(tmp_path / "commits")}
    ((steps, sizes, expected),) = run(1, _part_of_it, None, reuse=False)
    assert steps == [(step, 1) for step in range(STEPS)] and sizes == []
    assert not list(tmp_path.iterdir())  # none is requested
    assert run(2, _part_of_it, 5, env=file, reuse=False) == [None] * 2
    assert run(4, _part_of_it, 7, env=file, reuse=False) == [None] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["commits"]
    for steps, sizes, weights in run(3, _part_of_it, None, env=file, reuse=False):
        assert steps == [(0, 2), (1, 2), (2, 2), (3, 2), (4, 4), (5, 4), (6, 3), (7, 3), (8, 3)]
        assert sizes == [3]
        assert max(abs(a - b) for a, b in zip(weights, expected, strict=True)) < 1e-12


def _other_parts(hvd: Any) -> str:
    state = hvd.elastic.TorchState(torch.nn.Linear(3, 1).double(), None, step=0)
    try:
        hvd.elastic.run(lambda state: None)(state)
    except (ValueError, hvd.HorovodInternalError) as error:
        return str(error)
    return ""


def test_a_file_of_another_state(tmp_path: Path) -> None:
    file = tmp_path / "commits"
    torch.save({"ranks": 2, "state": {"values": {"step": 3}, "parts": {"network": {}}}}, file)
    with job(2, _other_parts, env={"PYCOLLECTIVE_ELASTIC_FILE": str(file)}) as ranks:
        message = ranks.outcomes()[0].value
    assert message == "the file has parts ['network'], the state ['model']"


class _Malice:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@with_ranks(1, reuse=False)
def test_files_that_others_may_have_written_are_not_unpickled(hvd: Any, tmp_path: Path) -> None:
    """Each would create a folder when unpickled."""
    state = hvd.elastic.TorchState(step=0)
    made, own, link, foreign = (tmp_path / name for name in ("made", "own", "link", "foreign"))
    for file in (own, foreign):
        torch.save({"ranks": 1, "state": {"values": {"step": _Malice(str(made))}}}, file)
    own.chmod(0o660)
    link.symlink_to(own)
    if os.geteuid() == 0:
        os.chown(foreign, 65534, 65534)
    for file in (own, link, *([foreign] if os.geteuid() == 0 else [])):
        os.environ["PYCOLLECTIVE_ELASTIC_FILE"] = str(file)
        with pytest.raises(PermissionError, match=f"{file} is not read"):
            hvd.elastic.run(lambda state: None)(state)
    assert not made.exists()
    os.environ["PYCOLLECTIVE_ELASTIC_FILE"] = str(tmp_path / "kept")
    state.commit()
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o600
