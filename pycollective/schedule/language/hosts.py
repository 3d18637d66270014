"""Which ranks share a host: the argument `hosts`, a host number for each rank."""

from __future__ import annotations

from pycollective import checks


def numbered(hosts: object, size: int) -> tuple[int, ...]:
    """The host number of each rank, numbered by first appearance; empty if all ranks share one host.

    Args:
        hosts: a number for each rank, equal for ranks of one host; or nothing.
        size: the number of ranks.

    Raises:
        TypeError: not integers.
        ValueError: neither empty nor one number for each rank.
    """
    given = checks.integers(hosts, "hosts")
    if given and len(given) != size:
        raise ValueError(f"hosts must have a host number for each of {size} ranks, not {len(given)}")
    numbers: dict[int, int] = {}
    found = tuple(numbers.setdefault(host, len(numbers)) for host in given)
    return found if len(numbers) > 1 else ()


def equal_shares(size: int, hosts: int) -> tuple[int, ...]:
    """The host number of each rank, if `hosts` hosts have consecutive ranks each, as equally many as possible.

    Raises:
        ValueError: no host, or more hosts than ranks.
    """
    if not 1 <= hosts <= size:
        raise ValueError(f"{size} ranks are on 1 to {size} hosts, not {hosts}")
    return numbered([rank * hosts // size for rank in range(size)], size)


def groups(hosts: tuple[int, ...], size: int) -> tuple[tuple[int, ...], ...]:
    """The ranks of each host, ascending, by host number; `hosts` as `numbered` returns them."""
    if not hosts:
        return (tuple(range(size)),)
    ranks: list[list[int]] = [[] for _ in range(max(hosts) + 1)]
    for rank, host in enumerate(hosts):
        ranks[host].append(rank)
    return tuple(map(tuple, ranks))
