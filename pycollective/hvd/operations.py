"""Horovod's operations: what each submits to the engine for given arrays, and its gradient, for all frameworks.

A framework reads its tensors as arrays, makes the arrays of results, and turns them into tensors again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from pycollective import checks
from pycollective.engine import Item
from pycollective.hvd import basics, handles
from pycollective.hvd.arguments import OPS, Adasum, Average, Sum, factor, op_number, operator_name
from pycollective.hvd.process_sets import ProcessSet

Output = Callable[[int, Sequence[int]], Any]
"""Makes the array of a result whose shape is known before: its index and shape."""


class Differentiable(Protocol):
    """A framework's calls of operations, in whose terms gradients are defined."""

    def run(self, operation: HorovodOperation, tensors: Sequence[Any], process_set: ProcessSet) -> Sequence[Any]:
        """The results of an operation; differentiable."""
        ...

    def own_rows(self, joined: Any, like: Any, process_set: ProcessSet) -> Any:
        """This rank's rows of a gradient of an allgather; `like`: its input."""
        ...


class HorovodOperation:
    """A collective on several arrays, of one name on all ranks.

    Attributes:
        kind: the first part of its name.
        late: the shapes of the results are unknown before, so that they are not written to `output`.
    """

    __slots__ = ()
    kind: ClassVar[str]
    late: ClassVar[bool] = False

    def require(self, process_set: ProcessSet) -> None:
        """
        Raises:
            ValueError, TypeError: invalid arguments.
        """

    def items(self, label: str, process_set: ProcessSet, inputs: Sequence[Any], output: Output) -> list[Item]:
        """The items to submit.

        Raises: as `require`, and ValueError: an input does not fit.
        """
        raise NotImplementedError

    def results(self, found: list[Any]) -> Sequence[Any]:
        """The results of the operation from those of its items."""
        return found

    def gradient(
        self,
        framework: Differentiable,
        process_set: ProcessSet,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        gradients: Sequence[Any],
    ) -> Sequence[Any]:
        """The gradients of the inputs from those of the results, as Horovod defines them."""
        raise NotImplementedError


@dataclass(slots=True)
class Allreduce(HorovodOperation):
    """The reduction over all ranks. Its gradient is the same reduction of the gradients."""

    op: int = Average
    prescale: Any = 1.0
    postscale: Any = 1.0
    kind = "allreduce"

    def require(self, process_set: ProcessSet) -> None:
        _reduction(self.op, self.prescale, self.postscale)

    def items(self, label: str, process_set: ProcessSet, inputs: Sequence[Any], output: Output) -> list[Item]:
        parts = [(x, output(i, x.shape), name) for i, (x, name) in enumerate(_labelled(inputs, label))]
        return reductions(parts, self.op, self.prescale, self.postscale)

    def gradient(
        self, framework: Differentiable, process_set: ProcessSet, inputs: Any, outputs: Any, gradients: Sequence[Any]
    ) -> Sequence[Any]:
        return framework.run(self, gradients, process_set)


@dataclass(slots=True)
class Allgather(HorovodOperation):
    """All ranks' rows. Its gradient is the mean of the ranks' gradients for this rank's rows.

    Attributes:
        complete: fail if a rank has joined, instead of omitting its rows.
    """

    complete: bool = True
    kind = "allgather"
    late = True

    def items(self, label: str, process_set: ProcessSet, inputs: Sequence[Any], output: Output) -> list[Item]:
        return [
            Item("allgather", name, x if x.ndim else x.reshape(1), complete=self.complete)
            for x, name in _labelled(inputs, label)
        ]

    def gradient(
        self, framework: Differentiable, process_set: ProcessSet, inputs: Any, outputs: Any, gradients: Sequence[Any]
    ) -> Sequence[Any]:
        averaged = framework.run(Allreduce(), gradients, process_set)
        return [framework.own_rows(one, x, process_set) for one, x in zip(averaged, inputs, strict=True)]


@dataclass(slots=True)
class Broadcast(HorovodOperation):
    """The tensors of `root_rank`, a rank among all. Their gradients are the means of the ranks' there, 0 elsewhere."""

    root_rank: Any
    kind = "broadcast"

    def require(self, process_set: ProcessSet) -> None:
        _root(self.root_rank, process_set)

    def items(self, label: str, process_set: ProcessSet, inputs: Sequence[Any], output: Output) -> list[Item]:
        return [
            broadcast(x, output(i, x.shape), self.root_rank, name, process_set)
            for i, (x, name) in enumerate(_labelled(inputs, label))
        ]

    def gradient(
        self, framework: Differentiable, process_set: ProcessSet, inputs: Any, outputs: Any, gradients: Sequence[Any]
    ) -> Sequence[Any]:
        averaged = framework.run(Allreduce(), gradients, process_set)
        return averaged if basics.rank() == self.root_rank else [one * 0 for one in averaged]


@dataclass(slots=True)
class Alltoall(HorovodOperation):
    """Rows for and from every rank; the gradient takes them back.

    Results: rows, and how many came from each rank.

    Attributes:
        splits: how many rows go to each rank, unless they are a second input; None: the same number to all.
        splits_dtype: NumPy's, of the second result.
    """

    splits: Any = None
    splits_dtype: Any = np.int32
    kind = "alltoall"
    late = True

    def items(self, label: str, process_set: ProcessSet, inputs: Sequence[Any], output: Output) -> list[Item]:
        splits = self.splits if len(inputs) == 1 else inputs[1]
        return [Item("alltoall", label, inputs[0], splits=None if splits is None else _integers(splits))]

    def results(self, found: list[Any]) -> Sequence[Any]:
        rows, received = found[0]
        return rows, np.array(received, self.splits_dtype)

    def gradient(
        self, framework: Differentiable, process_set: ProcessSet, inputs: Any, outputs: Any, gradients: Sequence[Any]
    ) -> Sequence[Any]:
        back, _ = framework.run(Alltoall(None, self.splits_dtype), [gradients[0], outputs[1]], process_set)
        return [back, None][: len(inputs)]


@dataclass(slots=True)
class ReduceScatter(HorovodOperation):
    """This rank's rows of the reductions, Average or Sum; the first ranks have one more if they do not divide evenly.

    The gradients are all ranks' concatenated, times the number of ranks for Sum.
    """

    op: int = Average
    prescale: Any = 1.0
    postscale: Any = 1.0
    kind = "reducescatter"
    late = True

    def require(self, process_set: ProcessSet) -> None:
        """
        Raises: as the others, and NotImplementedError: another operator.
        """
        self._factors()
        if op_number(self.op) not in (Average, Sum):
            raise NotImplementedError(f"reducescatter takes op=Average and op=Sum, not {self.op!r}")

    def items(self, label: str, process_set: ProcessSet, inputs: Sequence[Any], output: Output) -> list[Item]:
        self.require(process_set)
        if not all(x.ndim for x in inputs):
            raise ValueError("reducescatter needs a tensor with an axis to cut")
        prescale, postscale = self._factors()
        return [
            Item("reducescatter", name, x, op=OPS[self.op], prescale=prescale, postscale=postscale)
            for x, name in _labelled(inputs, label)
        ]

    def gradient(
        self, framework: Differentiable, process_set: ProcessSet, inputs: Any, outputs: Any, gradients: Sequence[Any]
    ) -> Sequence[Any]:
        prescale, postscale = self._factors()
        scale = prescale * postscale * (process_set.size() or 1 if self.op == Sum else 1)
        return framework.run(Allgather(), [gradient * scale for gradient in gradients], process_set)

    def _factors(self) -> tuple[float, float]:
        return factor(self.prescale, "prescale_factor"), factor(self.postscale, "postscale_factor")


class Barrier(HorovodOperation):
    """No inputs; the result is a scalar 0, as graphs need one."""

    kind = "barrier"

    def items(self, label: str, process_set: ProcessSet, inputs: Sequence[Any], output: Output) -> list[Item]:
        output(0, ())[...] = 0
        return [Item("barrier", label)]


class Join(HorovodOperation):
    """No inputs; the result is the rank that joined last."""

    kind = "join"
    late = True

    def items(self, label: str, process_set: ProcessSet, inputs: Sequence[Any], output: Output) -> list[Item]:
        return [Item("join", "pycollective.join")]

    def results(self, found: list[Any]) -> Sequence[Any]:
        handles.all_joined()
        return [np.int32(found[0])]


def _integers(splits: Any) -> list[int]:
    """
    Raises:
        TypeError: not integers, or ValueError, Horovod's class for them, if they are a tensor.
    """
    listed = splits.tolist() if hasattr(splits, "tolist") else splits
    try:
        return checks.integers(listed, "splits", 0)
    except TypeError as error:
        if listed is splits:
            raise
        raise ValueError(str(error)) from None


def _labelled(inputs: Sequence[Any], label: str) -> Iterable[tuple[Any, str]]:
    """The inputs and their names; that of a single one is not numbered."""
    return [(inputs[0], label)] if len(inputs) == 1 else [(x, f"{label}.{i}") for i, x in enumerate(inputs)]


def reduction(x: Any, out: Any, label: str, op: int, prescale: Any, postscale: Any) -> Item:
    """An allreduce, or Adasum.

    Raises:
        ValueError: not an operator, or Adasum with a factor.
    """
    return reductions([(x, out, label)], op, prescale, postscale)[0]


def reductions(parts: Iterable[tuple[Any, Any, str]], op: int, prescale: Any, postscale: Any) -> list[Item]:
    """Make the items of several reductions of one operator, each given by its input, output and name."""
    collective, name, before, after = _reduction(op, prescale, postscale)
    return [Item(collective, label, x, out, name, -1, None, before, after) for x, out, label in parts]


def _reduction(op: int, prescale: Any, postscale: Any) -> tuple[str, str, float, float]:
    """The collective, its operator and its factors, checked."""
    prescale, postscale = factor(prescale, "prescale_factor"), factor(postscale, "postscale_factor")
    if op != Adasum:
        return "allreduce", operator_name(op), prescale, postscale
    if prescale != 1.0 or postscale != 1.0:
        raise ValueError("Adasum takes no prescale_factor or postscale_factor")
    return "adasum", "sum", 1.0, 1.0


def broadcast(x: Any, out: Any, root_rank: int, label: str, process_set: ProcessSet) -> Item:
    """A broadcast; `root_rank` is a global rank, even with a process set.

    Raises:
        ValueError: the root is not in the set.
    """
    root = _root(root_rank, process_set)
    return Item("broadcast", label, x if process_set.rank() == root else out, out, root=root)


def _root(root_rank: Any, process_set: ProcessSet) -> int:
    """The rank in the set of a global rank."""
    basics.engine_of(process_set)  # initialized, and the set is registered
    ranks = process_set.ranks or []
    if type(root_rank) is not int:
        root_rank = checks.integer(root_rank, "root_rank")
    if root_rank not in ranks:
        raise ValueError(f"root_rank {root_rank} is not one of the ranks {ranks}")
    return ranks.index(root_rank)
