"""Seeded faults: a text of the sources, what replaces it, and the tests that must notice.

The old text occurs once in its file. In C++ it is an expression, or a statement that ends with a semicolon or a brace:
all of them are compiled into one build, which `PC_MUTANT` switches; see run.py.
"""

from __future__ import annotations

from dataclasses import dataclass

CALLS = ("tests/comm/collectives/test_reductions.py", "tests/comm/collectives/test_moving.py")
SHARED = ("tests/comm/host/test_shared_arrays.py",)
TENSORS = ("tests/frameworks/torch/test_shared_tensors.py",)
WINDOWS = ("tests/comm/collectives/test_placements.py",)
STAGED = ("tests/comm/collectives/test_staging.py",)
MISMATCHES = ("tests/comm/host",)
KERNELS = ("tests/comm/collectives/test_kernels.py", "tests/comm/collectives/test_bits.py")
PROOFS = ("tests/schedule",)
ENGINE = ("tests/engine",)
VIRTUAL_HOSTS = ("tests/comm/hosts",)
HOSTS = ("tests/hosts",)
OPTIM = ("tests/optim",)
HVD = ("tests/frameworks/torch/hvd",)
C10D = ("tests/frameworks/torch/distributed",)
LAUNCHER = ("tests/cli",)
BOOTSTRAP = ("tests/comm/bootstrap", "tests/cli/test_places.py")


@dataclass(frozen=True)
class Mutant:
    """One fault. `tests`: files and folders, the ones that should fail first in front."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = (
    # -- the executor --------------------------------------------------------------------------------------------------
    Mutant(
        "a wait is dropped", "csrc/executor/execute.h",
        "if (!g.await(wait.peer, target)) return false;",
        "if (wait.count != 1 && !g.await(wait.peer, target)) return false;", CALLS,
    ),
    Mutant(
        "a wait ends one step early", "csrc/executor/execute.h",
        "tile_base + static_cast<uint64_t>(wait.count)",
        "tile_base + static_cast<uint64_t>(wait.count) - static_cast<uint64_t>(wait.count > 1)", CALLS,
    ),
    Mutant("nobody waits for the exit", "csrc/executor/execute.h", "g.exits(s)", "0", WINDOWS),
    Mutant(
        "slots of scratch are not guarded", "csrc/executor/execute.h",
        "if (s.cells() > 0 && !g.all(g.guard(slot))) return g.failure();", ";", CALLS,
    ),
    Mutant("a lag is one tile short", "csrc/executor/execute.h", "tile -= lag;", "tile -= lag - 1;", VIRTUAL_HOSTS),
    Mutant(
        "two tiles share a slot", "csrc/executor/cpu/group.h",
        "static_cast<uint32_t>(tile) * plan_.slot_segments", "static_cast<uint32_t>(tile & ~1) * plan_.slot_segments",
        STAGED,
    ),
    Mutant(
        "the ranks' calls are not compared", "csrc/executor/cpu/group.h",
        "return reached({peer, target}) && (team_.checked_[peer] == op_.sequence || team_.check_call(op_, peer));",
        "return reached({peer, target});", MISMATCHES,
    ),
    Mutant(
        "earlier calls are not compared", "csrc/executor/cpu/calls.cpp",
        "(history ^ call)", "call", MISMATCHES,
    ),
    Mutant(
        "a rank that was stopped trusts what it has read", "csrc/executor/cpu/calls.cpp",
        "(given_up(op) || peer_gave_up(op))", "given_up(op)", MISMATCHES,
    ),
    Mutant(
        "a call is given up with a later one", "csrc/executor/cpu/waiting.cpp",
        "if (!continues) failed_ = op.sequence;", "{ continues = false; failed_ = op.sequence; }", MISMATCHES,
    ),
    Mutant(
        "other hosts are not looked at", "csrc/executor/cpu/calls.cpp",
        "look_at(op, static_cast<int32_t>(op.sequence % size()))", "true", VIRTUAL_HOSTS,
    ),
    Mutant(
        "another host is not told of a fault", "csrc/executor/cpu/team.cpp",
        "control_.poison(members_.self(), why) && remotes_.control",
        "control_.poison(members_.self(), why) && !remotes_.control", VIRTUAL_HOSTS,
    ),
    Mutant(
        "a refused call is queued", "csrc/progress/progress.cpp",
        'std::call_once(started_, [this] { start_thread("pc-progress", [this] { loop(); }); });',
        "std::call_once(started_, [this, &task] { try { start_thread(\"pc-progress\", [this] { loop(); }); }"
        "catch (...) { const std::lock_guard guard(mutex_); Queue& late = queue_of(task->team_.get()); "
        "Task* end = task.get(); (late.head == nullptr ? late.head : late.last->next_) = task; late.last = end; "
        "throw; } });",
        ("tests/comm/test_nonblocking.py", "tests/comm"),
    ),
    Mutant(
        "chunks lose their last element", "csrc/schedule/layout.cpp", "std::min(count - begin, piece)",
        "std::min(count - begin, piece) - static_cast<int64_t>(count > begin && c > 0)", CALLS,
    ),
    Mutant(
        "a named segment is left behind", "csrc/window/posix_shm.cpp", "if (owner_) unlink((kFolder + name_).c_str());",
        ";", ("tests/comm/host/test_exits.py",),
    ),
    # -- kernels -------------------------------------------------------------------------------------------------------
    Mutant(
        "bfloat16 is truncated", "csrc/dtype/lanes.h",
        "(word + 0x7fffu + ((word >> 16) & 1u)) >> 16", "word >> 16", KERNELS,
    ),
    Mutant(
        "bfloat16 rounds halves up", "csrc/dtype/lanes.h", "0x7fffu + ((word >> 16) & 1u)", "0x8000u + (word & 0u)",
        KERNELS,
    ),
    Mutant(
        "a NaN on the left is lost", "csrc/dtype/operators.h", "((a < b) | (a != a)) ? a : b", "(a < b) ? a : b",
        KERNELS,
    ),
    Mutant(
        "the last element of a short array is left out", "csrc/dtype/kernels_impl.h",
        "std::memcpy(static_cast<void*>(into), padded, b.count * sizeof(T))",
        "std::memcpy(static_cast<void*>(into), padded, (b.count - 1) * sizeof(T))", KERNELS,
    ),
    Mutant(
        "one contribution is scaled early", "csrc/executor/plan.cpp",
        "scaling.active() && (block.k > 1 || block.complete)", "scaling.active()", KERNELS,
    ),
    # -- shared arrays -------------------------------------------------------------------------------------------------
    Mutant(
        "placements are overwritten before peers have read them", "csrc/executor/cpu/calls.cpp",
        "op.sequence - handshake_ >= kRing", "false", SHARED,
    ),
    Mutant(
        "shared arrays are used before all ranks have mapped them", "csrc/executor/cpu/heaps.cpp",
        "control_.block(members_.rank).heap_readers.load(std::memory_order_acquire) + 1 == members_.here.size()",
        "true", SHARED,
    ),
    Mutant(
        "memory to which a stopped rank may write is reused", "csrc/window/heap.cpp", "retired_.contains(offset)",
        "false", SHARED,
    ),
    Mutant(
        "a child shares its parent's arrays", "csrc/window/heap.cpp",
        "map(segment_->data(), end_, 0, MAP_PRIVATE);", "map(segment_->data(), end_, 0, MAP_SHARED);", SHARED,
    ),
    Mutant(
        "a child shares its parent's tensors", "csrc/window/heap.cpp",
        "map(const_cast<char*>(address), memory.bytes, memory.offset, MAP_PRIVATE);", ";", TENSORS,
    ),
    Mutant(
        "a view of a moved tensor is taken for its beginning", "csrc/window/heap.cpp",
        "static_cast<int64_t>(memory.offset) + (at - begin)", "static_cast<int64_t>(memory.offset)", TENSORS,
    ),
    Mutant(
        "the place of a tensor that was freed is still known", "csrc/window/heap.cpp",
        "heap->forget_adopted(static_cast<const char*>(address), 1);", ";", TENSORS,
    ),
    # -- the engine ----------------------------------------------------------------------------------------------------
    Mutant(
        "a slot that is another operation's now is used", "csrc/engine/negotiation/board.cpp",
        "item.slot >= 0 && slot(item.slot).hash == hash", "item.slot >= 0", ENGINE,
    ),
    Mutant(
        "operators are fused", "csrc/engine/negotiation/signature.cpp", "dtype == other.dtype && op == other.op",
        "dtype == other.dtype", ENGINE,
    ),
    Mutant(
        "memory orders are not compared", "csrc/engine/negotiation/announcement.cpp", "pass(s.axes);",
        "{ auto none = s.axes; pass(none); }", ENGINE,
    ),
    Mutant(
        "a refused group stays announced", "csrc/engine/negotiation/board.cpp",
        "for (const Announcement* item : items.first(noted)) slot(item->slot).announced.remove(rank_);", ";", ENGINE,
    ),
    Mutant(
        "a refusal is not forgotten", "csrc/engine/negotiation/board.cpp",
        "if (header_->refused != 0) drop_refusals(s.name);", ";", ENGINE,
    ),
    Mutant(
        "a rank that has joined is waited for", "csrc/engine/negotiation/policy.h",
        "for (int32_t rank = size - 1; rank >= 0; --rank)\n    if (waits_for(kind, announced, joined, rank)) return "
        "false;",
        "for (int32_t rank = size - 1; rank >= 0; --rank)\n    if (!announced.has(rank)) return false;", ENGINE,
    ),
    Mutant(
        "a name without number is lost", "pycollective/hvd/handles.py", "            _names[key] -= 1\n",
        "            pass\n", HVD,
    ),
    Mutant(
        "operations wait without end", "pycollective/engine/settings.py",
        'if not settings.is_set("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", env):', "if False:", ENGINE,
    ),
    Mutant(
        "a measured choice is taken for larger calls", "pycollective/comm/tuning_file.py", "nbytes <= row.up_to",
        "nbytes", ("tests/comm/test_tuning.py",),
    ),
    Mutant(
        "Adasum takes off all that is common", "pycollective/engine/adasum.py", "1 - dot / (2 * norm_a)",
        "1 - dot / norm_a", ("tests/engine/test_adasum.py",),
    ),
    # -- schedules -----------------------------------------------------------------------------------------------------
    Mutant(
        "the verifier overlooks what is added twice", "pycollective/schedule/verifier/contributions.py",
        '("has", content.more, " twice"),', '("has", 0, " twice"),', PROOFS,
    ),
    Mutant(
        "the verifier overlooks what is missing", "pycollective/schedule/verifier/contributions.py",
        "expected & ~content.once", "0", PROOFS,
    ),
    Mutant(
        "the verifier does not touch memory", "pycollective/schedule/verifier/interleaving.py",
        "                    self.accesses.touch(rank, index, call, tile, counter)\n", "", PROOFS,
    ),
    Mutant(
        "a needed wait counts as implied", "pycollective/schedule/compiler/waits.py",
        "before in step.depends if before.rank != rank}", "before in step.depends if before.rank > rank}", PROOFS,
    ),
    Mutant(
        "a chunk is summed elsewhere", "pycollective/topologies/direct.py",
        "p[p.ranks, c] = p.sum((p[q, c] for q in p.ranks), at=c)",
        "p[p.ranks, c] = p.sum((p[q, c] for q in p.ranks[1:]), at=c)", ("tests/schedule", "tests/comm/collectives"),
    ),
    # -- communicators -------------------------------------------------------------------------------------------------
    Mutant(
        "split ignores the keys", "pycollective/comm/communicator.py",
        "sorted((its, r) for r, joins, c, its", "sorted((r, r) for r, joins, c, its",
        ("tests/comm/test_communicators.py",),
    ),
    Mutant(
        "an out that is not used is read", "csrc/bindings/calls/collective_calls.cpp",
        "shape != nullptr ? or_none(call.out) : py::none()", "or_none(call.out)",
        ("tests/comm/arguments/test_arguments.py",),
    ),
    Mutant(
        "counts that differ are not reported", "csrc/bindings/calls/collective_calls.cpp",
        "wanted(to, from) != rows(from, to)", "false", ("tests/comm/test_plain_calls.py",),
    ),
    Mutant(
        "a failure of another rank is an object", "pycollective/comm/objects.py", "        if length >= 0:\n",
        "        if True:\n", ("tests/comm",),
    ),
    Mutant(
        "a helper takes a rank's place", "pycollective/comm/bootstrap/places.py",
        'os.path.isdir("/proc/self") and (parent := _rank_above(variables))', "(parent := 0)", BOOTSTRAP,
    ),
    Mutant(
        "links of others are followed", "pycollective/comm/private_file.py",
        "os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW", "os.O_CREAT", ("tests/comm/test_private_file.py",),
    ),
    Mutant(
        "files of other users are trusted", "pycollective/comm/private_file.py", "found.st_uid != os.geteuid()",
        "False", ("tests/comm/test_private_file.py",),
    ),
    Mutant(
        "who dials needs no token", "pycollective/comm/bootstrap/sockets/authentication.py",
        "if not hmac.compare_digest(proof, _mac(self._token, _DIALLED, self._transcript + text)):", "if False:",
        ("tests/comm/hosts/test_connections.py", "tests/security"),
    ),
    # -- between hosts -------------------------------------------------------------------------------------------------
    Mutant(
        "both halves continue", "pycollective/comm/hosts/shrink.py", "2 * len(members) > size or", "2 * len(members) "
        ">= size or", ("tests/hosts/test_shrink.py", *HOSTS),
    ),
    Mutant(
        "a second loss ends shrink", "pycollective/comm/hosts/team.py",
        "if time.monotonic() > end:\n                        raise\n", "raise\n", HOSTS,
    ),
    Mutant(
        "connecting ranks do not look for lost ones", "pycollective/comm/hosts/connections.py",
        "            check()\n            now", "            now", VIRTUAL_HOSTS,
    ),
    # -- optimizers ----------------------------------------------------------------------------------------------------
    Mutant(
        "the velocity is not damped", "pycollective/optim/sgd.py", "                v *= momentum\n", "", OPTIM,
    ),
    Mutant(
        "LAMB's second moment is not corrected", "pycollective/optim/rules.py", "sqrt(v / (1 - beta2**t))", "sqrt(v)",
        OPTIM,
    ),
    Mutant(
        "shares of rows overlap", "pycollective/optim/partition.py", "rows[comm.rank :: comm.size]",
        "rows[max(0, comm.rank - 1) :: comm.size]", OPTIM,
    ),
    Mutant(
        "all ranks draw the same rows", "pycollective/optim/partition.py", "spawn_key=(comm.rank,)", "spawn_key=(0,)",
        OPTIM,
    ),
    Mutant(
        "gradients are summed", "pycollective/optim/fusion.py", 'op="avg", topology=topology',
        'op="sum", topology=topology', OPTIM,
    ),
    Mutant(
        "the last rows are not dropped", "pycollective/optim/partition.py", "rows[: n - n % comm.size]", "rows[:n]",
        OPTIM,
    ),
    Mutant(
        "a graph has a neighbour too few", "pycollective/graphs/fixed.py", "(size - 1).bit_length()",
        "size.bit_length() - 1", ("tests/graphs",),
    ),
    # -- torch ---------------------------------------------------------------------------------------------------------
    Mutant(
        "a future's error is its value", "pycollective/torch/distributed/execution/work.py",
        "        self._set_unwrap_func(_reveal)\n        self.set_result(_Failure(result))\n",
        "        super().set_exception(result)\n", C10D,
    ),
    Mutant(
        "callbacks run at once", "pycollective/torch/distributed/execution/work.py",
        "            self._jobs.submit(job)\n", "            job()\n", C10D,
    ),
    Mutant(
        "a tensor that is not contiguous is changed in a copy", "pycollective/torch/hvd/tensors.py",
        '        raise ValueError("tensor: one that is changed in place must be contiguous")\n',
        "        return tensor.detach().contiguous()\n", HVD,
    ),
    Mutant(
        "negative tags come out positive", "pycollective/torch/distributed/point_to_point/mailbox.py",
        "tag - (1 << 32) if tag >> 31 else tag", "tag", ("tests/frameworks/torch/distributed/test_messages.py",),
    ),
    Mutant(
        "the running variance is biased", "pycollective/torch/sync_batch_norm.py", "variance * (count / (count - 1))",
        "variance", ("tests/frameworks/torch/test_sync_batch_norm.py",),
    ),
    Mutant(
        "training changes what was committed", "pycollective/torch/elastic/state.py", "copy.deepcopy(self.saved)",
        "self.saved", ("tests/frameworks/torch/elastic",),
    ),
    # -- elastic jobs --------------------------------------------------------------------------------------------------
    Mutant(
        "excluded hosts get new workers", "pycollective/elastic/host_list.py",
        "if self.is_excluded(host, now) else slots", "if False else slots", ("tests/elastic",),
    ),
    # -- the launcher --------------------------------------------------------------------------------------------------
    Mutant(
        "parts of lines are withheld", "pycollective/cli/launch/output.py",
        "if self.rest and now - self._since >= _PATIENCE:", "if False:", LAUNCHER,
    ),
    Mutant(
        "a killed rank has ended well", "pycollective/cli/launch/culprit.py",
        "return self.code if self.code >= 0 else 128 - self.code", "return max(self.code, 0)", LAUNCHER,
    ),
    Mutant(
        "the launcher stops alone", "pycollective/cli/launch/signals.py", "        pass_on(number)\n", "", LAUNCHER,
    ),
)  # fmt: skip
