"""What the doctor finds out about the machine: cores and memory."""

from __future__ import annotations

import mmap
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

from pycollective.cli.doctor.findings import Finding
from pycollective.cli.units import format_size
from pycollective.comm.host.cores import cpu_quota, ranges, usable_cores

ENOUGH_SHM = 1 << 30
"""Bytes of /dev/shm below which the doctor warns: containers often have only 64 MiB."""


def machine() -> Iterator[Finding]:
    usable = usable_cores()
    total = os.cpu_count() or len(usable)
    yield Finding("machine", "system", f"{platform.system()} {platform.release()} {platform.machine()}")
    yield Finding("machine", "cores", f"{len(usable)} usable of {total}", why=f"affinity {ranges(usable)}")
    quota = cpu_quota()
    if quota is not None:
        why = "a container's limit: ranks beyond it are throttled" if quota < len(usable) else ""
        yield Finding("machine", "CPU quota", f"{quota:g} cores", None if why else True, why)
    nodes = list(Path("/sys/devices/system/node").glob("node[0-9]*"))
    yield Finding("machine", "NUMA nodes", str(max(1, len(nodes))))
    yield Finding("machine", "CPU vectors", _cpu_vectors())


def _cpu_vectors() -> str:
    lines = (line for line in read_text("/proc/cpuinfo").splitlines() if line.startswith(("flags", "Features")))
    flags = set(next(lines, "").split())
    known = ["avx512_bf16", "avx512_fp16", "avx512f", "avx2", "f16c", "sse4_2", "sve", "asimd"]
    return " ".join(flag for flag in known if flag in flags) or "none known"


def memory() -> Iterator[Finding]:
    yield _shm()
    yield _try("memfd", _memfd, "windows use POSIX shared memory instead")
    pages = read_text("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    chosen = pages.partition("[")[2].partition("]")[0]
    usable = chosen in ("always", "within_size", "advise", "force")
    small = "windows use small pages; `advise` in .../transparent_hugepage/shmem_enabled allows huge ones"
    yield Finding("memory", "huge pages for windows", chosen or "unknown", usable or None, "" if usable else small)
    yield _try("pidfd", lambda: os.close(os.pidfd_open(os.getpid())), "dead ranks are detected by polling")
    locked = read_text("/proc/self/limits").partition("Max locked memory")[2].split()
    yield Finding("memory", "locked memory", (locked[0] if locked else "unknown") + " bytes")


def _shm() -> Finding:
    try:
        shm = os.statvfs("/dev/shm")
    except OSError as error:
        return Finding("memory", "/dev/shm", "none", None, error.strerror or "")
    size, free = shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize
    why = "" if size >= ENOUGH_SHM else "small; in a container raise it with --shm-size"
    return Finding("memory", "/dev/shm", f"{format_size(size)}, {format_size(free)} free", None if why else True, why)


def _memfd() -> None:
    descriptor = os.memfd_create("pycollective-doctor")
    try:
        os.ftruncate(descriptor, mmap.PAGESIZE)
        with mmap.mmap(descriptor, mmap.PAGESIZE) as window:
            window[0] = 1
    finally:
        os.close(descriptor)


def _try(name: str, probe: Callable[[], None], without: str) -> Finding:
    try:
        probe()
    except (OSError, AttributeError) as error:
        return Finding("memory", name, "not available", None, f"{error}; {without}")
    return Finding("memory", name, "works")


def read_text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
