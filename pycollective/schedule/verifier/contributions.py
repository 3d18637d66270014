"""Proof that a schedule computes its collective: an execution over contributions instead of numbers.

The abstract content of a place: which ranks' contributions it has, which more than once, in what order they were
combined, whether it is still raw, and whether the step that completes it has been applied.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from pycollective.errors import TopologyError, VerificationError
from pycollective.schedule.collectives import COLLECTIVES
from pycollective.schedule.compiler.compiler import trace
from pycollective.schedule.compiler.schedule import Placement, Schedule
from pycollective.schedule.compiler.steps import IN, OUT, RECV, SEND, Step, place_name
from pycollective.schedule.verifier.progress import step_name

ProvenOrder = Literal["rank", "fixed", "chunk", "none"]
Memory = tuple[int, int, int]
"""(rank, place, chunk) for buffers, (rank, cell, -1) for scratch."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a place.

    Attributes:
        once: the ranks whose contribution it has, as bits.
        more: those whose contribution it has more than once, as bits.
        order: number of the expression that produced it, with the order of operands.
        tree: number of the same expression with a + b and b + a identified: equal trees give equal bits (except for the
            sign of a zero of min and max, and the bits of a NaN).
        raw: one contribution, not yet reduced or scaled.
        complete: how often a step marked `complete` has been applied.
        step: the (rank, index) of the step that wrote it last; None at the start.
        doubled: the step that first combined a contribution with itself.
    """

    once: int
    more: int
    order: int
    tree: int
    raw: bool
    complete: int
    step: tuple[int, int] | None = None
    doubled: tuple[int, int] | None = None


class _Expressions:
    """Numbers for expressions, equal for equal expressions; those of single contributions come first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: dict[tuple[int, int], int] = {}

    def add(self, left: int, right: int) -> int:
        return self._known.setdefault((left, right), self._size + len(self._known))


def check_contributions(schedule: Schedule, order: list[tuple[int, int]]) -> ProvenOrder:
    """Execute the steps in the given order (any that respects the waits) and check the results of every rank.

    Returns:
        The strongest property of the order of reduction, as in `TopologyInfo`; "none" if two ranks reduce the same
        chunk in different orders. "rank" for collectives that do not reduce.

    Raises:
        VerificationError: a wrong result, or wrong marks for scaling, naming rank, chunk and steps.
    """
    for aliased in aliasings(schedule):
        proven = _Execution(schedule, aliased, order).check()
    return proven


def aliasings(schedule: Schedule) -> tuple[bool, ...]:
    """Whether input and output are one array; a staged call may have one or two."""
    return {Placement.STAGED: (True, False), Placement.INPLACE: (True,)}.get(schedule.placement, (False,))


def memory(rank: int, place: int, chunk: int, aliased: bool) -> Memory:
    """The memory of a place of the tile."""
    if place >= 0:
        return rank, place, -1
    return rank, OUT if aliased else place, chunk


class _Execution:
    def __init__(self, schedule: Schedule, aliased: bool, steps: list[tuple[int, int]]) -> None:
        self.schedule = schedule
        self.steps = steps
        self.collective = COLLECTIVES[schedule.collective]
        self.root = schedule.root or 0
        self.aliased = aliased  # input and output are one array
        self.orders = _Expressions(schedule.size)
        self.trees = _Expressions(schedule.size)
        self.holds: dict[Memory, Content] = {}
        self.messages: dict[tuple[int, int], Content] = {}  # by (rank, index) of the send step
        self.rank_orders: dict[int, int] = {}
        self.expected = [0] * schedule.chunks  # for each chunk, the contributions in its results
        for rank in range(schedule.size):
            for chunk in range(schedule.chunks):
                if self.collective.starts(rank, chunk, schedule.size, self.root):
                    content = Content(1 << rank, 0, rank, rank, raw=True, complete=0)
                    self.holds[memory(rank, IN, chunk, self.aliased)] = content
                    self.expected[chunk] |= 1 << rank

    def check(self) -> ProvenOrder:
        for rank, index in self.steps:
            self.run(rank, index)
        return self.check_results()

    def run(self, rank: int, index: int) -> None:
        step = self.schedule.ranks[rank].steps[index]
        if step.kind == RECV:
            sender = step.sources[0]
            content = self.messages[sender.rank, self.schedule.index(sender.place)]
            self.holds[memory(rank, step.targets[0].place, step.chunk, self.aliased)] = content
            return
        contents = []
        for source in step.sources:
            found = self.holds.get(memory(source.rank, source.place, step.chunk, self.aliased))
            if found is None:
                self.fail(rank, index, f"{place_name(source.rank, source.place)} holds nothing yet")
            if source.initial != (found.raw and self.collective.reduces):
                mark = "marked initial, but not raw" if source.initial else "raw, but not marked initial"
                self.fail(rank, index, f"{place_name(source.rank, source.place)} is {mark}")
            contents.append(found)
        if step.kind == SEND:
            self.messages[rank, index] = contents[0]
            return
        result = self.combine(contents, step, (rank, index))
        for target in step.targets:
            self.holds[memory(target.rank, target.place, step.chunk, self.aliased)] = result

    def combine(self, contents: list[Content], step: Step, me: tuple[int, int]) -> Content:
        first, *others = contents
        once, more, order, tree, complete = first.once, first.more, first.order, first.tree, first.complete
        doubled = first.doubled
        for content in others:
            overlap = once & content.once
            doubled = doubled or content.doubled or (me if overlap else None)
            more |= content.more | overlap
            once |= content.once
            order = self.orders.add(order, content.order)
            tree = self.trees.add(min(tree, content.tree), max(tree, content.tree))
            complete = max(complete, content.complete)
        if step.complete and complete:
            self.fail(*me, "completes what was complete already")
        raw = first.raw and not others and not step.complete
        return Content(once, more, order, tree, raw, complete + step.complete, me, doubled)

    def check_results(self) -> ProvenOrder:
        size = self.schedule.size
        results: list[tuple[int, int, Content]] = []  # (chunk, contributors, content)
        for rank in range(size):
            for chunk in range(self.schedule.chunks):
                if self.collective.ends(rank, chunk, size, self.root):
                    contributors = self.collective.contributors(rank, self.expected[chunk])
                    results.append((chunk, contributors, self.check_result(rank, chunk)))
        if not self.collective.reduces:
            return "rank"
        if all(content.order == self.in_rank_order(contributors) for _, contributors, content in results):
            return "rank"
        trees = {(contributors, content.tree) for _, contributors, content in results}
        if len(trees) == len({contributors for contributors, _ in trees}):
            return "fixed"
        by_chunk = {(chunk, contributors, content.tree) for chunk, contributors, content in results}
        return "chunk" if len(by_chunk) == len({(chunk, which) for chunk, which, _ in by_chunk}) else "none"

    def in_rank_order(self, contributors: int) -> int:
        """The number of the expression that combines the ranks in these bits in rank order."""
        number = self.rank_orders.get(contributors)
        if number is None:
            ranks = [rank for rank in range(contributors.bit_length()) if contributors >> rank & 1]
            number = self.rank_orders[contributors] = functools.reduce(self.orders.add, ranks)
        return number

    def check_result(self, rank: int, chunk: int) -> Content:
        title = f"{self.schedule.title}: rank {rank}, chunk {chunk}"
        content = self.holds.get(memory(rank, OUT, chunk, self.aliased))
        if content is None:
            raise VerificationError(f"{title}: nothing is written to its output")
        expected = self.collective.contributors(rank, self.expected[chunk])
        missing = expected & ~content.once
        faults = [
            f"{verb} the {_contributions(mask)}{twice}"
            for verb, mask, twice in (
                ("lacks", missing, ""),
                ("has", content.once & ~expected, ""),
                ("has", content.more, " twice"),
            )
            if mask
        ]
        if not faults and self.collective.reduces and content.complete != 1:
            faults = ["is never marked complete, so that postscale would be missing"]
        if faults:
            where = f", written by {step_name(self.schedule, *content.step)}" if content.step else ""
            doubled = ""
            if content.doubled:
                same = content.doubled == content.step
                who = ", which" if same else f"; {step_name(self.schedule, *content.doubled)}"
                doubled = f"{who} combines it with itself"
            lost, line = _loss(self.schedule, rank, chunk, missing)
            lines = [line, *(self.schedule.line(*step) for step in (content.step, content.doubled) if step)]
            raise VerificationError(f"{title}: the result {' and '.join(faults)}{where}{doubled}{lost}", lines)
        return content

    def fail(self, rank: int, index: int, what: str) -> NoReturn:
        chunk = self.schedule.ranks[rank].steps[index].chunk
        name = step_name(self.schedule, rank, index)
        lines = [self.schedule.line(rank, index)]
        raise VerificationError(f"{self.schedule.title}: rank {rank}, chunk {chunk}: {name}: {what}", lines)


def _loss(schedule: Schedule, rank: int, chunk: int, missing: int) -> tuple[str, str]:
    """What became of the first contribution that a result lacks, and the statement that lost it, as "FILE:LINE" or "".

    The program is asked, since its statements that no result needs have no steps.
    """
    if not missing or not schedule.topology:
        return "", ""
    one, root = missing & -missing, schedule.root or 0
    starts = COLLECTIVES[schedule.collective].starts
    has = {each for each in range(schedule.size) if one >> each & 1 and starts(each, chunk, schedule.size, root)}
    try:
        program = trace(
            schedule.topology, schedule.collective, schedule.size, schedule.root, schedule.small, hosts=schedule.hosts
        )
    except TopologyError:  # no longer registered
        return "", ""
    for statement in program.statements:
        if statement.chunk == chunk and has:
            given = has.union if has.intersection(statement.sources) else has.difference
            has = given(statement.destinations)
            if not has:
                overwritten = f"its last copy is overwritten at {Path(statement.line).name}"
                return f"; the {_contributions(one)} is lost: {overwritten}", statement.line
    if rank in has:
        return "", ""
    return f"; at the end the {_contributions(one)} is at {_ranks(has)}", ""


def _contributions(mask: int) -> str:
    ranks = [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
    return f"contribution{'s'[: len(ranks) - 1]} of {_ranks(ranks)}"


def _ranks(ranks: Collection[int]) -> str:
    return f"rank{'s'[: len(ranks) - 1]} {', '.join(map(str, sorted(ranks)))}"
