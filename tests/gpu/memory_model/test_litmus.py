"""Litmus tests of the ways in which the GPU's kernels communicate, with the memory order of the code itself.

The operations and their order are those of csrc/executor/execute.h and csrc/executor/cuda/kernels; the semantics and
scopes of flags and packets are read from device.h there. So weakening one of them fails here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gpu.memory_model.ptx import ReadsFrom, Thread, reachable

DEVICE = Path(__file__).parents[3] / "csrc/executor/cuda/kernels/device.h"
_NAME = re.compile(r"(\w+)\(")
_ACCESS = re.compile(r'asm volatile\("(?:ld|st)\.(relaxed|acquire|release)\.(\w+)\.global')

Code = Mapping[tuple[str, str], str]
"""(function of device.h, scope) -> what its instruction is: "acquire.sys"."""


def annotations(source: str, *defined: str) -> Code:
    """The memory order of the functions of device.h, as nvcc compiles them."""
    text = re.sub(r"^#include .*$", "", source, flags=re.MULTILINE)
    options = ["-E", "-P", "-x", "c++", "-D__CUDACC__", *(f"-D{name}" for name in defined), "-"]
    kept = subprocess.run(["c++", *options], input=text, text=True, capture_output=True, check=True).stdout
    return {
        (name[1], access[2]): f"{access[1]}.{access[2]}"
        for function in kept.split("PC_FN ")
        if (name := _NAME.search(function))
        for access in _ACCESS.finditer(function)
    }


@pytest.fixture(scope="module")
def code() -> Code:
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler, whose preprocessor is used")
    return annotations(DEVICE.read_text())


Threads = Callable[[str, str, tuple[int, int, int]], list[Thread]]
"""Makes them from the instructions of store_flag and load_flag, and the numbers of three GPUs."""
Wrong = Callable[[ReadsFrom], bool]
"""Whether loads have read what they must not."""


def handed_over(first: str, then: str, *later: str) -> Threads:
    """One operation before another of the next GPU, by a flag; other threads of both blocks store and load the flag."""
    return lambda st, ld, gpu: [
        Thread(gpu[0], 0, [first, "bar 1"]),
        Thread(gpu[0], 0, ["bar 1", f"{st} flag=set", *(f"{st} flag={label}" for label in later)]),
        Thread(gpu[1], 1, [f"{ld} flag=seen", "bar 2"]),
        Thread(gpu[1], 1, ["bar 2", then]),
    ]


SHAPES: dict[str, tuple[Threads, Wrong]] = {
    # publish(), after the barrier of all(true), and await().
    "publish and await": (
        handed_over("st.weak data=new", "ld.weak data=got"),
        lambda reads: reads["seen"] == "set" and reads["got"] is None,
    ),
    # A wait is satisfied by a later value of the counter, too.
    "the counter has gone on": (
        handed_over("st.weak data=new", "ld.weak data=got", "later"),
        lambda reads: reads["seen"] == "later" and reads["got"] is None,
    ),
    # guard(), exit waits: what a reader has consumed is written again.
    "a reader sees what comes after": (
        handed_over("ld.weak data=got", "st.weak data=next"),
        lambda reads: reads["seen"] == "set" and reads["got"] == "next",
    ),
    # The compiler leaves out a wait that two others imply (pycollective/schedule/compiler).
    "a wait implied over a third rank": (
        lambda st, ld, gpu: [
            Thread(gpu[0], 0, ["st.weak data=new", "bar 1"]),
            Thread(gpu[0], 0, ["bar 1", f"{st} one=set"]),
            Thread(gpu[1], 1, [f"{ld} one=seen", "bar 2"]),
            Thread(gpu[1], 1, ["bar 2", f"{st} two=set too"]),
            Thread(gpu[2], 2, [f"{ld} two=seen too", "bar 3"]),
            Thread(gpu[2], 2, ["bar 3", "ld.weak data=got"]),
        ],
        lambda reads: (reads["seen"], reads["seen too"], reads["got"]) == ("set", "set too", None),
    ),
    # Two ranks write a place in turn.
    "two writers in turn": (
        lambda st, ld, gpu: [
            Thread(gpu[0], 0, ["st.weak data=first", f"{st} one=set"]),
            Thread(gpu[1], 1, [f"{ld} one=seen", "bar 2"]),
            Thread(gpu[1], 1, ["bar 2", "st.weak data=second", f"{st} two=set too"]),
            Thread(gpu[2], 2, [f"{ld} two=seen too", "bar 3"]),
            Thread(gpu[2], 2, ["bar 3", "ld.weak data=got"]),
        ],
        lambda reads: (reads["seen"], reads["seen too"], reads["got"]) == ("set", "set too", "first"),
    ),
    # announce() and same_call(): one thread each writes and reads an entry.
    "an entry": (
        lambda st, ld, gpu: [
            Thread(gpu[0], 0, ["st.weak entry=new", f"{st} flag=set"]),
            Thread(gpu[1], 1, [f"{ld} flag=seen", "ld.weak entry=got"]),
        ],
        lambda reads: reads["seen"] == "set" and reads["got"] is None,
    ),
}
"""The ways in which ranks communicate, each with the outcome that would be an error."""
ONE_GPU, THREE = (0, 0, 0), (0, 1, 2)


def goes_wrong(name: str, code: Code, scope: str, gpus: tuple[int, int, int]) -> bool:
    store, load = f"st.{code['store_flag', scope]}", f"ld.{code['load_flag', scope]}"
    threads, wrong = SHAPES[name]
    return reachable(threads(store, load, gpus), wrong)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("scope", "gpus"), [("sys", THREE), ("sys", ONE_GPU), ("gpu", ONE_GPU)])
def test_flags_order_data(name: str, scope: str, gpus: tuple[int, int, int], code: Code) -> None:
    """At system scope between GPUs; ranks of one launch use the GPU's."""
    assert not goes_wrong(name, code, scope, gpus)


def test_the_scope_of_a_gpu_does_not_suffice_between_gpus(code: Code) -> None:
    assert goes_wrong("publish and await", code, "gpu", THREE)


@pytest.mark.parametrize("scope", ["gpu", "sys"])
@pytest.mark.parametrize(("strong", "weak"), [("ld.acquire", "ld.relaxed"), ("st.release", "st.relaxed")])
def test_a_weakened_flag_is_found(strong: str, weak: str, scope: str) -> None:
    source = DEVICE.read_text()
    assert source.count(f"{strong}.{scope}.global") == 1
    weakened = annotations(source.replace(f"{strong}.{scope}.global", f"{weak}.{scope}.global"))
    wrong = [name for name in SHAPES if goes_wrong(name, weakened, scope, ONE_GPU)]
    assert "publish and await" in wrong


def test_the_relaxed_flag_of_the_build_for_tests_is_found() -> None:
    code = annotations(DEVICE.read_text(), "PC_TEST_RELAXED_FLAG")
    assert goes_wrong("publish and await", code, "sys", THREE)


def packets(code: Code, calls: int, poll: str) -> list[Thread]:
    """Ranks that exchange packets in `calls` calls, in which rank 1 reads the first call's packet of rank 0."""
    store, load = f"st.{code['store_packet', 'sys']}", f"{poll}ld.{code['load_packet', 'sys']}"
    threads = []
    for rank in range(2):
        operations: list[str] = []
        for call in range(calls):
            parity = call % 2
            operations.append(f"{store} to {1 - rank} parity {parity}={rank} stores {call}")
            operations.append(f"{load} to {rank} parity {parity}={rank} loads {call}")
        threads.append(Thread(rank, rank, operations))
    return threads


def overtaken(reads: ReadsFrom) -> bool:
    """The first call's load sees the packet of the call after next, which rank 0 sends once it has seen the second."""
    return reads["1 loads 0"] == "0 stores 2" and reads["0 loads 1"] == "1 stores 1"


def test_a_packet_is_not_overwritten_before_it_is_read(code: Code) -> None:
    """Data and flag arrive in one word, so that relaxed accesses suffice. Two parities suffice, too: a rank sends the
    packet of the call after next only because it has seen its peer's next one, which the peer sends only because it
    has seen the first one."""
    assert not reachable(packets(code, 3, "poll."), overtaken)
    assert reachable(packets(code, 3, ""), overtaken), "without that dependency it could"
