"""An exhaustive checker of litmus tests under the memory model of PTX ISA 7.5 (generic proxy, straight-line code).

D. Lustig, S. Sahasrabuddhe, O. Giroux, "A Formal Analysis of the NVIDIA PTX Memory Consistency Model", ASPLOS 2019,
https://doi.org/10.1145/3297858.3304043; names of relations as in the chapter "Memory Consistency Model" of
https://docs.nvidia.com/cuda/parallel-thread-execution. Fences and atomicity are left out: our kernels have no fences
and no atomic operations on data.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

Relation = frozenset[tuple[int, int]]
ReadsFrom = Mapping[str, str | None]
"""The label of the store that each load reads, by the load's label; None: the initial value."""


@dataclass(frozen=True)
class Thread:
    """A thread's position and its operations.

    Attributes:
        gpu, block: numbers.
        code: operations, "KIND.SEMANTICS.SCOPE LOCATION=LABEL": ld and st (weak, relaxed, acquire, release; cta, gpu,
            sys), "bar NUMBER". Labels are needed by the outcome only. A load with "poll." before it decides whether
            later operations run at all.
    """

    gpu: int
    block: int
    code: Sequence[str]


@dataclass(frozen=True)
class Operation:
    """An operation of a thread, with its position and parts; see Thread."""

    thread: int
    gpu: int
    block: int
    kind: str
    semantics: str
    scope: str
    location: str
    label: str
    polls: bool

    @classmethod
    def read(cls, number: int, thread: Thread, text: str) -> Operation:
        """Parse an operation of a thread's code."""
        instruction, _, operand = text.partition(" ")
        location, _, label = operand.partition("=")
        polls = instruction.startswith("poll.")
        kind, *rest = instruction.removeprefix("poll.").split(".")
        semantics, scope = (*rest, "", "")[:2]
        return cls(number, thread.gpu, thread.block, kind, semantics, scope, location, label, polls)

    @property
    def on_memory(self) -> bool:
        return self.kind in ("ld", "st")

    @property
    def strong(self) -> bool:
        return self.on_memory and self.semantics != "weak"

    def includes(self, other: Operation) -> bool:
        """Return whether its scope includes the thread of another one."""
        if self.scope == "cta":
            return (self.gpu, self.block) == (other.gpu, other.block)
        return self.scope == "sys" or (self.scope == "gpu" and self.gpu == other.gpu)


def _compose(one: Iterable[tuple[int, int]], other: Iterable[tuple[int, int]]) -> Relation:
    after: dict[int, list[int]] = {}
    for a, b in other:
        after.setdefault(a, []).append(b)
    return frozenset((a, c) for a, b in one for c in after.get(b, ()))


def _closure(relation: Iterable[tuple[int, int]]) -> Relation:
    closed = frozenset(relation)
    while (more := closed | _compose(closed, closed)) != closed:
        closed = more
    return closed


class Litmus:
    """The relations of a litmus test that do not depend on an execution."""

    def __init__(self, threads: Sequence[Thread]) -> None:
        self.operations = [
            Operation.read(number, thread, text) for number, thread in enumerate(threads) for text in thread.code
        ]
        self.numbers = range(len(self.operations))
        self.loads = [i for i in self.numbers if self.operations[i].kind == "ld"]
        self.stores = [i for i in self.numbers if self.operations[i].kind == "st"]
        self.identity = frozenset((i, i) for i in self.numbers)

    def _pairs(self, related: Callable[[Operation, Operation], bool]) -> Relation:
        of = self.operations
        return frozenset((a, b) for a in self.numbers for b in self.numbers if a != b and related(of[a], of[b]))

    @cached_property
    def program_order(self) -> Relation:
        return frozenset((a, b) for a, b in self._pairs(lambda a, b: a.thread == b.thread) if a < b)

    @cached_property
    def overlapping(self) -> Relation:
        return self._pairs(lambda a, b: a.on_memory and b.on_memory and a.location == b.location)

    @cached_property
    def morally_strong(self) -> Relation:
        either = self.program_order | frozenset((b, a) for a, b in self.program_order)
        either |= self._pairs(lambda a, b: a.strong and b.strong and a.includes(b) and b.includes(a))
        of = self.operations
        return frozenset(
            (a, b) for a, b in either if (a, b) in self.overlapping or not (of[a].on_memory and of[b].on_memory)
        )

    @cached_property
    def barriers(self) -> Relation:
        """Arrivals at the same barrier of the same block."""
        return self._pairs(
            lambda a, b: a.kind == b.kind == "bar" and (a.gpu, a.block, a.location) == (b.gpu, b.block, b.location)
        )

    def _those(self, *kinds: str) -> Relation:
        found = (i for i in self.numbers if f"{self.operations[i].kind}.{self.operations[i].semantics}" in kinds)
        return frozenset((i, i) for i in found)

    @cached_property
    def releases(self) -> Relation:
        """From the first operation of each release pattern to its store."""
        strong = self._those("st.relaxed", "st.release")
        same = self.identity | (self.program_order & self.overlapping)
        return _compose(_compose(self._those("st.release"), same), strong)

    @cached_property
    def acquires(self) -> Relation:
        """From the load of each acquire pattern to its last operation."""
        strong = self._those("ld.relaxed", "ld.acquire")
        same = self.identity | (self.program_order & self.overlapping)
        return _compose(_compose(strong, same), self._those("ld.acquire"))

    @cached_property
    def depends(self) -> Relation:
        """From loads that are polled to what runs only because of what they have read."""
        return frozenset((a, b) for a, b in self.program_order if self.operations[a].polls)

    def executions(self) -> Iterator[dict[int, int | None]]:
        """All ways in which loads may read: the store, or None for the initial value, by load."""
        sources = [
            [None, *(store for store in self.stores if (store, load) in self.overlapping)] for load in self.loads
        ]
        for chosen in itertools.product(*sources):
            yield dict(zip(self.loads, chosen, strict=True))

    def coherence_orders(self) -> Iterator[Relation]:
        """All partial orders of stores to the same location."""
        pairs = [(a, b) for a, b in itertools.combinations(self.stores, 2) if (a, b) in self.overlapping]
        for ways in itertools.product((None, False, True), repeat=len(pairs)):
            order = _closure(
                (b, a) if way else (a, b) for (a, b), way in zip(pairs, ways, strict=True) if way is not None
            )
            if not order & self.identity:
                yield order


def reachable(threads: Sequence[Thread], outcome: Callable[[ReadsFrom], bool]) -> bool:
    """Return whether the model allows an execution with this outcome.

    Args:
        outcome: is told which store each labelled load reads, and returns whether that is the outcome in question.
    """
    test = Litmus(threads)
    label = {i: operation.label for i, operation in enumerate(test.operations)}
    for source in test.executions():
        named = {label[load]: None if store is None else label[store] for load, store in source.items()}
        if outcome(named) and any(_consistent(test, source, order) for order in test.coherence_orders()):
            return True
    return False


def _consistent(test: Litmus, source: Mapping[int, int | None], coherence: Relation) -> bool:
    reads = frozenset((store, load) for load, store in source.items() if store is not None)
    if _closure(reads | test.depends) & test.identity:  # out of thin air
        return False
    observation = test.morally_strong & reads
    patterns = _compose(_compose(test.releases, observation), test.acquires)
    synchronizes = patterns & test.morally_strong
    base = _closure(test.program_order | synchronizes | test.barriers)
    causality = base | _compose(observation, base)
    stores = {(a, b) for a in test.stores for b in test.stores if (a, b) in test.overlapping}
    if not stores & causality <= coherence:
        return False
    if any((a, b) not in coherence and (b, a) not in coherence for a, b in stores & test.morally_strong):
        return False
    before = frozenset(
        (load, store)
        for load, read in source.items()
        for store in test.stores
        if (load, store) in test.overlapping and read != store and (read is None or (read, store) in coherence)
    )
    return not _compose(reads | before, causality) & test.identity
