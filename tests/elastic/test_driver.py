"""The driver of elastic jobs: generations, ranks, losses, hosts that come and go, limits. Workers are threads."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

import pytest

from elastic.threads import Job, Worker
from pycollective.comm.bootstrap.elastic_messages import Generation
from pycollective.elastic import FixedHosts, Limits, discovery, workers
from pycollective.errors import BootstrapError

Place = tuple[str, int]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "EVERY", 0.02)
    monkeypatch.setattr(workers, "KILL_AFTER", 0.3)


class Log:
    """The generations of each worker, by number."""

    def __init__(self) -> None:
        self.generations: dict[int, dict[Place, Generation]] = defaultdict(dict)

    def join(self, me: Worker, synced: bool = False, needs_sync: bool = True) -> Generation:
        told = me.join(synced, needs_sync)
        self.generations[told.number][me.host, me.slot] = told
        return told

    def ranks(self, number: int) -> dict[Place, int]:
        return {place: told.rank for place, told in self.generations[number].items()}


def loses(places: set[Place], code: int = 9) -> tuple[Callable[[Worker], int], Log]:
    """A body of which the workers at these places fail once, in the first generation; the others go on."""
    log = Log()

    def body(me: Worker) -> int:
        told = log.join(me)
        me.gather(b"")
        if told.number == 1:
            if (me.host, me.slot) in places:
                return code
            log.join(me, synced=True)
            me.gather(b"")
        return 0

    return body, log


def test_ranks_follow_hosts_and_slots() -> None:
    log = Log()

    def once(me: Worker) -> int:
        log.join(me)
        return 0 if me.gather(b"%d" % me.slot) == [b"0", b"1", b"0"] else 5

    job = Job(once, {"a": 2, "b": 1}, Limits(3))
    assert (job.code, job.failure) == (0, "")
    assert log.ranks(1) == {("a", 0): 0, ("a", 1): 1, ("b", 0): 2}
    told = log.generations[1]
    places = [(told[place].local_rank, told[place].local_size, told[place].size) for place in sorted(told)]
    assert places == [(0, 2, 3), (1, 2, 3), (0, 1, 3)]
    assert [(m.host, m.slot, m.rank) for m in job.members] == [("a", 0, 0), ("a", 1, 1), ("b", 0, 2)]


@pytest.mark.parametrize(
    ("lost", "ranks"),
    [
        ({("b", 1)}, {("a", 0): 0, ("a", 1): 1, ("b", 0): 2, ("b", 1): 3}),
        ({("a", 0)}, {("b", 0): 0, ("b", 1): 1, ("a", 0): 2, ("a", 1): 3}),  # rank 0 has the state
        ({("a", 1), ("b", 0)}, {("a", 0): 0, ("a", 1): 1, ("b", 0): 2, ("b", 1): 3}),
        ({("a", 0), ("b", 0)}, {("a", 1): 0, ("a", 0): 1, ("b", 0): 2, ("b", 1): 3}),
    ],
)
def test_lost_workers_are_replaced(lost: set[Place], ranks: dict[Place, int]) -> None:
    body, log = loses(lost)
    job = Job(body, {"a": 2, "b": 2}, Limits(4))
    assert job.code == 0
    assert len(job.started) == 4 + len(lost)
    assert log.ranks(2) == ranks
    assert all(told.sync for told in log.generations[2].values())
    for host, _ in lost:
        assert any(f"host {host}) ended with code 9" in line for line in job.reports)


def test_a_loss_while_a_generation_starts_begins_the_next_one() -> None:
    log, left = Log(), threading.Event()

    def body(me: Worker) -> int:
        told = log.join(me)
        if told.number == 1 and told.rank == 1:
            left.set()
            return 7  # before its allgather
        left.wait()
        try:
            me.gather(b"")
        except BootstrapError as error:
            assert "ended with code 7" in str(error)
            told = log.join(me)
            me.gather(b"")
        return 0 if told.number == 2 else 5

    job = Job(body, {"a": 1, "b": 1, "c": 1}, Limits(3))
    assert job.code == 0 and sorted(log.ranks(2).values()) == [0, 1, 2]


def test_hosts_that_go_and_come_are_notified() -> None:
    log, hosts = Log(), FixedHosts({"a": 1, "b": 1})

    def body(me: Worker) -> int:
        told = log.join(me)
        while told.number < 3:
            if told.rank == 0:
                hosts.set([{"a": 1}, {"a": 1, "c": 2}][told.number - 1])
            me.updated.wait()
            told = log.join(me, synced=True, needs_sync=False)
        return 0

    job = Job(body, hosts, Limits(2, least=1))
    assert job.code == 0
    assert [log.ranks(n) for n in (1, 2, 3)] == [
        {("a", 0): 0, ("b", 0): 1},
        {("a", 0): 0},
        {("a", 0): 0, ("c", 0): 1, ("c", 1): 2},
    ]
    first, removed, *_ = job.started
    assert first.updates == [1, 2] and removed.updates == [1] and removed.poll() == 0
    assert not log.generations[2]["a", 0].sync and log.generations[3]["a", 0].sync  # the new ones need the state


def test_workers_keep_their_places_when_there_is_more_room() -> None:
    log, hosts = Log(), FixedHosts({"a": 1, "b": 1})

    def body(me: Worker) -> int:
        log.join(me)
        hosts.set({"a": 2, "b": 1, "c": 5})
        return 3 if me.updated.wait(0.3) else 0

    job = Job(body, hosts, Limits(2, most=2))
    assert job.code == 0 and len(job.started) == 2


def test_a_host_on_which_workers_fail_at_once_gets_no_more() -> None:
    job = Job(lambda me: 3, {"a": 1, "b": 1}, Limits(2, least=1))
    assert job.code == 3 and "workers have failed on all hosts" in job.failure
    assert len(job.started) == 2
    assert sum("gets no new workers" in line for line in job.reports) == 2


def test_a_host_is_tried_again_after_its_cooldown() -> None:
    tries: list[str] = []

    def body(me: Worker) -> int:
        tries.append(me.host)
        return 3 if len(tries) == 1 else me.join() is None

    job = Job(body, {"a": 1}, Limits(1, cooldown=(0.05, 0.2)))
    assert job.code == 0 and tries == ["a", "a"]


def test_workers_of_an_excluded_host_go_on() -> None:
    log, turns = Log(), []

    def body(me: Worker) -> int:
        turns.append(me.slot)
        if len(turns) > 2:
            return 4  # the replacement does not start
        told = log.join(me)
        if told.number == 1 and told.rank == 1:
            return 9
        return 0 if log.join(me, synced=True).size == 1 else 5

    job = Job(body, {"a": 2}, Limits(2, least=1))
    assert job.code == 0 and len(job.started) == 3


def test_the_third_generation_with_a_failure_excludes_a_host() -> None:
    log = Log()

    def body(me: Worker) -> int:
        told = log.join(me)
        while me.host == "a" and told.size == 2:
            told = log.join(me, synced=True)
        return 0 if me.host == "a" else 6

    job = Job(body, {"a": 1, "b": 1}, Limits(2, least=1))
    assert job.code == 0
    assert [worker.host for worker in job.started] == ["a", "b", "b", "b"]


def test_too_little_room_is_an_error_after_the_timeout() -> None:
    job = Job(lambda me: 0, {"a": 1}, Limits(3, timeout=0.2))
    assert job.code == 1 and job.failure == "there is room for 1 workers, 3 are needed, and no more within 0.2 s"
    assert job.started == []


def test_the_job_waits_below_the_least_number_of_workers() -> None:
    log, hosts = Log(), FixedHosts({"a": 1, "b": 1})

    def body(me: Worker) -> int:
        told = log.join(me)
        if told.number == 1:
            if told.rank == 0:
                hosts.set({"a": 1})
            me.updated.wait()
            if told.rank == 0:
                threading.Timer(0.2, hosts.set, [{"a": 1, "c": 1}]).start()
            log.join(me, synced=True)
        return 0

    job = Job(body, hosts, Limits(2, timeout=15))
    assert job.code == 0 and log.ranks(2) == {("a", 0): 0, ("c", 0): 1}
    assert "there is room for 1 workers, 2 are needed; waiting for hosts" in job.reports


@pytest.mark.parametrize(("resets", "code"), [(0, 9), (1, 0)])
def test_the_reset_limit(resets: int, code: int) -> None:
    body, _ = loses({("b", 0)})
    job = Job(body, {"a": 1, "b": 1}, Limits(2, resets=resets))
    assert job.code == code
    assert job.failure == (f"the limit of {resets} resets is reached" if code else "")


def test_all_workers_failed() -> None:
    body, _ = loses({("a", 0), ("b", 0)}, code=11)
    job = Job(body, {"a": 1, "b": 1}, Limits(2))
    assert (job.code, job.failure) == (11, "all workers have failed")


def test_a_state_that_no_worker_has_any_more() -> None:
    log, hosts = Log(), FixedHosts({"a": 1})

    def body(me: Worker) -> int:
        log.join(me)
        hosts.set({"b": 1})
        me.updated.wait()
        log.join(me, synced=True)
        return 5

    job = Job(body, hosts, Limits(1))
    assert (job.code, job.failure) == (1, "no worker that has the state of the training remains")


@pytest.mark.parametrize(("commits", "code"), [(3, 8), (9, 0)])
def test_a_job_begins_again_from_a_stored_commit(commits: int, code: int) -> None:
    stored, log = [0], Log()

    def body(me: Worker) -> int:
        log.join(me)
        me.gather(b"")
        if me.host == "a":
            stored[0] = min(stored[0] + 1, commits)
        me.gather(b"")
        return 0 if stored[0] == 5 else 8

    job = Job(body, {"a": 1, "b": 1}, Limits(2, cooldown=(0.01, 0.02)), lambda: stored[0])
    assert job.code == code and stored[0] == min(commits, 5)
    assert job.failure == ("all workers have failed" if code else "")


def test_a_worker_that_fails_after_others_have_completed_fails_the_job() -> None:
    done = threading.Event()

    def body(me: Worker) -> int:
        if me.join().rank == 0:
            done.set()
            return 0
        done.wait()
        me.join(synced=True)  # refused
        return 0

    job = Job(body, {"a": 1, "b": 1}, Limits(2))
    assert job.code == 99 and "after others have completed" in job.failure


def test_a_worker_that_does_not_ask_is_ended() -> None:
    log = Log()

    def body(me: Worker) -> int:
        told = log.join(me)
        if told.number == 1:
            if told.rank == 1:
                threading.Event().wait(15)
            log.join(me, synced=True)
        return 0

    job = Job(body, {"a": 1, "b": 1}, Limits(2, timeout=0.5))
    assert job.code == 0 and job.started[1].signals == [9]
    assert any("has not asked for its rank within 0.5 s" in line for line in job.reports)


def test_a_failing_discovery_ends_the_job_only_at_first() -> None:
    answers = iter([{"a": 1}])

    def body(me: Worker) -> int:
        me.join()
        return 1 if me.updated.wait(0.2) else 0

    def find() -> dict[str, int]:
        try:
            return next(answers)
        except StopIteration:
            raise ValueError("no answer") from None

    job = Job(body, find, Limits(1))
    assert job.code == 0 and "no answer; the last hosts remain" in job.reports
    again = Job(body, find, Limits(1))
    assert (again.code, again.failure) == (1, "no answer")
