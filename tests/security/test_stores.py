"""What a stranger writes into torch's store: no file that it names is opened; the ranks find each other or raise."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from c10d import World, run
from processes import IMPORTABLE

import pycollective
from launch import launch

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

IN_OPEN = 0x20
READ_BY_RANK_1 = ("group-1-0-0", "group-1-2-0", "group-1-5-0")
"""Keys of rank 0 in the store: the first that is read; those that once held the tokens of shared memory."""


@contextmanager
def opened(*paths: Path) -> Iterator[list[str]]:
    """The names of those files that any process opens meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert watch >= 0
    numbers = {libc.inotify_add_watch(watch, os.fsencode(path), IN_OPEN): path.name for path in paths}
    found: list[str] = []
    try:
        yield found
        with open(watch, "rb", buffering=0, closefd=False) as events:
            while event := events.read(16):
                found.append(numbers[int.from_bytes(event[:4], sys.byteorder)])
    finally:
        os.close(watch)


class Poisoned:
    """A store in which a stranger has changed one value, as rank 1 reads it."""

    def __init__(self, store: Any, key: str, value: bytes) -> None:
        self._store, self._key, self._value = store, key, value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> bytes:
        return self._value if key.endswith(self._key) else self._store.get(key)


def _poisoned(world: World, values: list[bytes]) -> list[str]:
    import torch.distributed as dist

    from pycollective.torch.distributed.backend import create

    outcomes = []
    for i, (key, value) in enumerate((key, value) for key in READ_BY_RANK_1 for value in values):
        store: Any = dist.PrefixStore(f"case {i}", world.ours.get_group_store())
        if world.rank == 1:
            store = Poisoned(store, key, value)
        made = SimpleNamespace(
            store=store, group_rank=world.rank, group_size=2, timeout=timedelta(seconds=0.5), group_id=f"{i}",
            global_ranks_in_group=[0, 1],
        )  # fmt: skip
        try:
            group = create(made)
            x = torch.tensor([float(world.rank)])
            group.allreduce([x]).wait()
            outcomes.append(str(x.item()))
            group.shutdown()
        except Exception as error:
            outcomes.append(type(error).__name__)
        dist.barrier()  # the next case, together
    return outcomes


def test_values_of_strangers_open_nothing(tmp_path: Path) -> None:
    secret, fifo = tmp_path / "secret", tmp_path / "fifo"
    secret.write_bytes(b"of root" * 10_000)
    secret.chmod(0o600)
    os.mkfifo(fifo, 0o600)
    tokens = [str(secret), str(fifo)]
    with open(os.open(secret, os.O_RDWR)) as held:
        tokens.append(f"memfd:{os.getpid()}:{held.fileno()}:{secret.stat().st_size}")
        with opened(secret, fifo) as files:
            # With a byte after them, which was once cut off.
            first, second = run(2, _poisoned, [f"{token}.".encode() for token in tokens], gloo=False)
    assert files == []
    assert set(first) | set(second) <= {"1.0", "BootstrapError"}
    assert second[:3] == ["BootstrapError"] * 3, "what is read is checked"
    assert first[3:] == second[3:] == ["1.0"] * 6, "the rest is not read"


def _other_job(world: World) -> tuple[str, str]:
    """Ranks 0 and 1 of job 0, and of job 1; what the one job's rank 0 and the other's rank 1 read is the same."""
    from pycollective.torch.distributed.bootstrap.meeting import meet

    job, rank = world.rank % 2, world.rank // 2
    if job != rank:  # the other rank of each job, which a stranger keeps away
        return "stays away", ""
    os.environ["PYCOLLECTIVE_RENDEZVOUS"] = f"job {job}"
    try:
        meet(world.ours.get_group_store(), rank, [0, 1], "process group 0", 1.0, "crossed", lambda *_: None)
    except pycollective.BootstrapError as error:
        return "BootstrapError", str(error)
    return "met", ""


def test_ranks_of_two_jobs_do_not_connect() -> None:
    outcomes = run(4, _other_job, gloo=False)
    assert [kind for kind, _ in outcomes] == ["BootstrapError", "stays away", "stays away", "BootstrapError"]
    # Whose deadline passes first tells the other.
    assert all("of 2 has not arrived" in outcomes[rank][1] for rank in (0, 3)), outcomes


NO_MEMFD = """
import errno, os, platform
from processes import refuse
refuse({"x86_64": 319, "aarch64": 279}[platform.machine()], errno.EPERM)
try:
    os.memfd_create("refused")
    raise SystemExit("memfd_create is still allowed")
except PermissionError:
    pass
import torch, torch.distributed as dist, pycollective.torch
from pycollective.comm.host import segments
dist.init_process_group("pycollective")
me = dist.get_rank()
x = torch.tensor([me + 1.0])
dist.all_reduce(x)
work = dist.isend(x * (me + 1), 1 - me)
dist.recv(x, 1 - me)
work.wait()
print(x.item())
segments.KINDS = ("memfd",)  # no /dev/shm either
try:
    dist.new_group()
except RuntimeError as error:
    print(type(error).__name__, error)
"""


def test_where_memfds_are_not_allowed() -> None:
    """As in some containers: messages can use the other kind of shared memory; without it the error states why."""
    for rank, text in enumerate(launch(2, NO_MEMFD, env=IMPORTABLE, check=True)):
        received, error = text.splitlines()
        assert float(received) == 3 * (2 - rank)
        assert error.startswith("CommunicatorError no shared memory between the ranks; memfd: memfd_create: Operation")
