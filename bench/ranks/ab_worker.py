"""A rank of one of the two jobs that `bench.ab` compares. Run as a script by the interpreter of the version under test.

Uses only the public interface, so that older versions can run it. Commands are JSON lines on standard input; each is
answered by a JSON line: the seconds of every repetition, of the slowest rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

import pycollective


class Arrays:
    """Inputs and outputs of any size, at alignments that differ from turn to turn."""

    def __init__(self, comm: Any, kind: str, most_bytes: int) -> None:
        room = most_bytes * comm.size + 4096
        with pycollective.shared_arrays() if kind == "shared" else contextlib.nullcontext():
            self._held = [(comm.empty if kind == "windows" else np.empty)(room, np.uint8) for _ in range(2)]
        for held in self._held:
            held[:] = 0
        self._torch = kind == "torch"

    def pair(self, sizes: Sequence[int], seed: int) -> list[Any]:
        """An array of each size (in float32 elements) at an offset within a page, the same on all ranks."""
        offsets = np.random.default_rng(seed).integers(0, 4096 // 4, 2) * 4
        cut = [held[at : at + 4 * n].view(np.float32) for held, at, n in zip(self._held, offsets, sizes, strict=True)]
        if self._torch:
            import torch

            return [torch.from_numpy(array) for array in cut]
        return cut


def make_call(comm: Any, turn: dict[str, Any], arrays: Arrays) -> tuple[Callable[[], Any], Any]:
    """(callable, array to write before each call). `turn`: an ab.Case, and elements of its input and of its output."""
    rank, collective = comm.rank, turn["collective"]
    if collective == "barrier":
        return comm.barrier, None
    x, out = arrays.pair(turn["counts"], turn["seed"])
    if collective == "sendrecv":  # round trip between ranks 0 and 1
        if rank > 1:
            return (lambda: None), x

        def round_trip() -> None:
            if rank == 0:
                comm.send(x, 1)
                comm.recv(out, 1)
            else:
                comm.recv(out, 0)
                comm.send(x, 0)

        return round_trip, x
    method = getattr(comm, collective)
    if collective == "mix":
        from pycollective import graphs  # an older version need not have it

        return (lambda: method(x, graphs.ring, out=out)), x
    if turn["in_place"]:
        x = out
    if (topology := turn["topology"]) != "default":
        return (lambda: method(x, out=out, topology=topology)), x
    return (lambda: method(x, out=out)), x


def measure(comm: Any, call: Callable[[], Any], written: Any, repetitions: int, block: int) -> list[float]:
    """Seconds per call in each repetition: a block of calls that begins after all ranks have written their input.

    With single calls, short ones would measure how far apart the ranks leave the barrier.
    """
    taken = np.empty(repetitions, np.int64)
    for i in range(-1, repetitions):
        if written is not None:
            written[:] = i
        comm.barrier()
        begin = perf_counter_ns()
        for _ in range(block):
            call()
        if i >= 0:
            taken[i] = perf_counter_ns() - begin
    gathered = comm.allgather(taken).reshape(comm.size, repetitions)
    slowest: list[float] = (gathered.max(axis=0) / 1e9 / block).tolist()
    return slowest


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print to standard output
    comm = pycollective.init()
    kinds = json.loads(sys.stdin.readline())
    held = {kind: Arrays(comm, kind, nbytes) for kind, nbytes in kinds.items()}
    print(json.dumps(pycollective.__file__), file=answers, flush=True)
    for line in sys.stdin:
        turn = json.loads(line)
        call, written = make_call(comm, turn, held[turn["kind"]])
        print(json.dumps(measure(comm, call, written, turn["repetitions"], turn["block"])), file=answers, flush=True)
    pycollective.shutdown()


if __name__ == "__main__":
    main()
