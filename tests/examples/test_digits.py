"""The example end to end, as a reader would run it."""

from __future__ import annotations

import functools
import re

import pytest

from labs import EXAMPLES, needs_mpi
from launch import launch
from pycollective.schedule.language import registry

pytest.importorskip("sklearn")
DIGITS = EXAMPLES / "digits.py"
ONE = 1 / 449  # the weight of one held-out digit
OWN = ["direct", "halving_doubling", "random", "ring", "star", "tree", "wheel"]


@functools.cache
def digits(n, launcher, *args):
    """(accuracy, digest) of a run."""
    ran = launch(n, DIGITS, *args, launcher=launcher).check()
    assert ran.outputs[1:] == [""] * (n - 1)
    ((topology, found),) = read(ran.outputs[0]).items()
    assert topology == (args[args.index("--topology") + 1] if "--topology" in args else "direct")
    return found


def read(printed):
    """(accuracy, digest) by topology, of each line."""
    line = r"accuracy (\d\.\d{4})  digest ([0-9a-f]{16})  topology (\S+)\n"
    assert re.fullmatch(f"({line})+", printed), printed
    return {topology: (float(accuracy), digest) for accuracy, digest, topology in re.findall(line, printed)}


EACH = """
import runpy, sys
script, *topologies = sys.argv[1:]
for name in topologies:
    sys.argv[1:] = ["--quiet", "--topology", name]
    runpy.run_path(script, run_name="__main__")
"""


@functools.cache
def under_mpirun():
    """(accuracy, digest) by topology, of one job that trains with one after the other."""
    ran = launch(4, EACH, DIGITS, *OWN, launcher="mpirun", timeout=110).check()
    assert ran.outputs[1:] == [""] * 3
    return read(ran.outputs[0])


def test_all_topologies_of_the_package_are_tested_here():
    home = [row.name for row in registry.describe() if row.cls.__module__.startswith("pycollective.topologies")]
    assert sorted({*home} - {"hierarchical", "ordered"}) == OWN  # on one host these run direct's programs


@pytest.mark.parametrize("topology", [pytest.param(name, marks=needs_mpi) for name in OWN])
def test_under_mpirun_all_topologies_learn_and_rank_order_gives_the_same_bits(topology):
    accuracy, digest = under_mpirun()[topology]
    assert accuracy >= 0.96
    accuracy_of_direct, digest_of_direct = under_mpirun()["direct"]
    assert abs(accuracy - accuracy_of_direct) <= 1.5 * ONE
    if registry.info(topology).order == "rank":
        assert digest == digest_of_direct


def test_ranks_of_the_packages_own_launcher_find_the_same_bits_in_another_order_of_ranks():
    """A hub other than rank 0 still reduces in rank order."""
    _, direct = digits(3, "pycollective", "--epochs", "3", "--quiet")
    _, star = digits(3, "pycollective", "--epochs", "3", "--quiet", "--topology", "star(hub=2)")
    assert star == direct


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_alone_and_with_several_seeds(seed):
    accuracy, _ = digits(1, "alone", "--seed", str(seed), "--quiet")
    assert accuracy >= 0.96


def test_interrupted_training_ends_with_the_same_bits(tmp_path):
    path = str(tmp_path / "digits.npz")
    whole = digits(2, "pycollective", "--epochs", "4", "--quiet")
    half = digits(2, "pycollective", "--epochs", "2", "--quiet", "--checkpoint", path)
    nothing_to_do = digits(2, "pycollective", "--epochs", "2", "--quiet", "--checkpoint", path, "--seed", "5")
    assert nothing_to_do == half != whole
    assert digits(2, "pycollective", "--epochs", "4", "--quiet", "--checkpoint", path) == whole


WEIGHTS = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import digits
train = digits.train
def show(comm, *rest):
    weights = train(comm, *rest)
    print(*(w.tobytes().hex() for w in weights.values()))
    return weights
digits.train = show
digits.main()
"""


def test_all_ranks_end_with_the_same_weights():
    ran = launch(3, WEIGHTS, DIGITS.parent, "--epochs", "1", "--quiet").check()
    first, _accuracy = ran.outputs[0].splitlines()
    assert len(first) > 10_000 and all(text == first + "\n" for text in ran.outputs[1:])


def test_the_progress_bar_is_rank_0s_and_can_be_left_out():
    loud = launch(2, DIGITS, "--epochs", "1").check()
    assert loud.stderr.count("100%") == 1 and "direct, 2 ranks" in loud.stderr
    assert "%" not in launch(2, DIGITS, "--epochs", "1", "--quiet").check().stderr


def test_an_unknown_topology_is_reported_before_training():
    ran = launch(2, DIGITS, "--topology", "rimg")
    assert ran.returncode != 0 and "did you mean ring" in ran.stderr
