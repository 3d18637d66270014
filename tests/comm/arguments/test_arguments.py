"""Invalid calls raise before anything is sent: the communicator remains usable."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calls import ROOTED, on_each_rank

from pycollective import Communicator, CommunicatorError, TopologyError, local_world
from pycollective.schedule import topology

X = np.arange(12.0)


def read_only() -> Any:
    array = np.zeros(12)
    array.flags.writeable = False
    return array


Attempt = Callable[[Any], Any]
WRONG: dict[str, tuple[Attempt, type[Exception] | tuple[type[Exception], ...], str]] = {
    "read-only out": (lambda comm: comm.allreduce(X, out=read_only()), ValueError, "out is read-only"),
    "strided out": (lambda comm: comm.allreduce(X, out=np.zeros(24)[::2]), ValueError, "out is not C-contiguous"),
    "Fortran out": (
        lambda comm: comm.allreduce(X.reshape(3, 4), out=np.zeros((3, 4), order="F")), ValueError, "not C-contiguous",
    ),
    "out of another type": (
        lambda comm: comm.allreduce(X, out=np.zeros(12, "f4")), TypeError, "x is float64 but out is float32",
    ),
    "out too small": (lambda comm: comm.allreduce(X, out=np.zeros(11)), ValueError, "out has 11 elements.* needs 12"),
    "out too large": (lambda comm: comm.allgather(X, out=np.zeros(99)), ValueError, "out has 99 elements.* needs 24"),
    "out no array": (lambda comm: comm.allreduce(X, out=[0.0] * 12), TypeError, "out is no array: list"),
    "x no array": (lambda comm: comm.allreduce("text"), TypeError, "x is no array|element type"),
    "no x": (lambda comm: comm.allreduce(None), TypeError, "x is"),
    "objects": (lambda comm: comm.allreduce(np.array([X, 1], object)), TypeError, "element type object"),
    "wider complex": (lambda comm: comm.allreduce(X.astype("G")), TypeError, "element type complex256"),
    "order of complex": (lambda comm: comm.allreduce(X.astype("c16"), op="min"), TypeError, "not take complex128"),
    "other byte order": (lambda comm: comm.allreduce(X.astype(">f8")), TypeError, "element type >f8"),
    "operator": (lambda comm: comm.allreduce(X, op="plus"), ValueError, r"is called 'plus' \(there are sum"),
    "other case": (lambda comm: comm.allreduce(X, op="SUM"), ValueError, "did you mean sum"),
    "name of NumPy": (lambda comm: comm.allreduce(X, op="mean"), ValueError, "did you mean avg"),
    "name of MPI": (lambda comm: comm.Bcast(X), AttributeError, "no attribute 'Bcast'; did you mean broadcast"),
    "name of torch": (lambda comm: comm.all_reduce(X), AttributeError, "did you mean allreduce"),
    "property of MPI": (lambda comm: comm.Get_rank(), AttributeError, "did you mean rank"),
    "operator's type": (lambda comm: comm.allreduce(X, op="band"), TypeError, "operator band does not take float64"),
    "unknown topology": (lambda comm: comm.allreduce(X, topology="rign"), TopologyError, "did you mean ring"),
    "far topology": (lambda comm: comm.barrier(topology="zzzz"), TopologyError, "halving_doubling, hierarchical"),
    "topology's parameter": (
        lambda comm: comm.allreduce(X, topology="wheel(nave=1)"), TopologyError, "wheel has the parameters: hub",
    ),
    "topology without it": (lambda comm: comm.alltoall(X, topology="ring"), TopologyError, "no alltoall; try direct"),
    "no topology": (lambda comm: comm.allreduce(X, topology=3), TopologyError, "int is not a topology"),
    "stream": (lambda comm: comm.allreduce(X, stream=0), ValueError, "stream is for GPU arrays"),
    "keyword": (lambda comm: comm.reduce(X, tolopogy="ring"), TypeError, "tolopogy"),
    "keyword of allreduce": (lambda comm: comm.allreduce(X, tolopogy="ring"), TypeError, "tolopogy"),
    "too many": (lambda comm: comm.allreduce(X, X, "sum"), TypeError, "positional"),
    "scaling of a broadcast": (lambda comm: comm.broadcast(X, prescale=2.0), TypeError, "prescale"),
    "scaling of bits": (lambda comm: comm.allreduce(np.ones(3, int), op="bor", prescale=2.0), TypeError, "prescale"),
    "scale no number": (lambda comm: comm.allreduce(X, prescale="2x"), (TypeError, ValueError), "2x|number"),
    "alltoall in place": (lambda comm: (lambda x: comm.alltoall(x, out=x))(X.copy()), ValueError, "in place"),
    "scatter without x": (lambda comm: comm.scatter(None, comm.rank), TypeError, "scatter needs x at the root"),
    "send to itself": (lambda comm: comm.send(X, comm.rank), ValueError, "dest . is this rank itself, not another"),
    "send to no rank": (lambda comm: comm.send(X, 2), ValueError, "2 is not another rank"),
    "receive from no rank": (lambda comm: comm.recv(X.copy(), -1), ValueError, "-1 is not another rank"),
    "receive into read-only": (lambda comm: comm.recv(read_only(), 1 - comm.rank), ValueError, "read-only"),
    "receive into strided": (lambda comm: comm.recv(np.zeros(24)[::2], 1 - comm.rank), ValueError, "contiguous"),
    "color": (lambda comm: comm.split("blue"), (TypeError, ValueError), "blue|int"),
    "group twice": (lambda comm: comm.group([0, 0]), ValueError, r"\[0, 0\] are not different ranks"),
    "group of others": (lambda comm: comm.group([0, 7]), ValueError, "not different ranks of a communicator of 2"),
    "empty of no type": (lambda comm: comm.empty(3, "G"), TypeError, "complex256"),
    "empty of a huge number": (lambda comm: comm.empty(3, 10**5000), TypeError, "dtype must be an element type"),
    "color between": (lambda comm: comm.split(1.5), TypeError, "float"),
    "empty negative": (lambda comm: comm.empty(-3), ValueError, "-3"),
    "empty too large": (lambda comm: comm.empty(1 << 60), CommunicatorError, "more than can be mapped"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("nonblocking", [False, True])
@on_each_rank(2)
def test_before_sending(comm: Communicator, name: str, nonblocking: bool) -> None:
    attempt, error, reason = WRONG[name]
    caller: Any = Nonblocking(comm) if nonblocking else comm
    with pytest.raises(error, match=reason):
        attempt(caller)
    assert comm.allreduce(X)[5] == 10


class Nonblocking:
    """A communicator whose collectives are the nonblocking forms, followed by a wait."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        form = getattr(self._comm, f"i{name}", None)
        return getattr(self._comm, name) if form is None else lambda *args, **more: form(*args, **more).result(20)


@pytest.mark.parametrize("collective", ROOTED)
@pytest.mark.parametrize("root", [-1, 2, 100])
@on_each_rank(2)
def test_roots_out_of_range(comm: Communicator, collective: str, root: int) -> None:
    with pytest.raises(ValueError, match=f"root {root} is not a rank of this communicator of 2"):
        getattr(comm, collective)(X, root)
    for wrong in ("0", 1.0):
        with pytest.raises(TypeError):
            getattr(comm, collective)(X, wrong)
    getattr(comm, collective)(X, np.int64(1))


@pytest.mark.parametrize("where", ["plain", "window"])
@on_each_rank(2)
def test_overlaps_that_are_not_in_place(comm: Communicator, where: str) -> None:
    memory = comm.empty(9000) if where == "window" else np.zeros(9000)
    memory[:] = 1
    for shift in (1, 7, 100):
        x, out = memory[:4000], memory[shift : 4000 + shift]
        for first, second in ((x, out), (out, x)):
            with pytest.raises(ValueError, match="overlap without being in place"):
                comm.allreduce(first, out=second)
    for wrong in ((1000 * (1 - comm.rank)), 500):
        with pytest.raises(ValueError, match="overlap without being in place"):
            comm.allgather(memory[wrong : wrong + 1000], out=memory[:2000])
        with pytest.raises(ValueError, match="overlap without being in place"):
            comm.reduce_scatter(memory[:2000], out=memory[wrong : wrong + 1000])
    memory[:1000] = comm.rank  # a broadcast that is not refused would be visible
    with pytest.raises(ValueError, match="overlap without being in place"):
        comm.broadcast(memory[:4000], comm.rank, memory[500:4500])
    assert (memory[:1000] == comm.rank).all()
    assert (memory[1000:] == 1).all()
    assert comm.allreduce(memory[:4000], out=memory[4000:8000])[1000] == 2


@on_each_rank(2)
def test_arguments_by_name(comm: Communicator) -> None:
    out, name = np.empty(3), "".join(["o", "ut"])  # a string that is not interned
    assert comm.allreduce(x=np.ones(3), **{name: out}, op="max") is out
    assert comm.iallreduce([3], **{"".join(["o", "p"]): "max"}).result(20) == 3
    assert comm.broadcast(root=1, x=np.full(3, comm.rank))[0] == 1
    assert comm.mix(np.ones(3), step=0, graph=lambda rank, size, step: {rank: 1.0})[0] == 1
    with pytest.raises(TypeError, match="multiple values for argument 'out'"):
        comm.allreduce(np.ones(3), out, **{name: out})


@pytest.mark.parametrize("x", [np.ones(3), [1.0] * 3], ids=["array", "list"])
@on_each_rank(2)
def test_out_is_not_used_where_there_is_no_result(comm: Communicator, x: Any) -> None:
    for call in (comm.reduce, comm.gather):
        assert (call(x, 0, None if comm.rank == 0 else "anything") is None) == (comm.rank > 0)  # type: ignore[operator]


@on_each_rank(2)
def test_calls_on_a_freed_communicator(comm: Communicator) -> None:
    other = comm.dup()
    comm.barrier()
    comm.free()
    comm.free()
    for later in (lambda: comm.allreduce(X), lambda: comm.barrier(), lambda: comm.iallreduce(X), lambda: comm.dup(),
                  lambda: comm.empty(3), lambda: comm.send(X, 1 - comm.rank), lambda: comm.shrink(1)):  # fmt: skip
        with pytest.raises(CommunicatorError, match="freed"):
            later()
    other.barrier()


def test_threads_of_one_process_compile_once() -> None:
    programs = []

    @topology("core_test_compiled_once")
    class Slow:
        """Yields to the other threads while it is traced."""

        def allreduce(self, p: Any) -> None:
            programs.append(p)
            time.sleep(0.02)
            for c in p.chunks(1):
                p[p.ranks, c] = p.sum(p[q, c] for q in p.ranks)

    def body(comm: Communicator) -> None:
        assert (comm.allreduce(X, topology="core_test_compiled_once") == 4 * X).all()

    local_world(4).run(body)
    assert len(programs) == 1


@on_each_rank(2)
def test_errors_have_the_name_of_the_call(comm: Communicator) -> None:
    for form in (comm.allreduce, comm.reduce):
        with pytest.raises(TypeError) as caught:
            form(X, op="band", name="gradients")
        assert not hasattr(Exception, "add_note") or any("'gradients'" in note for note in caught.value.__notes__)


def test_signatures_can_be_read() -> None:
    for name in ("allreduce", "broadcast", "iallreduce"):
        assert "x" in inspect.signature(getattr(Communicator, name)).parameters
    assert str(inspect.signature(Communicator.allreduce)).startswith(
        "(self, /, x, out=None, *, op='sum', topology=None"
    )
