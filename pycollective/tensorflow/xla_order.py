"""The order of the calls in a function that XLA compiles.

XLA chooses in which order operations run that do not depend on each other, and one that waits keeps its thread: ranks
whose operations waited in different orders would wait forever. So a call is two operations, of which only the second
waits. Its level is 0, or one above the highest level of the calls that it depends on. The second operations of a level
depend on all first ones of it. Levels follow from the dependencies alone, so every rank starts the same calls before it
waits for any of them, whatever the order in which it built them or in which XLA runs them.

Loops and branches that contain calls run behind all calls before them, and before all calls behind them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.auto_control_deps import op_is_stateful
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph

_ATTRIBUTE = "_pycollective_order"
_STATEFUL = "stateful operations"


def order_of(graph: tf.Graph) -> CallOrder:
    """The order of the calls in a graph under construction."""
    found = getattr(graph, _ATTRIBUTE, None)
    if found is None:
        found = CallOrder(graph)
        setattr(graph, _ATTRIBUTE, found)  # not in a dict: they refer to each other, and end together
    assert isinstance(found, CallOrder)
    return found


def is_compiled(graph: Any) -> bool:
    """Return whether the graph will be compiled by XLA."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


@dataclass
class _Level:
    last: tf.Tensor
    """The ticket of the call that was built last, which depends on those of the others."""
    all_started: tf.Tensor
    """Ticket of all calls: an operation whose input is replaced whenever a call is added."""


class CallOrder:
    """See the module."""

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph
        self._levels: list[_Level] = []
        self._lowest = 0  # of calls to come: higher than those before the last loop
        self._completed: list[tf.Tensor] = []  # a result of each call
        self._level_of: dict[str, int] = {}  # of operations by name, where it is not 0
        self._level_of_state: dict[str, int] = {}  # of resources by the names of their tensors
        self._visited = 0  # the number of operations
        self._has_inner = False  # calls in a graph whose loop or branch has not been visited
        self._behind: list[tf.Tensor] = []  # results of loops and branches: the next level depends on them
        outer = getattr(graph, "outer_graph", None)
        if isinstance(outer, FuncGraph) and is_compiled(outer):
            before = order_of(outer).before_inner()
            if isinstance(graph, ControlFlowFuncGraph):  # those of a tf.function may be called from elsewhere
                self._behind += before

    def level_for(self, inputs: Sequence[tf.Tensor]) -> int:
        """The level of a call to be built with these inputs, under the present tf.control_dependencies."""
        self._visit()
        operations = {x.op for x in inputs if getattr(x, "graph", None) is self._graph}
        operations |= self._graph._current_control_dependencies()  # noqa: SLF001 (there is no public way)
        return max(self._lowest, self._highest(operations))

    def tickets_before(self, level: int) -> list[tf.Tensor]:
        """What the first operation of a call depends on, behind its inputs; the first one is a ticket."""
        if level < len(self._levels):
            return [self._levels[level].last]
        ticket = self._levels[-1].last if self._levels else tf.zeros([2], tf.int64)
        behind, self._behind = self._behind, []
        return [ticket, *behind]

    def started(self, level: int, ticket: tf.Tensor) -> tf.Tensor:
        """Adds the first operation of a call, which returned this ticket; returns what its second one depends on."""
        if level == len(self._levels):
            self._levels.append(_Level(ticket, tf.identity(ticket)))
        else:
            self._levels[level].last = ticket
            self._levels[level].all_started.op._update_input(0, ticket)  # noqa: SLF001 (as above)
        return self._levels[level].all_started

    def completed(self, level: int, result: tf.Tensor) -> None:
        """Adds the second operation of a call, by one of its results."""
        self._level_of[result.op.name] = level + 1
        self._completed.append(result)

    def before_inner(self) -> list[tf.Tensor]:
        """What a graph that is built inside of this one depends on."""
        self._visit()
        self._has_inner = True
        return [*self._behind, *self._all_completed()]

    def _all_completed(self) -> list[tf.Tensor]:
        if not self._completed:
            return []
        with self._graph.as_default():
            return [tf.stack(self._completed)]

    def _visit(self) -> None:
        operations = self._graph.get_operations()
        for operation in operations[self._visited :]:
            if operation.name not in self._level_of:
                self._visit_one(operation)
        self._visited = len(operations)
        self._has_inner = False

    def _visit_one(self, operation: tf.Operation) -> None:
        """Its level is that of what it reads, also of variables: tf.function adds control dependencies for those."""
        states = [x.name for x in operation.inputs if x.dtype == tf.resource]
        if op_is_stateful(operation) and not states:
            states = [_STATEFUL]
        level = self._highest([*(x.op for x in operation.inputs), *operation.control_inputs])
        level = max([level, *(self._level_of_state.get(state, 0) for state in states)])
        if level:
            self._level_of[operation.name] = level
            self._level_of_state.update(dict.fromkeys(states, level))
        if self._has_inner and any("func" in attribute.type for attribute in operation.op_def.attr):
            self._lowest = len(self._levels)
            self._behind = [*operation.outputs[:1], *self._all_completed()]

    def _highest(self, operations: Iterable[tf.Operation]) -> int:
        return max((self._level_of.get(operation.name, 0) for operation in operations), default=0)
