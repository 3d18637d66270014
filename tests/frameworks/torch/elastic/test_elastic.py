"""elastic.run: what happens when ranks die, and that training then ends with the same result."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hvd import job, run, with_ranks  # noqa: E402
from opt import weights  # noqa: E402

from pycollective.hvd.exceptions import HorovodInternalError, HostsUpdatedInterrupt  # noqa: E402

STEPS, ROWS = 12, 12  # ROWS: per step, on all ranks together; 1 to 4 ranks share them evenly
ADDED, REMOVED = 2, 1


def network() -> Any:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1)).double()


def loss_of(model: Any, step: int, rank: int, size: int) -> Any:
    x = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)[rank::size]
    return ((model(x) - x.sin().sum(1, keepdim=True)) ** 2).mean()


def undisturbed() -> list[float]:
    """The weights after STEPS steps, by plain torch in one process."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, 0, 1).backward()
        optimizer.step()
    return weights(model).tolist()  # type: ignore[no-any-return]


class Training:
    """A rank's training; `log` gets each loss that it survives: (exception, size before, step of the commit)."""

    def __init__(self, hvd: Any, die: dict[int, int], place: str, every: int = 2, keep: bool = False) -> None:
        """die: rank -> step in which it kills itself, at `place`; every: steps from commit to commit."""
        self.hvd, self.place, self.every, self.keep = hvd, place, every, keep
        self.dies_in = die.get(hvd.rank())
        self.model = network()
        plain = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)
        self.optimizer = hvd.DistributedOptimizer(plain, self.model.named_parameters())
        self.state = hvd.elastic.TorchState(self.model, self.optimizer, step=0)
        self.state.register_reset_callbacks([self.on_reset])
        self.log: list[tuple[int, int]] = []

    def on_reset(self) -> None:
        self.log.append((self.hvd.size(), self.hvd.rank()))
        self.maybe_die("callback")

    def maybe_die(self, place: str) -> None:
        if place == self.place and self.dies_in is not None and self.state.step >= self.dies_in:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self) -> dict[str, Any]:
        self.hvd.elastic.run(self.steps)(self.state)
        found = weights(self.model).tolist()
        return {"weights": found, "log": self.log, "size": self.hvd.size(), "step": self.state.step}

    def steps(self, state: Any) -> None:
        while state.step < STEPS:
            self.maybe_die("zero")
            self.optimizer.zero_grad(set_to_none=not self.keep)
            loss = loss_of(self.model, state.step, self.hvd.rank(), self.hvd.size())
            if self.place == "backward":  # the last layer's gradients are in flight already
                self.model[0].bias.register_hook(lambda _: self.maybe_die("backward"))
            loss.backward()
            self.maybe_die("step")
            self.optimizer.step()
            self.maybe_die("object")
            assert self.hvd.broadcast_object(state.step, name="step") == state.step
            state.step += 1
            if state.step % self.every == 0:
                state.save()
                self.maybe_die("commit")
                state.check_host_updates()


def _train(hvd: Any, *arguments: Any) -> Any:
    return Training(hvd, *arguments).run()


def returned(outcomes: dict[int, Any], *ranks: int) -> list[Any]:
    """The results of these ranks, which have not failed."""
    for rank in ranks:
        assert outcomes[rank].error is None, outcomes[rank].trace
    return [outcomes[rank].value for rank in ranks]


def survivors_of(n: int, die: dict[int, int], place: str, *more: Any) -> list[dict[str, Any]]:
    """The reports of the survivors, after a check that the others died."""
    with job(n, _train, die, place, *more) as ranks:
        outcomes = ranks.outcomes(40)
    for rank in die:
        assert outcomes[rank].exitcode == -signal.SIGKILL, (rank, outcomes[rank])
    return returned(outcomes, *(rank for rank in range(n) if rank not in die))


def ends_as_if_undisturbed(left: list[dict[str, Any]]) -> None:
    right = undisturbed()
    for result in left:
        assert result["step"] == STEPS and result["size"] == len(left)
        assert result["weights"] == left[0]["weights"]
        assert result["weights"] == pytest.approx(right, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("place", ["backward", "step", "object", "commit"])
@pytest.mark.parametrize(("n", "victim"), [(2, 0), (3, 2), (4, 1)])
def test_the_others_go_back_to_the_last_commit_and_on(n: int, victim: int, place: str) -> None:
    left = survivors_of(n, {victim: 5}, place)
    ends_as_if_undisturbed(left)
    assert [result["log"] for result in left] == [[(n - 1, rank)] for rank in range(n - 1)]


@pytest.mark.parametrize(("step", "place"), [(7, "backward"), (0, "zero")])
def test_gradients_that_are_kept_from_step_to_step(step: int, place: str) -> None:
    """They are in windows of the previous ranks: in step 0 these are still being created."""
    ends_as_if_undisturbed(survivors_of(3, {0: step}, place, 1, True))


def test_no_rank_dies() -> None:
    results = run(2, _train, {}, "step")
    ends_as_if_undisturbed(results)
    assert [result["log"] for result in results] == [[], []]


def test_ranks_that_die_one_after_the_other_until_one_is_left() -> None:
    left = survivors_of(4, {0: 2, 3: 5, 1: 9}, "step")
    ends_as_if_undisturbed(left)
    assert left[0]["log"] == [(3, 1), (2, 1), (1, 0)]


def test_two_that_die_at_once() -> None:
    ends_as_if_undisturbed(survivors_of(4, {1: 6, 2: 6}, "step"))


# -- losses in unlikely moments ------------------------------------------------------------------------------------


def _dies_while_starting_anew(hvd: Any, moment: str) -> Any:
    from pycollective.comm.host import shrink
    from pycollective.hvd import basics

    training = Training(hvd, {1: 5}, "step")
    home = basics if moment == "init" else shrink
    part = getattr(home, moment)
    if hvd.rank() == 0:
        setattr(home, moment, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    if hvd.rank() == 2:
        setattr(home, moment, lambda *arguments: (time.sleep(0.2), part(*arguments))[1])
    return training.run()


@pytest.mark.parametrize("moment", ["_find", "_meet", "_all_reach", "init"])
def test_a_rank_that_dies_while_the_others_find_survivors(moment: str) -> None:
    """Rank 0 would have led; it dies with the others after it has sent them the address."""
    with job(4, _dies_while_starting_anew, moment) as ranks:
        ends_as_if_undisturbed(returned(ranks.outcomes(40), 2, 3))


def test_a_rank_that_dies_in_a_reset_callback() -> None:
    """Rank 2 dies in step 5, and rank 0 when it learns of that, before anything was synchronized."""
    with job(3, _dies_in_callback) as ranks:
        left = returned(ranks.outcomes(40), 1)
    ends_as_if_undisturbed(left)
    assert left[0]["log"] == [(2, 1), (1, 0)]


def _dies_in_callback(hvd: Any) -> Any:
    return Training(hvd, {0: 0, 2: 5}, "callback" if hvd.rank() == 0 else "step").run()


def _stopped(hvd: Any) -> Any:
    training = Training(hvd, {}, "step")

    def stop(place: str) -> None:
        if hvd.rank() == 1 and hvd.size() == 3 and training.state.step == 4:
            hvd.link.send("stopped")
            os.kill(os.getpid(), signal.SIGSTOP)

    training.maybe_die = stop  # type: ignore[method-assign]
    return training.run()


def test_a_rank_that_hangs_is_left_out_and_gets_an_error() -> None:
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "1"}
    with job(3, _stopped, env=env | {"HOROVOD_ELASTIC_TIMEOUT": "1.5"}) as ranks:
        assert ranks.hear(1) == "stopped"
        left = returned({rank: ranks.hear(rank) for rank in (0, 2)}, 0, 2)
        ranks.kill(1, signal.SIGCONT)
        outcomes = ranks.outcomes(40)
    ends_as_if_undisturbed(left)
    with pytest.raises(RuntimeError, match=r"elastic\.run cannot continue"):
        raise outcomes[1].error


# -- other reasons to restart ----------------------------------------------------------------------------------------


def _raises_once(hvd: Any, error: Exception, steps: dict[int, int], every: int) -> Any:
    """steps: rank -> step in which it raises, between backward and the optimizer's step: gradients are in flight."""
    training = Training(hvd, {}, "step", every)

    def fail(place: str) -> None:
        if place == "step" and training.state.step == steps.get(hvd.rank()):
            steps.clear()
            raise error

    training.maybe_die = fail  # type: ignore[method-assign]
    return training.run()


def test_one_rank_that_raises_resets_the_others_and_no_rank_is_lost() -> None:
    results = run(3, _raises_once, HorovodInternalError("rank 1 has a reason of its own"), {1: 4}, 2)
    ends_as_if_undisturbed(results)
    assert [rank["log"] for rank in results] == [[(3, 0)], [(3, 1)], [(3, 2)]]


def test_an_interrupt_while_gradients_are_in_flight() -> None:
    ends_as_if_undisturbed(run(2, _raises_once, HostsUpdatedInterrupt(skip_sync=True), {0: 3, 1: 3}, 1))


def _hosts_updated(hvd: Any, news: dict[int, int]) -> Any:
    state = hvd.elastic.TorchState(n=0, uncommitted=0)
    syncs, sizes = [], []
    sync = state.sync
    state.sync = lambda: (syncs.append(state.n), sync())
    state.register_reset_callbacks([lambda: sizes.append(hvd.size())])

    @hvd.elastic.run
    def train(state: Any) -> tuple[int, ...]:
        while state.n < 4:
            state.n += 1
            state.uncommitted = 10 * state.n
            if state.n == 2 and hvd.rank() in news:
                state.on_hosts_updated(1000, news[hvd.rank()])
            if state.n == 3 and hvd.rank() in news:
                state.on_hosts_updated(999, ADDED)  # an old timestamp
            state.check_host_updates()
            state.n, state.uncommitted = state.n, state.uncommitted
        return state.n, state.uncommitted

    return train(state), syncs, sizes


def test_hosts_that_come_and_go_interrupt_all_ranks_but_undo_nothing() -> None:
    """If hosts were only removed the state needs no synchronization."""
    for syncs, cases in {
        (0, 2): ({1: ADDED}, {0: REMOVED, 1: ADDED}, {1: REMOVED | ADDED}),
        (0,): ({0: REMOVED}, {0: REMOVED, 1: REMOVED}),
    }.items():
        for news in cases:
            assert run(2, _hosts_updated, news) == [((4, 40), [*syncs], [2])] * 2, news


@with_ranks(2)
def test_other_exceptions_results_and_arguments_pass_through(hvd: Any) -> None:
    @hvd.elastic.run
    def train(state: Any, *args: int, error: Any = None, **kwargs: int) -> Any:
        """Words."""
        if args:
            return args, kwargs
        raise error

    state = hvd.elastic.TorchState(n=0)
    assert train.__doc__ == "Words."
    assert train(state, 1, 2, three=3) == ((1, 2), {"three": 3})
    with pytest.raises(KeyError, match="mine"):
        train(state, error=KeyError("mine"))
    os.environ["HOROVOD_ELASTIC_TIMEOUT"] = "soon"
    with pytest.raises(ValueError, match="HOROVOD_ELASTIC_TIMEOUT='soon' is not a number of seconds, above 0"):
        train(state, error=HorovodInternalError())
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()  # nothing has happened


# -- afterwards ----------------------------------------------------------------------------------------------------


def _afterwards(hvd: Any) -> Any:
    part = hvd.add_process_set([0, 2])
    state = hvd.elastic.TorchState(n=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        if hvd.size() == 3:
            if hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            hvd.synchronize(hvd.allreduce_async(torch.ones(2), name="left behind"))
            raise AssertionError("rank 1 lives")

    train(state)
    assert part.process_set_id is None
    assert hvd.global_process_set.ranks == [0, 1]
    assert hvd.allgather(torch.tensor([hvd.rank()])).tolist() == [0, 1]
    assert hvd.allreduce(torch.ones(2), name="left behind", op=hvd.Sum).tolist() == [2, 2]
    assert hvd.add_process_set([1]).size() == 1  # sets are as dynamic as before
    hvd.shutdown()
    hvd.init()
    assert hvd.size() == 2
    assert hvd.allgather(torch.tensor([hvd.rank()])).tolist() == [0, 1]


def test_names_process_sets_and_another_init_after_a_loss() -> None:
    with job(3, _afterwards, process_sets="dynamic") as ranks:
        returned(ranks.outcomes(40), 0, 2)
