"""The engine's `Item`s for arrays and arguments, for all frameworks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pycollective import checks
from pycollective.engine import Item
from pycollective.hvd import basics
from pycollective.hvd.arguments import Adasum, factor, operator_name
from pycollective.hvd.process_sets import ProcessSet


def reduction(x: Any, out: Any, label: str, op: int, prescale: Any, postscale: Any) -> Item:
    """An allreduce, or Adasum.

    Raises:
        ValueError: not an operator, or Adasum with a factor.
    """
    collective, name, before, after = _operation(op, prescale, postscale)
    return Item(collective, label, x, out, name, -1, None, before, after)


def reductions(parts: Iterable[tuple[Any, Any, str]], op: int, prescale: Any, postscale: Any) -> list[Item]:
    """Make the items of several reductions of one operator, each given by its input, output and name."""
    collective, name, before, after = _operation(op, prescale, postscale)
    return [Item(collective, label, x, out, name, -1, None, before, after) for x, out, label in parts]


def _operation(op: int, prescale: Any, postscale: Any) -> tuple[str, str, float, float]:
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
    engine = basics.engine_of(process_set)
    ranks = process_set.ranks or []
    if type(root_rank) is not int:
        root_rank = checks.integer(root_rank, "root_rank")
    if root_rank not in ranks:
        raise ValueError(f"root_rank {root_rank} is not one of the ranks {ranks}")
    root = ranks.index(root_rank)
    return Item("broadcast", label, x if engine.rank == root else out, out, root=root)
