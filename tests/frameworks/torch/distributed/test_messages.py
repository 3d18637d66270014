"""send and recv: tags, orders, sizes, any source, in the background."""

from __future__ import annotations

import os
import random
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from c10d import World, forms, job, on_ranks
from speed import deadline

import pycollective
from pycollective import local_world

torch: Any = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from pycollective.torch.distributed.point_to_point.mailbox import SLOTS, Mailbox  # noqa: E402


def message(source: int, dest: int, tag: int, size: int = 10) -> Any:
    return torch.full((size,), 10_000.0 * source + 100 * dest + tag)


@on_ranks(2, 3, 4)
def test_a_ring_of_every_type(world: World) -> None:
    to, source = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.float8_e4m3fnuz, torch.int16):
        for shape in [(3, 4), (), (0,), (100_000,)]:
            x = torch.full(shape, world.rank % 2).to(dtype)
            out = torch.full(shape, 5).to(dtype)
            work = dist.isend(x, to)
            assert dist.recv(out, source) == source
            work.wait()
            assert torch.equal(out.float(), torch.full(shape, source % 2).to(dtype).float())


@on_ranks(2)
def test_what_the_core_reads_by_itself_and_what_it_leaves_to_the_general_path(world: World) -> None:
    """Every form of a tensor is received in every other."""
    group = world.ours

    def sent(x: Any, out: Any, tag: int = 0) -> Any:
        """What rank 0 has sent to rank 1, on both."""
        work = group.send([x], 1, tag) if world.rank == 0 else group.recv([out], 0, tag)
        work.wait()
        return x if world.rank == 0 else out

    base = torch.arange(6.0).reshape(2, 3) - 2
    for number, (name, x) in enumerate(forms(base).items()):
        for target, out in forms(torch.zeros(2, 3)).items():
            with torch.no_grad(), torch.inference_mode("inference" in (name, target)):
                assert torch.equal(sent(x, out, number).as_subclass(torch.Tensor), base), (name, target)
    one = torch.tensor([1.0 + 2.0j, 0.0])[::2]  # contiguous, as of one element, though with a stride of 2
    assert sent(one, torch.zeros(2, dtype=torch.complex64)[::2]).item() == 1.0 + 2.0j
    numbers = torch.tensor([1, -2, 3], dtype=torch.int32)
    assert torch.equal(sent(numbers, torch.zeros(3)).view(torch.int32), numbers)  # bytes are moved
    for call in (group.send, group.recv):
        with pytest.raises(TypeError, match="meta"):
            call([torch.empty(3, device="meta")], 1 - world.rank, 0)
        with pytest.raises(TypeError, match="layout"):
            call([torch.ones(3).to_sparse()], 1 - world.rank, 0)
        for peer in (2, -1):
            with pytest.raises(ValueError, match="not a rank"):
                call([numbers], peer, 0)


@on_ranks(2, 3, 4)
def test_tags_in_any_order(world: World) -> None:
    """All ranks send to all, including themselves, messages of several tags and sizes; received in a random order."""
    shuffled = random.Random(world.rank)
    all_ranks = range(world.size)
    sizes = {tag: 7**tag for tag in range(6)}  # up to 67 kB: more than a channel holds
    sends = [(dest, tag) for dest in all_ranks for tag in sizes]
    receives = [(source, tag) for source in all_ranks for tag in sizes]
    shuffled.shuffle(sends)
    shuffled.shuffle(receives)
    early = torch.zeros(3)
    waiting = dist.irecv(early, world.rank, tag=9)  # before it is sent
    works = [dist.isend(message(world.rank, dest, tag, sizes[tag]), dest, tag=tag) for dest, tag in sends]
    works += [dist.isend(message(1, 1, 1, 3), world.rank, tag=9), waiting]
    for i, (source, tag) in enumerate(receives):
        out = torch.zeros(sizes[tag])
        if i % 2 and source != world.rank:  # which torch allows only for isend and irecv
            dist.recv(out, source, tag=tag)
        else:
            dist.irecv(out, source, tag=tag).wait()
        assert torch.equal(out, message(source, world.rank, tag, sizes[tag])), (source, tag)
    for work in works:
        work.wait()
    assert torch.equal(early, message(1, 1, 1, 3))


@on_ranks(2, 3, 4)
def test_from_the_first_sender(world: World) -> None:
    rounds = 20
    if world.rank:
        for i in range(rounds):
            dist.send(message(world.rank, 0, i % 2), 0, tag=i % 2)
        dist.send(message(world.rank, 0, 7), 0, tag=7)
        return
    count = dict.fromkeys(range(1, world.size), 0)
    for _ in range(rounds // 2 * (world.size - 1)):
        out = torch.zeros(10)
        source = dist.recv(out, tag=1)
        assert torch.equal(out, message(source, 0, 1))
        count[source] += 1
    assert set(count.values()) == {rounds // 2}
    for source in range(1, world.size):
        work = dist.irecv(out, source, tag=7)
        work.wait()
        assert torch.equal(out, message(source, 0, 7))
    for _ in range(rounds // 2 * (world.size - 1)):
        work = world.ours.recv_anysource([out], 0)
        work.wait()
        assert torch.equal(out, message(work.source_rank(), 0, 0))


@on_ranks(2)
def test_a_receive_progresses_without_a_wait(world: World) -> None:
    """Rank 1 enters a collective before it waits; rank 0's long messages must be sent all the same."""
    n, long = 6, 300_000
    if world.rank == 0:
        for i in range(n):
            dist.send(message(0, 1, i, long), 1, tag=i)
        dist.barrier()
        return
    outs = [torch.zeros(long) for _ in range(n)]
    works = [dist.irecv(out, 0, tag=i) for i, out in enumerate(outs)]
    dist.barrier()
    for i, (work, out) in enumerate(zip(works, outs, strict=True)):
        work.wait()
        assert torch.equal(out, message(0, 1, i, long))


@on_ranks(3)
def test_more_messages_than_there_is_room_to_announce(world: World) -> None:
    others = [rank for rank in range(world.size) if rank != world.rank]
    tag_and_size = [(i % 3, 1 + i % 11) for i in range(500)]
    sent = [message(world.rank, dest, i, size) for i, (_, size) in enumerate(tag_and_size) for dest in others]
    tags = [tag for tag, _ in tag_and_size for _ in others]
    works = [dist.isend(x, others[i % len(others)], tag=tags[i]) for i, x in enumerate(sent)]
    for i, (tag, size) in enumerate(tag_and_size):
        for source in others:
            out = torch.zeros(size)
            dist.recv(out, source, tag=tag)
            assert torch.equal(out, message(source, world.rank, i, size)), (source, i)
    for work in works:
        work.wait()


@on_ranks(2, 4)
def test_batches(world: World) -> None:
    to, source = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    outs = [torch.zeros(50_000) for _ in range(3)]
    ops = [dist.P2POp(dist.irecv, out, source, tag=i) for i, out in enumerate(outs)]
    sends = [message(world.rank, to, i, 50_000) for i in range(3)]
    ops += [dist.P2POp(dist.isend, x, to, tag=i) for i, x in enumerate(sends)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for i, out in enumerate(outs):
        assert torch.equal(out, message(source, world.rank, i, 50_000))


@on_ranks(2)
def test_futures_of_messages(world: World) -> None:
    other, out = 1 - world.rank, torch.zeros(4)
    future = dist.irecv(out, other).get_future().then(lambda f: f.value()[0] + 1)
    total = torch.ones(2)
    dist.all_reduce(total)  # is not blocked by a pending receive
    dist.all_reduce(total, async_op=True).get_future().wait()
    dist.send(torch.full((4,), float(world.rank)), other)
    assert future.wait().tolist() == [other + 1.0] * 4


@on_ranks(2)
def test_a_message_of_another_size_affects_only_its_receive(world: World) -> None:
    if world.rank == 0:
        dist.send(torch.ones(10), 1)
        dist.send(torch.ones(20_000), 1, tag=1)
        dist.send(torch.full((3,), 2.0), 1)
    else:
        out = torch.zeros(3)
        with pytest.raises(ValueError, match="40 bytes from rank 0 for a tensor of 12"):
            dist.recv(out, 0)
        dist.recv(out, 0)
        assert out.tolist() == [2.0] * 3
        with pytest.raises(ValueError, match="80000 bytes"):
            dist.recv(out, 0, tag=1)
    dist.barrier()


@on_ranks(2, seconds=1.0)
def test_a_message_that_never_comes(world: World) -> None:
    out = torch.zeros(3)
    if world.rank == 0:
        with pytest.raises(RuntimeError, match="rank 1 has sent no message with tag 4"):
            dist.recv(out, 1, tag=4)
        work = dist.irecv(out, 1, tag=5)
        with pytest.raises(RuntimeError, match="tag 5"):
            work.wait(timedelta(seconds=0.05))
        assert not work.is_completed()
        world.ours.get_group_store().set("go", "on")
        work.wait()  # it may still arrive
        assert out.tolist() == [5.0] * 3
    else:
        world.ours.get_group_store().wait(["go"])
        dist.send(torch.full((3,), 5.0), 0, tag=5)


@pytest.mark.parametrize("leave", ["vanish", "free"])
def test_a_sender_that_is_gone(leave: str) -> None:
    with job(3, _gone, leave, leave=leave) as ranks:
        outcomes = ranks.outcomes(20)
    for rank in (0, 2):
        assert outcomes[rank].error is None, outcomes[rank].trace


def _gone(world: World, leave: str) -> None:
    out = torch.zeros(3)
    if world.rank == 1:
        dist.send(torch.ones(3), 0)
        if leave == "vanish":
            time.sleep(0.2)  # the message is in flight
            os._exit(3)
        return
    if world.rank == 0:
        dist.recv(out, 1)  # its last message
        assert out.tolist() == [1.0] * 3
    with pytest.raises(pycollective.PeerLostError, match="rank 1 is gone") as caught:
        dist.recv(out, 1)
    assert caught.value.rank == 1


@on_ranks(2, reuse=False)
def test_the_thread_that_receives_ends_with_the_group(world: World) -> None:
    store = world.ours.get_group_store()
    if world.rank == 1:
        store.wait(["over"])
        with pytest.raises(pycollective.CommunicatorError):
            dist.send(torch.ones(3), 0)  # is announced, although it cannot be sent
        return
    failures: list[Any] = []
    threading.excepthook = failures.append
    work = dist.irecv(torch.zeros(3), 1)
    (thread,) = (each for each in threading.enumerate() if each.name == "pycollective-messages")
    world.ours.comm.backend.fail(pycollective.CommunicatorError("over"))
    store.set("over", "yes")
    thread.join(deadline(10))
    assert not thread.is_alive() and not failures
    with pytest.raises(pycollective.CommunicatorError, match="over"):
        work.wait()


def test_old_announcements_are_not_mistaken_for_new_ones() -> None:
    """The table is reused: what a slot holds from the previous round is not the next message."""
    sender, receiver = local_world(2).run(lambda comm: Mailbox(comm.allgather_object, comm.rank, comm.size))
    for lap in range(3):
        for i in range(SLOTS):
            assert sender.room(1)
            sender.announce(1, -i if lap % 2 else i, 1000 * lap + i)
        assert not sender.room(1) and sender.room(0)
        for i in range(SLOTS):
            assert receiver.next(0) == (-i if lap % 2 else i, 1000 * lap + i)
            assert receiver.next(0) is not None  # stays until it is taken
            receiver.take(0)
            assert sender.room(1)
        assert receiver.next(0) is None and receiver.next(1) is None
    sender.announce(1, 2**31 - 1, 2**40)
    sender.announce(1, -(2**31), 0)
    assert receiver.next(0) == (2**31 - 1, 2**40)
    receiver.take(0)
    assert receiver.next(0) == (-(2**31), 0)
