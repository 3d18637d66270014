"""The engine releases what it rejects; factors may have any bits, including NaN."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from speed import until

from engine.operations import SECONDS, every_engine, on_engines, ones
from pycollective import MismatchError
from pycollective.comm.planner import Planner
from pycollective.engine import Engine, Item, Settings

NAN = float("nan")


class WrongShape:
    """An array that reports another shape than it exports."""

    shape = (1 << 20,)

    def __init__(self) -> None:
        self.inner = np.ones(3)

    def __dlpack__(self, **options: Any) -> Any:
        return self.inner.__dlpack__(**options)


def moved(collective: str, x: Any, out: Any = None, **options: Any) -> Item:
    return Item(collective, "y", x, out, **options)


def frozen() -> Any:
    x = np.zeros(3)
    x.flags.writeable = False
    return x


REFUSED: dict[str, tuple[str, Callable[[], Item]]] = {
    "a name given twice": ("'x'", lambda: ones("x", out=np.ones(3))),
    "a name in flight": ("'in flight'", lambda: ones("in flight", out=np.ones(3))),
    "no name": ("name is a str, not int", lambda: ones(7)),  # type: ignore[arg-type]
    "an operator that does not take the type": ("band", lambda: ones("y", op="band")),
    "an operator of shares without the type": ("band", lambda: moved("reducescatter", np.ones(3), op="band")),
    "factors that the operator does not take": ("prescale", lambda: ones("y", op="lor", prescale=2.0)),
    "an unknown operator": ("no such", lambda: ones("y", op="no such")),
    "an unknown collective": ("no such", lambda: moved("no such", np.ones(3))),
    "an invalid root": ("root 7", lambda: moved("broadcast", np.ones(3), root=7)),
    "an output of another size": ("size", lambda: ones("y", out=np.ones(4))),
    "an output of another type": ("element type", lambda: ones("y", out=np.ones(3, np.float32))),
    "an output that cannot be written": ("read-only", lambda: ones("y", out=frozen())),
    "an input that is not contiguous": ("contiguous", lambda: moved("allreduce", np.ones(6)[::2], np.ones(3))),
    "text": ("element type <U1", lambda: moved("allreduce", np.array(["a"]))),
    "an array that reports a wrong shape": ("shape of 1048576", lambda: moved("allreduce", WrongShape(), np.ones(3))),
    "an invalid item": ("Unable to cast", lambda: ones("y", priority="high")),
}
REFUSED_BEFORE_THE_CORE: dict[str, tuple[str, Callable[[], Item]]] = {
    "an output that is no array": ("no array: list", lambda: ones("y", out=[0.0, 0.0])),
    "an input that is no array": ("x is no array", lambda: moved("allreduce", object())),
    "too many splits": ("do not cut 4 rows", lambda: moved("alltoall", np.ones(4), splits=[1, 1, 2])),
    "splits that do not sum up": ("do not cut 4 rows", lambda: moved("alltoall", np.ones(4), splits=[1, 1])),
    "splits below zero": ("do not cut 4 rows", lambda: moved("alltoall", np.ones(4), splits=[5, -1])),
}


@pytest.mark.parametrize("reason", [*REFUSED, *REFUSED_BEFORE_THE_CORE])
@every_engine(2)
def test_a_submit_that_is_refused_holds_nothing(engine: Engine, reason: str, event: threading.Event) -> None:
    """No array and no name, of the group's other operations either; the other rank sees none of them."""
    message, wrong = (REFUSED | REFUSED_BEFORE_THE_CORE)[reason]
    if engine.rank == 1:
        assert event.wait(SECONDS)
    works = engine.submit([ones("in flight")])
    if engine.rank == 0:
        try:
            ways = [engine.submit, lambda items: engine.core.submit(items, False)]
            for submit in ways if reason in REFUSED else ways[:1]:
                items = [ones("x", out=np.ones(3)), wrong()]
                arrays = [each for item in items for each in (item.x, item.out)]
                held = [weakref.ref(each) for each in arrays if isinstance(each, np.ndarray | WrongShape)]
                with pytest.raises((ValueError, TypeError), match=message):
                    submit(items)
                del items, arrays
                gc.collect()
                assert not any(ref() is not None for ref in held)
        finally:
            event.set()
    for work in (*works, *engine.submit([ones("x")]), *engine.submit([ones("y")])):
        assert work.wait(SECONDS).tolist() == [2] * 3
    assert engine.run([moved("allreduce", frozen())])[0].tolist() == [0] * 3


@pytest.mark.parametrize("hosts", [(), (0, 1, 0)])
def test_those_who_wait_learn_why_a_submit_was_refused(hosts: tuple[int, ...]) -> None:
    """Until the operation is submitted; a name may have any characters and any length."""
    name = "\N{GREEK SMALL LETTER ALPHA}" * 100 + "z" * 100
    told, met = threading.Event(), (threading.Barrier(2), threading.Barrier(3))

    def body(engine: Engine) -> None:
        if engine.rank == 1:
            with pytest.raises(ValueError, match="contiguous"):
                engine.submit([Item("allreduce", name, np.ones(6)[::2], np.ones(3))])
            engine.refuse("group", RuntimeError("\N{GREEK SMALL LETTER ALPHA}\n" * 1000))
            assert told.wait(SECONDS)
            first = engine.submit([ones(name)])
        else:
            first = engine.submit([ones(name)])
            until(lambda: "rank 1's submission was refused: ValueError: " in engine.report())
            met[0].wait(SECONDS)
            told.set()
        first[0].wait(SECONDS)
        met[1].wait(SECONDS)
        group = [ones(f"group.{number}") for number in range(2)]
        if engine.rank == 0:
            works = engine.submit(group)
            until(lambda: engine.report().count("refused: RuntimeError: \N{GREEK SMALL LETTER ALPHA} ") == 2)
        met[1].wait(SECONDS)
        if engine.rank != 0:
            works = engine.submit(group)
        for work in works:
            work.wait(SECONDS)
        met[1].wait(SECONDS)
        if engine.rank == 0:  # once submitted, it is forgotten
            works = engine.submit([ones(f"group.{number}") for number in range(2)])
            until(lambda: "group" in engine.report())
            assert "refused" not in engine.report()
        met[1].wait(SECONDS)
        if engine.rank != 0:
            works = engine.submit([ones(f"group.{number}") for number in range(2)])
        for work in works:
            work.wait(SECONDS)

    on_engines(3, body, hosts)


def test_factors_of_any_bits_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused or not, each operation is scaled by its own factors, and plans are reused whatever these are."""
    asked: list[str] = []
    plan = Planner.__call__

    def counting(self: Planner, *arguments: Any) -> Any:
        asked.append(arguments[0])
        return plan(self, *arguments)

    monkeypatch.setattr(Planner, "__call__", counting)
    factors = [1.0, 0.0, -0.0, NAN, 2.0, float("inf"), -NAN, 0.5]
    rounds = 6

    def body(engine: Engine) -> None:
        x = np.array([1.0, -1.0, 0.0, NAN])
        for _ in range(rounds):
            items = [
                Item("allreduce", f"{i}.{j}", x.copy(), prescale=before, postscale=after)
                for i, before in enumerate(factors)
                for j, after in enumerate(factors)
            ]
            works = [engine.submit([item])[0] for item in items]
            for item, work in zip(items, works, strict=True):
                with np.errstate(invalid="ignore"):
                    expected = (x * item.prescale + x * item.prescale) * item.postscale
                result = work.wait(SECONDS)
                assert np.array_equal(result, expected, equal_nan=True), (item.prescale, item.postscale)
                number = ~np.isnan(expected)
                assert (np.signbit(result) == np.signbit(expected))[number].all(), (item.prescale, item.postscale)

    on_engines(2, body)
    # Sizes of fused batches vary from round to round; without a cache there would be as many plans as operations.
    assert len(asked) < 2 * rounds * len(factors) ** 2 / 2


@every_engine(2)
def test_the_same_nan_is_no_difference_between_ranks_and_another_factor_is(engine: Engine) -> None:
    assert np.isnan(engine.run([ones("a", prescale=NAN, postscale=NAN)])[0]).all()
    with pytest.raises(MismatchError, match="prescale"):
        engine.run([ones("b", prescale=0.0 if engine.rank else -0.0)])
    with pytest.raises(MismatchError, match="postscale"):
        engine.run([ones("c", postscale=1.0 if engine.rank else NAN)])


@every_engine(1)
def test_invalid_times_are_rejected(engine: Engine) -> None:
    work = engine.submit([ones("a")])[0]
    with pytest.raises(ValueError, match="not nan"):
        work.wait(NAN)
    with pytest.raises(ValueError, match="cycle"):
        engine.tune(1 << 20, NAN)
    with pytest.raises(ValueError, match="threshold"):
        engine.tune(-1, 0.001)
    work.wait(SECONDS)


def test_nothing_of_a_refused_group_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The board has a place for its first operations only; the other ranks do not see those either."""
    monkeypatch.setattr("pycollective.engine.engine.LEAST_SLOTS", 4)
    refused = threading.Barrier(2)

    def body(engine: Engine) -> None:
        group = [Item("allreduce", f"part {number}", np.ones(2)) for number in range(6)]
        with pytest.raises(ValueError, match="more than 4 operations are in progress"):
            engine.submit(group, grouped=True)
        refused.wait()
        for item in group:
            assert engine.run([item])[0].tolist() == [2, 2]

    on_engines(2, body, settings=Settings(cache_capacity=1))
