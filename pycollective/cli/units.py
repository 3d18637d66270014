"""Parsing and formatting of sizes, times and bandwidths."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

KIB = 1024
MOST_SIZES = 10_000
_UNITS = {"": 1, "K": KIB, "M": KIB**2, "G": KIB**3}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:I?B)?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|ms|us|µs|ns)")
_A_SECOND = {"s": 1, "ms": 1e3, "us": 1e6, "µs": 1e6, "ns": 1e9}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(B|bit)/s", re.IGNORECASE)
_PREFIX = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def parse_size(text: str) -> int:
    """Bytes in ``4``, ``64K``, ``1.5MiB``, ``256M`` (powers of 1024); ValueError for anything else."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a size: {text!r} (write 4, 64K, 1M or 2G)")
    value = float(match[1]) * _UNITS[match[2].upper()]
    if value >= 1 << 63:
        raise ValueError(f"not a size: {text[:80]!r} has more bytes than an address space")
    return int(value)


def parse_sizes(text: str) -> list[int]:
    """Sizes in bytes from ``4:256M:x4`` (from, to, factor), ``1K:8K:+1K`` (step) or ``4,1K,64M`` (a list).

    A range ends with its upper bound only if the factor or step reaches it. ValueError describes the error.
    """
    sizes: set[int] = set()
    for part in text.split(","):
        fields = part.split(":")
        if len(fields) == 1:
            sizes.add(parse_size(part))
        elif len(fields) in (2, 3):
            sizes.update(itertools.islice(_range(part, fields), MOST_SIZES + 1))
        else:
            raise ValueError(f"not a range of sizes: {part!r} (write FROM:TO:xFACTOR or FROM:TO:+STEP)")
        if len(sizes) > MOST_SIZES:
            raise ValueError(f"more than {MOST_SIZES} sizes in {text[:80]!r}: take a larger step")
    return sorted(sizes)


def _range(part: str, fields: list[str]) -> Iterator[int]:
    low, high = parse_size(fields[0]), parse_size(fields[1])
    step = fields[2].strip() if len(fields) == 3 else "x4"
    if low > high:
        raise ValueError(f"the range {part!r} ends before it begins")
    if step.startswith("x") and re.fullmatch("[0-9]{1,18}", step[1:]) and int(step[1:]) > 1 and low > 0:
        factor, addend = int(step[1:]), 0
    elif step.startswith("+") and parse_size(step[1:]) > 0:
        factor, addend = 1, parse_size(step[1:])
    else:
        raise ValueError(f"the step of {part!r} must be xFACTOR (2 or more, from a size above 0) or +STEP")
    while low <= high:
        yield low
        low = low * factor + addend


def format_size(nbytes: float) -> str:
    """``4 B``, ``64 KiB``, ``1.5 MiB``: human-readable."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < KIB:
            return f"{nbytes:.4g} {unit}"
        nbytes /= KIB
    return f"{nbytes:.4g} TiB"


def parse_duration(text: str) -> float:
    """Seconds in "5us", "1.5 ms", "300ns"; ValueError for anything else."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a time: {text!r} (write 5us, 0.3ms or 800ns)")
    return float(match[1]) / _A_SECOND[match[2]]


def parse_rate(text: str) -> float:
    """Bytes per second in "100Gbit/s", "12.5GB/s" (powers of 1000), "inf"; ValueError for anything else."""
    if text.strip() == "inf":
        return math.inf
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a bandwidth: {text!r} (write 12.5GB/s or 100Gbit/s)")
    return float(match[1]) * _PREFIX[match[2].upper()] / (8 if match[3].lower() == "bit" else 1)


def format_time(seconds: float) -> str:
    """Three significant digits with a suitable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
