"""Exchange of which gradients exist on which ranks in each step: one reduction with a byte for each parameter."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import torch

from pycollective.comm.bootstrap.rendezvous import name_ranks
from pycollective.comm.control import Codec
from pycollective.engine import Item
from pycollective.errors import MismatchError
from pycollective.hvd.basics import engine_of
from pycollective.hvd.process_sets import ProcessSet

NONE, DENSE, SPARSE = 0, 1, 2
"""The kind of a parameter's gradient; bits, as ranks may differ."""
_DIGEST = 8
Rows = dict[str, tuple[tuple[int, ...], str]]
_ROWS: Codec[Rows] = Codec(Rows)
_KINDS: Codec[list[int]] = Codec(list[int])


def kind_of(p: torch.Tensor) -> int:
    """NONE, DENSE or SPARSE."""
    if p.grad is None:
        return NONE
    return SPARSE if p.grad.is_sparse else DENSE


class Agreement:
    """Which parameters have a gradient on any rank, and whether all ranks have the same parameters.

    A parameter that has a gradient on some ranks is reduced, with zeros from the others; one that has none on any rank
    is left alone, as in a single process.
    """

    def __init__(self, prefix: str, named: Mapping[str, torch.Tensor], process_set: ProcessSet) -> None:
        """`prefix`: of the operation names. The order of `named` may differ between ranks."""
        self._prefix, self._process_set = prefix, process_set
        self._parameters = [named[name] for name in sorted(named)]
        self._rows: Rows = {name: (tuple(named[name].shape), str(named[name].dtype)) for name in sorted(named)}
        digest = hashlib.sha256(repr(self._rows).encode()).digest()[:_DIGEST]
        # Bitwise or of the bytes and of their complements: each pair sums to 255 only if all ranks have the same bytes.
        self._digest = digest + bytes(255 - byte for byte in digest)
        self._mine: dict[torch.Tensor, int] = {}

    def reach(self) -> dict[torch.Tensor, int]:
        """Collective: for each parameter the kinds of gradient that ranks have: NONE, DENSE, SPARSE or DENSE | SPARSE.

        Raises:
            MismatchError: the ranks' parameters differ; on every rank, with the differences.
        """
        self._mine = dict(zip(self._parameters, map(kind_of, self._parameters), strict=True))
        combined = np.frombuffer(bytearray([*self._mine.values(), *self._digest]), np.uint8)
        try:
            engine_of(self._process_set).run([Item("allreduce", f"{self._prefix}.present", combined, combined, "bor")])
        except MismatchError:  # the numbers of parameters differ
            self._explain()
        kinds, digests = combined[: -2 * _DIGEST], combined[-2 * _DIGEST :].astype(int)
        if (digests[:_DIGEST] + digests[_DIGEST:] != 255).any():
            self._explain()
        return dict(zip(self._parameters, kinds.tolist(), strict=True))

    def kinds_differ(self, names: Mapping[torch.Tensor, str]) -> MismatchError:
        """Collective: the error for parameters whose gradients were DENSE | SPARSE, for all ranks to raise."""
        mine = _KINDS.encode([self._mine[p] for p in names])
        item = Item("call", f"{self._prefix}.kinds", run=lambda comm: comm.backend.exchange(mine))
        (gathered,) = engine_of(self._process_set).run([item])
        by_rank = _KINDS.decode_all(gathered)

        def holders(number: int, kind: int) -> str:
            ranks = self._process_set.ranks or []
            return name_ranks([rank for rank, kinds in zip(ranks, by_rank, strict=True) if kinds[number] == kind])

        differ = [f"{name!r} is dense on {holders(i, DENSE)}, sparse on {holders(i, SPARSE)}" for i, name in
                  enumerate(names.values())]  # fmt: skip
        return MismatchError(f"the gradient of {_first(differ)}: sparse_as_dense=True reduces both")

    def _explain(self) -> None:
        mine = _ROWS.encode(self._rows)
        item = Item("call", f"{self._prefix}.differ", run=lambda comm: comm.backend.exchange(mine))
        (gathered,) = engine_of(self._process_set).run([item])
        first, *others = _ROWS.decode_all(gathered)
        lines = [f"rank {rank} {_difference(rows, first)}" for rank, rows in enumerate(others, 1) if rows != first]
        raise MismatchError(f"the ranks' parameters differ; against rank 0: {'; '.join(lines)}")


def _difference(rows: Rows, first: Rows) -> str:
    found = [f"has no {name!r}" for name in first if name not in rows]
    found += [f"has a {name!r} too" for name in rows if name not in first]
    found += [
        f"has {name!r} as {rows[name][1]} of shape {rows[name][0]}, not {first[name][1]} of shape {first[name][0]}"
        for name in rows
        if name in first and rows[name] != first[name]
    ]
    return _first(found)


def _first(found: list[str]) -> str:
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
