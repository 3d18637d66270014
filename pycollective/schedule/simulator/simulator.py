"""The simulator: the cost of a topology's collective on a network, from its program.

Each rank executes its steps in order, as compiled. A step begins when its operands are ready and the data that it
overwrites has been read; it receives its operands, combines, and sends its results, one message after the other. A
message also waits for the port at its other end. See `Network` for the costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pycollective import checks, notebook
from pycollective.schedule.collectives import COLLECTIVES
from pycollective.schedule.compiler.compiler import checked_ranks, trace
from pycollective.schedule.language import registry
from pycollective.schedule.simulator.executions import Executions
from pycollective.schedule.simulator.messages import CONTINUES, SimulatedMessages, messages_of
from pycollective.schedule.simulator.network import Network
from pycollective.schedule.simulator.timing import Clocks, TimedStep

LIMIT = 1 << 23
"""Places that a program may read and write in total: about a gigabyte of memory and a minute."""
ALIGNMENT = 64
"""Alignment in bytes of the chunks of an equal split, as in the executor."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """One collective on a network.

    Attributes:
        topology: its name, with the non-default parameters.
        collective, ranks, root: what was simulated; root is None if there is none.
        nbytes: bytes of the larger of a rank's two buffers.
        small: whether the variant for small messages was used.
        seconds: until the last rank has finished.
        messages: number of messages between ranks; chunks that are sent together are one.
        bytes_sent: bytes of all messages.
        bytes_most: maximum number of bytes sent by a rank.
        bytes_between_nodes: bytes of messages between nodes.
        finish: when each rank has finished its own steps and received the others' writes, in seconds.
        critical_path: steps in chronological order, each of which waited for the one before it, up to the last.
        steps: all steps, if requested.
    """

    topology: str
    collective: str
    ranks: int
    root: int | None
    nbytes: int
    small: bool
    seconds: float
    messages: int
    bytes_sent: int
    bytes_most: int
    bytes_between_nodes: int
    finish: tuple[float, ...]
    critical_path: tuple[TimedStep, ...]
    steps: tuple[TimedStep, ...] = ()

    @property
    def algbw(self) -> float:
        """Size over time, in GB/s (1e9 bytes), as in nccl-tests."""
        return self.nbytes / self.seconds / 1e9 if self.seconds > 0 else 0.0

    @property
    def busbw(self) -> float:
        """algbw times the factor of the collective, in GB/s: comparable between rank counts."""
        return self.algbw * COLLECTIVES[self.collective].busbw_factor(self.ranks)

    def _repr_html_(self) -> str | None:
        return notebook.html(self)


def simulate(
    topology: object,
    collective: str,
    size: int,
    nbytes: int,
    network: Network | None = None,
    *,
    root: int | None = None,
    small: bool | None = None,
    tile: int | None = None,
    steps: bool = False,
    limit: int = LIMIT,
) -> Simulation:
    """Simulate one collective of a topology. The last two programs are cached, so that further sizes cost less.

    Args:
        topology: a name, "wheel(hub=3)", a class or an instance.
        collective: its name, such as "allreduce".
        size: the number of ranks, from 1.
        nbytes: bytes of the larger of a rank's two buffers, at least 1.
        network: the costs of messages and reductions; its nodes are the hosts that the program knows.
        root: the root if the collective has one (default 0); otherwise ignored.
        small: use the variant for small messages, if there is one; None: as the library would for `nbytes`.
        tile: size in bytes of the tiles of each chunk, as in the executor: ranks run the program for one tile after the
            other, which pipelines data that moves in one direction. None: chunks are not divided.
        steps: keep all steps, with their times.
        limit: places that the program may read and write in total.

    Raises:
        TopologyError: no such topology, it lacks the collective, or the root is out of range.
        ProgramError: its program breaks a rule of the language, or is larger than `limit`.
        ValueError: nbytes or tile below 1, more messages by tiles than `limit`, or more bytes than 64 bits can count.
        TypeError: another argument is invalid.
    """
    nbytes, limit = checks.integer(nbytes, "nbytes", 1), checks.integer(limit, "limit", 1)
    tile = None if tile is None else checks.integer(tile, "tile", 1)
    steps = checks.flag(steps, "steps")
    if network is not None:
        checks.instance(network, "network", Network, "a Network or None")
    instance = registry.get(topology)
    size, root = checked_ranks(instance, collective, size, root)
    if small is None:
        small = registry.takes_small(instance, collective, nbytes)
    small = checks.flag(small, "small") and registry.has_small(instance, collective)
    network = network or Network()
    each = network.ranks_per_node
    hosts = tuple(rank // each for rank in range(size)) if each > 1 else ()  # one rank a node: nodes do not matter
    executions, messages = _prepared(instance, collective, size, root, small, limit, hosts)
    chunks = chunk_sizes(collective, size, executions.chunk_count, nbytes)
    if len(messages.kind) * nbytes >= 1 << 63:  # bytes are added up in 64 bits
        raise ValueError(f"nbytes {nbytes}: too many bytes to count for {len(messages.kind)} messages; take fewer")
    if tile is not None and max(len(messages.kind), len(chunks)) * -(-max(chunks) // tile) > limit:
        raise ValueError(
            f"{len(messages.kind)} messages in tiles of {tile} bytes: more than {limit}; take larger tiles"
        )
    tiles = tiles_of(chunks, tile)
    clocks = Clocks(executions, messages, network)
    for lengths in tiles:
        clocks.run(lengths)
    count, sent, between = _traffic(executions, messages, network, tiles)
    return Simulation(
        topology=registry.label(instance),
        collective=collective,
        ranks=size,
        root=root,
        nbytes=nbytes,
        small=small,
        seconds=max(clocks.end, default=0.0),
        messages=count,
        bytes_sent=sum(sent),
        bytes_most=max(sent),
        bytes_between_nodes=between,
        finish=tuple(map(max, clocks.free, clocks.receiving)),
        critical_path=tuple(clocks.step(number) for number in clocks.critical_path()),
        steps=tuple(map(clocks.step, range(len(clocks.end)))) if steps else (),
    )


@lru_cache(maxsize=2)
def _prepared(
    instance: Any, collective: str, size: int, root: int | None, small: bool, limit: int, hosts: tuple[int, ...]
) -> tuple[Executions, SimulatedMessages]:
    executions = Executions(collective, size, root, limit, hosts)
    trace(instance, collective, size, root, small, executions)
    executions.finish()
    return executions, messages_of(executions)


def _traffic(
    executions: Executions, messages: SimulatedMessages, network: Network, tiles: list[list[int]]
) -> tuple[int, list[int], int]:
    """The messages, the bytes that each rank sends, and the bytes between nodes."""
    import numpy as np

    lengths = np.asarray(tiles, np.int64)
    chunk = np.asarray(executions.chunk, np.int64)[messages.execution]
    length, pieces = lengths.sum(axis=0)[chunk], np.count_nonzero(lengths, axis=0)[chunk]
    moves = (messages.source != messages.target) & (length > 0)
    source, target, length, pieces = messages.source[moves], messages.target[moves], length[moves], pieces[moves]
    sent = np.zeros(executions.size, np.int64)
    np.add.at(sent, source, length)
    each = network.ranks_per_node
    between = int(length[source // each != target // each].sum())
    return int(pieces[messages.kind[moves] & CONTINUES == 0].sum()), sent.tolist(), between


def chunk_sizes(collective: str, size: int, chunks: int, nbytes: int) -> list[int]:
    """Bytes of each chunk, divided as in the executor; if a chunk is a rank's share, as equal as possible."""
    if COLLECTIVES[collective].split == "free":
        piece = -(-nbytes // chunks)
        piece = -(-piece // ALIGNMENT) * ALIGNMENT
        return [min(piece, max(0, nbytes - chunk * piece)) for chunk in range(chunks)]
    share, rest = divmod(nbytes, size)
    return [share + (chunk % size < rest) for chunk in range(chunks)]


def tiles_of(chunks: list[int], tile: int | None) -> list[list[int]]:
    """List for each tile the bytes of each chunk in it."""
    if tile is None:
        return [chunks]
    return [[min(tile, max(0, length - begin)) for length in chunks] for begin in range(0, max(chunks), tile)]
