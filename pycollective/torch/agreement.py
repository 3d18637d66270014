"""What ranks find out about each other's gradients in each step, with one reduction of a byte for each parameter."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping

import numpy as np
import torch

from pycollective.engine import Item
from pycollective.errors import MismatchError
from pycollective.torch.basics import engine_of
from pycollective.torch.process_sets import ProcessSet

NONE, DENSE, SPARSE = range(3)
"""What a parameter's gradient is; of all ranks the greatest counts."""
_DIGEST = 8
Rows = dict[str, tuple[tuple[int, ...], str]]


def kind_of(p: torch.Tensor) -> int:
    """NONE, DENSE or SPARSE."""
    if p.grad is None:
        return NONE
    return SPARSE if p.grad.is_sparse else DENSE


class Agreement:
    """Which parameters have a gradient on any rank, and whether the ranks have the same parameters at all.

    A parameter that has a gradient on some ranks is reduced, with zeros from the others; one that has none anywhere
    is left alone, as a single process would leave it.
    """

    def __init__(self, prefix: str, named: Mapping[str, torch.Tensor], process_set: ProcessSet) -> None:
        """`prefix`: of the operations' names. The order of `named` may differ between ranks."""
        self._prefix, self._process_set = prefix, process_set
        self._parameters = [named[name] for name in sorted(named)]
        self._rows: Rows = {name: (tuple(named[name].shape), str(named[name].dtype)) for name in sorted(named)}
        digest = hashlib.sha256(repr(self._rows).encode()).digest()[:_DIGEST]
        # Of the greatest bytes and the greatest complements each sums to 255 only if all ranks have the same bytes.
        self._digest = digest + bytes(255 - byte for byte in digest)

    def reach(self) -> dict[torch.Tensor, int]:
        """Collective: for each parameter the greatest kind of gradient that a rank has.

        Raises:
            MismatchError: the ranks' parameters differ; on every rank, says in what.
        """
        said = np.frombuffer(bytearray([*map(kind_of, self._parameters), *self._digest]), np.uint8)
        try:
            engine_of(self._process_set).run([Item("allreduce", f"{self._prefix}.present", said, said, "max")])
        except MismatchError:  # another number of parameters
            self._explain()
        kinds, digests = said[: -2 * _DIGEST], said[-2 * _DIGEST :].astype(int)
        if (digests[:_DIGEST] + digests[_DIGEST:] != 255).any():
            self._explain()
        return dict(zip(self._parameters, kinds.tolist(), strict=True))

    def _explain(self) -> None:
        mine = pickle.dumps(self._rows)
        item = Item("call", f"{self._prefix}.differ", run=lambda comm: comm._exchange(mine))
        (said,) = engine_of(self._process_set).run([item])
        first, *others = map(pickle.loads, said)
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
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
