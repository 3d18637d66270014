"""Programs composed of other topologies' programs, each for some of the ranks and chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pycollective.schedule.language.program import Program


def embed(p: Program, part: Program, ranks: Sequence[int], chunks: Sequence[int] | Sequence[Sequence[int]]) -> None:
    """Append a program that was written for `len(ranks)` ranks.

    Args:
        p: the program to append to; its chunks are declared.
        part: its statements are executed with rank r replaced by ranks[r].
        ranks: of `p`.
        chunks: for each chunk of `part`, the chunks of `p` that it stands for; or the chunks of `p` that all of them
            stand for together, which are divided among them.
    """
    pieces = _divided(chunks, part.chunk_count)
    for statement in part.statements:
        for chunk in pieces[statement.chunk]:
            p.record(
                replace(
                    statement,
                    chunk=chunk,
                    destinations=tuple(ranks[rank] for rank in statement.destinations),
                    sources=tuple(ranks[rank] for rank in statement.sources),
                    at=None if statement.at is None else ranks[statement.at],
                )
            )


def _divided(chunks: Sequence[int] | Sequence[Sequence[int]], count: int) -> list[Sequence[int]]:
    pieces = [each for each in chunks if not isinstance(each, int)]
    whole = [each for each in chunks if isinstance(each, int)]
    return pieces or [whole[i * len(whole) // count : (i + 1) * len(whole) // count] for i in range(count)]
