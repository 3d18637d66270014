"""Who works in an elastic job: starts missing workers, and forms the next generation of those that have asked."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pycollective.elastic.generations import ADDED, REMOVED, Generations
from pycollective.elastic.host_list import HostList, by_rank, choose, place
from pycollective.elastic.limits import Limits
from pycollective.elastic.task import Task
from pycollective.elastic.workers import KILL_AFTER, Crew, Worker
from pycollective.errors import BootstrapError

_LEAVE_SECONDS = 30.0
"""How long a worker that is not needed any more may take to ask for its next rank."""


@dataclass
class Outcome:
    """How the job ends: the exit code and the reason; the first one counts.

    Attributes:
        code: None while the job runs.
        failure: why it has failed, one sentence.
        failed: the first exit code of this generation that is not 0; 0: none.
    """

    code: int | None = None
    failure: str = ""
    failed: int = 0

    def end(self, code: int, failure: str = "") -> None:
        if self.code is None:
            self.code, self.failure = code, failure

    def fail(self, reason: str) -> None:
        """The job fails, with the exit code of a worker if one has failed."""
        self.end(self.failed or 1, reason)


class Formation:
    """Part of a Driver, whose arguments `limits`, `stored`, `report` and `task` it has."""

    def __init__(
        self,
        crew: Crew,
        hosts: HostList,
        generations: Generations,
        limits: Limits,
        stored: Callable[[], object] | None,
        report: Callable[[str], None],
        task: Task | None,
    ) -> None:
        self._crew, self._hosts, self._generations = crew, hosts, generations
        self._limits, self._report, self._task = limits, report, task
        self.outcome = Outcome()
        self._seconds = limits.seconds
        self._stored = stored
        self._begun_with = None if stored is None else stored()
        self._first_ask: float | None = None  # since the last generation has ended
        self._short_since: float | None = None
        self._has_state = False  # whether any worker has had it

    def asked(self, synced: bool) -> None:
        """A worker has asked for its next rank; `synced`: it has the state."""
        self._has_state |= synced
        if self._first_ask is None:
            self._first_ask = time.monotonic()

    def wait_from_now(self) -> None:
        """The generation has ended: its workers have the elastic timeout from now on to ask."""
        self._first_ask = time.monotonic()

    def members_left(self) -> list[Worker]:
        return [member for member in self._generations.members if member.number in self._crew.alive]

    def begin_again(self) -> bool:
        """Without any worker that has the state, from a commit that was stored meanwhile; False: there is none."""
        ended = self.outcome.code is not None
        if self._stored is None or ended or (now := self._stored()) == self._begun_with:
            return False
        self._begun_with, self._has_state, self._generations.members = now, False, []
        self._report("no worker has the state of the training; beginning again from the stored commit")
        return True

    def proceed(self, now: float) -> None:
        """Start and dismiss workers, tell them of changes, form a generation, or fail: whatever is possible now."""
        if self._generations.ended and not self._resets_left():
            self._fail_without_resets(now)
            return
        staying = self._crew.staying()
        running = Counter(worker.host for worker in staying)
        counts = place(self._hosts.slots(running, now), running, self._limits.most)
        short = self._is_short(sum(counts.values()), now)
        wanted = choose(staying, counts)
        for worker in staying:
            if worker not in wanted and worker not in self._generations.members:
                self._crew.dismiss(worker)
        if not short and self._resets_left():
            self._start_missing(Counter(counts) - running, now)
        if not self._generations.ended:
            self._notify(wanted)
        elif not short:
            self._form_if_ready(wanted, sum(counts.values()), now)

    def _resets_left(self) -> bool:
        return self._limits.resets is None or self._generations.number <= self._limits.resets

    def _fail_without_resets(self, now: float) -> None:
        """Soon: a worker that has failed, so that the others have asked, may not have ended yet."""
        waited = now - (self._first_ask or now) > KILL_AFTER
        if self.outcome.failed or waited or all(member.ask is not None for member in self.members_left()):
            self.outcome.fail(f"the limit of {self._limits.resets} resets is reached")

    def _is_short(self, room: int, now: float) -> bool:
        """Return whether there is too little room for the job; that may last so long only."""
        needed = self._limits.needed if self._generations.number else self._limits.start
        if room >= needed:
            self._short_since = None
            return False
        text = f"there is room for {room} workers, {needed} are needed"
        if self._short_since is None:
            self._short_since = now
            if self._generations.number:
                self._report(f"{text}; waiting for hosts")
        if not self._crew.staying() and self._hosts.is_hopeless():
            self.outcome.fail(f"{text}: workers have failed on all hosts")
        elif now - self._short_since > self._seconds:
            self.outcome.fail(f"{text}, and no more within {self._seconds:g} s")
        return True

    def _start_missing(self, missing: Mapping[str, int], now: float) -> None:
        for host, count in missing.items():
            for _ in range(count):
                try:
                    self._crew.start(host)
                except (OSError, BootstrapError) as error:
                    self._hosts.failed(host, self._generations.number, True, now)
                    self._report(f"host {host} gets no workers: {error}")
                    break

    def _notify(self, wanted: list[Worker]) -> None:
        """Tell the members, once, that some of them are to leave, or that new workers are ready."""
        new = [worker for worker in wanted if worker not in self._generations.members]
        change = REMOVED if any(member not in wanted for member in self._generations.members) else 0
        change |= ADDED if new and all(worker.ask is not None for worker in new) else 0
        self._generations.notify(change)

    def _form_if_ready(self, wanted: list[Worker], size: int, now: float) -> None:
        late = [worker for worker in wanted if worker.ask is None]
        if len(wanted) == size and not late:
            self._form(by_rank(wanted))
            return
        for worker in late:
            waited = 0.0 if self._first_ask is None else now - max(self._first_ask, worker.started)
            if waited > self._seconds and worker.kill_at is None:
                worker.kill_at = now
                self._report(f"{worker} has not asked for its rank within {self._seconds:g} s; it is ended")

    def _form(self, ranks: list[Worker]) -> None:
        if self._has_state and not ranks[0].synced and not self.begin_again():
            self.outcome.fail("no worker that has the state of the training remains")
            return
        for worker in self._crew.staying():
            if worker not in ranks:
                self._crew.dismiss(worker, _LEAVE_SECONDS)
        self._first_ask, self.outcome.failed = None, 0
        if self._task is not None:
            self._task.begin(len(ranks))
        self._report(self._generations.form(ranks))
