"""The hosts of `pycollective run -H` and their ranks: from the command line or a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_HOST = re.compile(
    r"(?:(?P<name>[^-:\[\]][^:\[\]]*)|\[(?P<address>[0-9a-fA-F:.]+(?:%[^\]]+)?)\])(?::0*(?P<slots>[1-9][0-9]*))?"
)


@dataclass(frozen=True)
class Host:
    """A host and its ranks: `count` of them, from the rank `first` on."""

    name: str
    first: int
    count: int


def listed_hosts(text: str | None, hostfile: Path | None) -> list[tuple[str, int]]:
    """Names and slots of what `-H` or `--hostfile` gives; empty for neither.

    Raises:
        ValueError: both, or one of another form. OSError: the file cannot be read.
    """
    if text is not None and hostfile is not None:
        raise ValueError("-H and --hostfile exclude each other")
    if hostfile is not None:
        return read_hostfile(hostfile)
    return [] if text is None else parse_hosts(text)


def parse_hosts(text: str) -> list[tuple[str, int]]:
    """Names and slots of `h1:4,[fd00::2]:4`, an IPv6 address in brackets; without a number a host has one slot.

    Raises:
        ValueError: not of this form.
    """
    found = []
    for word in text.split(","):
        match = _HOST.fullmatch(word)
        if match is None:
            raise ValueError(f"{word!r} is not of the form HOST:SLOTS, or [ADDRESS]:SLOTS for IPv6")
        found.append((match["name"] or match["address"], int(match["slots"] or 1)))
    return found


def read_hostfile(path: Path) -> list[tuple[str, int]]:
    """Names and slots of a file with a host per line: `h1 slots=4`, `h1:4` or `h1`; `#` begins a comment.

    Raises:
        ValueError: a line of another form. OSError: the file cannot be read.
    """
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.partition("#")[0].replace(" slots=", ":").split()
        if len(words) > 1:
            raise ValueError(f"{path}, line {number}: {line.strip()!r} is not of the form HOST slots=N")
        found += [entry for word in words for entry in parse_hosts(word)]
    return found


def place_ranks(slots: Sequence[tuple[str, int]], size: int | None) -> list[Host]:
    """The ranks of each host: as many as it has slots, host by host, until there are `size`; None: all slots.

    Raises:
        ValueError: no host, a host twice, or fewer slots than ranks.
    """
    names = [name for name, _ in slots]
    twice = next((name for name in names if names.count(name) > 1), None)
    if not names or twice:
        raise ValueError(f"the host {twice} is listed twice" if twice else "no host is listed")
    total = sum(count for _, count in slots)
    wanted = total if size is None else size
    if wanted > total:
        raise ValueError(f"-np {wanted} is more than the {total} slots of the hosts; HOST:N gives a host N slots")
    hosts, first = [], 0
    for name, count in slots:
        if first < wanted:
            hosts.append(Host(name, first, min(count, wanted - first)))
            first += hosts[-1].count
    return hosts
