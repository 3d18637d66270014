"""The gradients of a step in one call, for frameworks that compute them together: in a graph, or before an update."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pycollective.engine import Item, Work
from pycollective.errors import MismatchError
from pycollective.hvd import operations
from pycollective.hvd.arguments import Average, Sum, gradient_factors
from pycollective.hvd.basics import engine_of
from pycollective.hvd.gradients.agreement import DENSE, MISSING, SPARSE, STALE, GradientAgreement
from pycollective.hvd.handles import internal_errors
from pycollective.hvd.process_sets import ProcessSet, global_process_set

_numbers: dict[tuple[int, ...] | int | None, Iterator[int]] = defaultdict(itertools.count)
Done = Callable[[BaseException | None], None]
"""Called once: with None, or with the error of an operation."""
Finish = Callable[[Any], None]
"""Takes the result of a work."""


@dataclass(frozen=True)
class Slices:
    """A sparse gradient: rows of a dense one and where they belong; a row may occur more than once.

    As an output, both attributes are functions that take a shape and return the array in which to store the result.

    Attributes:
        values: of shape (n, ...).
        indices: of shape (n,).
    """

    values: Any
    indices: Any


def new_prefix(process_set: ProcessSet) -> str:
    """Make a prefix of the operation names of an optimizer.

    Optimizers may have parameters of the same names; all ranks of a process set create the same optimizers in the same
    order.
    """
    return f"gradient.{next(_numbers[process_set.counted_as])}"


class GradientGroup:
    """Reduces the gradients of one optimizer over all ranks, all of a step in one call.

    Each call first compares which gradients the ranks have, and of which variables: an error names what differs, on
    every rank, instead of a wait for a gradient that will not come. Then the gradients are fused by the engine.
    """

    def __init__(
        self,
        rows: Mapping[str, tuple[Sequence[int], str]],
        op: int = Average,
        predivide: float = 1.0,
        process_set: ProcessSet = global_process_set,
        groups: Sequence[Sequence[str]] = (),
        prefix: str | None = None,
    ) -> None:
        """
        Args:
            rows: name of a variable -> its gradient's shape and element type (as text, the same on all ranks).
            op, predivide: see a DistributedOptimizer.
            groups: names of gradients that are reduced together; all others belong to a further group.
            prefix: of the operation names, see new_prefix.
        """
        self._names = list(rows)
        self._op, self._factors, self._process_set = op, gradient_factors(op, predivide), process_set
        self._prefix = new_prefix(process_set) if prefix is None else prefix
        self._agreement = GradientAgreement(self._prefix, rows, process_set)
        self._group_of = {name: number for number, group in enumerate(groups) for name in group}

    def reduce(self, gradients: Sequence[Any], outputs: Sequence[Any], stale: Sequence[bool] = ()) -> None:
        """Collective: reduce, and return once the outputs have been written.

        Args:
            gradients: in the order of the variables, arrays or Slices; None: this rank has none. Slices of all ranks
                are concatenated, and divided by the number of ranks if the operator is Average.
            outputs: where results are stored, arrays of the gradients' shapes and types; may be the gradients.
            stale: which gradients have not been computed since the last update; the ranks must agree.

        Raises:
            MismatchError: the ranks' variables or gradients differ; on every rank, with the names.
            ValueError: Slices, with another operator than Average or Sum.
            HorovodInternalError: a rank has been lost.
        """
        with internal_errors():
            reached = self._agreement.reach(self._kinds(gradients, stale))
            problem = self._mismatch(reached)
            if problem is not None:
                raise problem
            for work, finish in self._submit(gradients, outputs):
                finish(work.wait())

    def start(self, gradients: Sequence[Any], outputs: Sequence[Any], done: Done) -> None:
        """Start `reduce` without waiting: `done` is called on a thread of the engine, or on this one."""
        try:
            with internal_errors():
                item = self._agreement.announcement(self._kinds(gradients))
                (work,) = engine_of(self._process_set).submit([item])
        except Exception as error:
            done(error)
            return
        work.flush()
        work.when_done(lambda: self._announced(work, item, gradients, outputs, done))

    def _announced(self, work: Work, item: Item, gradients: Sequence[Any], outputs: Sequence[Any], done: Done) -> None:
        try:
            with internal_errors():
                try:
                    work.wait()
                    reached = self._agreement.combined(item)
                except MismatchError:
                    reached = None
                if reached is None or any(map(_is_mixed, reached)):
                    # What differs takes another exchange, for which this thread of the engine must not wait.
                    threading.Thread(target=self._report, args=(reached, done), daemon=True).start()
                    return
                works = self._submit(gradients, outputs)
        except Exception as error:
            done(error)
            return
        when_all_done([work for work, _ in works], lambda error: _finish(works, error, done))

    def _report(self, reached: list[int] | None, done: Done) -> None:
        try:
            with internal_errors():
                problem = self._agreement.parameters_differ() if reached is None else self._mismatch(reached)
        except Exception as error:
            done(error)
        else:
            done(problem)

    def _kinds(self, gradients: Sequence[Any], stale: Sequence[bool] = ()) -> list[int]:
        mine = dict(zip(self._names, map(_kind, gradients), strict=True))
        mine |= {name: STALE for name, is_stale in zip(self._names, stale, strict=False) if is_stale}
        return [mine[name] for name in self._agreement.names]

    def _mismatch(self, reached: Sequence[int]) -> MismatchError | None:
        mixed = [n for n, kind in zip(self._agreement.names, reached, strict=True) if _is_mixed(kind)]
        if not mixed:
            return None
        return self._agreement.kinds_differ(mixed, "all ranks must compute the gradients of the same variables")

    def _submit(self, gradients: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[Work, Finish]]:
        engine, works = engine_of(self._process_set), []
        parts: dict[int, list[tuple[Any, Any, str]]] = defaultdict(list)
        for name, gradient, output in zip(self._names, gradients, outputs, strict=True):
            if isinstance(gradient, Slices):
                works += self._gather(f"{self._prefix}.{name}", gradient, output)
            elif gradient is not None:
                parts[self._group_of.get(name, -1)].append((gradient, output, f"{self._prefix}.{name}"))
        for number in sorted(parts):
            items = operations.reductions(parts[number], self._op, *self._factors)
            works += [(work, _stored_already) for work in engine.submit(items)]
        return works

    def _gather(self, name: str, gradient: Slices, output: Slices) -> list[tuple[Work, Finish]]:
        if self._op not in (Average, Sum):
            raise ValueError(f"the gradient of {name} is sparse: op must be Average or Sum, or sparse_as_dense=True")
        divisor = self._process_set.size() if self._op == Average else None
        items = [
            Item("allgather", f"{name}.values", gradient.values, complete=True),
            Item("allgather", f"{name}.indices", gradient.indices, complete=True),
        ]
        values, indices = engine_of(self._process_set).submit(items)

        def store_values(joined: Any) -> None:
            output.values(joined.shape)[...] = joined if divisor is None else joined / divisor

        def store_indices(joined: Any) -> None:
            output.indices(joined.shape)[...] = joined

        return [(values, store_values), (indices, store_indices)]


def _kind(gradient: Any) -> int:
    return MISSING if gradient is None else SPARSE if isinstance(gradient, Slices) else DENSE


def _is_mixed(kinds: int) -> bool:
    """Return whether the ranks have gradients of more than one kind."""
    return kinds & (kinds - 1) != 0


def _stored_already(result: Any) -> None:
    pass


def _finish(works: Sequence[tuple[Work, Finish]], error: BaseException | None, done: Done) -> None:
    try:
        for work, finish in works if error is None else ():
            finish(work.wait())
    except Exception as found:
        error = found
    done(error)


def when_all_done(works: Sequence[Work], done: Done) -> None:
    """Call `done` once all have completed, with the error of the first that failed.

    They are not held back to be fused with later ones: a graph waits for them.
    """
    left = itertools.count(len(works) - 1, -1)  # next() is atomic: each of the works takes one number

    def one_more() -> None:
        if next(left) > 0:
            return
        try:
            with internal_errors():
                for work in works:
                    work.wait()
        except Exception as error:
            done(error)
        else:
            done(None)

    if not works:
        done(None)
    for work in works:
        work.flush()
        work.when_done(one_more)
