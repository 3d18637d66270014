"""Finding topologies: by name, with parameters, from a file; and rejecting invalid ones."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pycollective.errors import ProgramError, TopologyError
from pycollective.schedule import Placement, Program, compile, multiple_of, simulate, trace, verify_topology
from pycollective.schedule.language import registry
from pycollective.schedule.language.hosts import equal_shares
from pycollective.schedule.language.registry import describe, get, info, label, load, names, topology
from pycollective.schedule.verifier.verifier import supported_sizes
from pycollective.topologies.ring import Ring
from pycollective.topologies.wheel import Wheel

FILE = '''
from pycollective.schedule import Program, topology

@topology("{name}", small=1000, order="fixed")
class Pair:
    """Everything through one rank.

    More.
    """
    middle: int = 0

    def allreduce(self, p: Program) -> None:
        for c in p.chunks(1):
            p[self.middle, c] = p.sum(p[q, c] for q in p.ranks)
            p[p.ranks, c] = p[self.middle, c]
'''


def test_built_in_topologies_are_found() -> None:
    files = {path.stem for path in (Path(registry.__file__).parents[2] / "topologies").glob("[!_]*.py")}
    assert {"direct", "halving_doubling", "random", "ring", "star", "tree", "wheel"} <= files <= set(names())
    assert all(row.doc.endswith(".") or ":" in row.doc for row in describe())


def test_a_topology_is_a_name_a_call_a_class_or_an_instance() -> None:
    assert get("ring") == get(Ring) == Ring()
    wheel = Wheel(hub=3)
    assert get(wheel) is wheel
    assert get("wheel(hub=3)") == get(" wheel( hub = 3 ) ") == wheel != get("wheel")
    assert label(wheel) == "wheel(hub=3)"
    assert label(Wheel(hub=0)) == "wheel"
    assert info("wheel(hub=3)") is info(Wheel) is info(wheel)


INVALID = {
    "rnig": "did you mean ring",
    "nothing like it": "there are direct,",
    "wheel(hob=3)": "wheel has the parameters: hub",
    "ring(hub=3)": "ring has the parameters: none",
    "wheel(3)": "write name(parameter=value, ...)",
    "wheel(hub=open('x'))": "write name(parameter=value, ...)",
    "wheel(hub=": "write name(parameter=value, ...)",
}


@pytest.mark.parametrize("text", INVALID)
def test_invalid_topologies_are_rejected(text: str) -> None:
    with pytest.raises(TopologyError, match=re.escape(INVALID[text])):
        get(text)


def test_also_rejected() -> None:
    with pytest.raises(TopologyError, match="decorate it"):
        get(3)
    with pytest.raises(TopologyError, match="ring has no alltoall; topologies that have it: direct"):
        compile("ring", "alltoall", 2)
    with pytest.raises(TopologyError, match="0 ranks"):
        compile("ring", "broadcast", 0)


def test_the_root_is_0_by_default_and_ignored_where_there_is_none() -> None:
    for call in (trace, compile):
        assert call("ring", "broadcast", 2).root == 0
        assert call("ring", "allreduce", 2, 1).root is None


def test_parameters_can_be_hashed() -> None:
    @topology("listed")
    class Listed(Ring):
        first: object = 0

    for listed in ("listed(first=[3])", Listed(first=[3])):
        with pytest.raises(TopologyError, match=r"(?i)listed\(first=\[3\]\).*unhashable type: 'list'; parameters are"):
            compile(listed, "allreduce", 4)
    for text in ("wheel(hub=[3])", "star(hub=1.5)", "tree(segments='x')"):
        with pytest.raises(TopologyError, match=r"must be an integer.*has the parameters"):
            compile(text, "allreduce", 4)


def test_registration_is_checked() -> None:
    with pytest.raises(TopologyError, match="none of the collectives"):

        @topology("empty")
        class Empty:
            def allredcue(self, p: Program) -> None: ...

    with pytest.raises(TopologyError, match="already registered"):

        @topology("ring")
        class Other:
            def allreduce(self, p: Program) -> None: ...

    for name in ("", "ring(hub=1)", "two words", "mine.py", Wheel):
        with pytest.raises(TopologyError, match="a name is made of"):
            topology(name)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="order 'some' is none of rank"):
        topology("some", order="some")  # type: ignore[arg-type]


def test_a_name_need_not_be_an_identifier() -> None:
    @topology("2d-torus")
    class Torus:
        width: int = 2

        def allreduce(self, p: Program) -> None: ...

    assert label(get("2d-torus(width=3)")) == "2d-torus(width=3)"


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(name="pair"))
    for where in (f"{file}:pair", f"{file}:Pair", str(file)):
        assert label(load(where)) == "pair"
    assert label(load(f"{file}:pair(middle=1)")) == "pair(middle=1)"
    row = info("pair")
    assert (row.small, row.order, row.collectives) == (1000, "fixed", ("allreduce",))
    assert row.doc == "Everything through one rank."
    assert compile("pair(middle=1)", "allreduce", 2).topology == "pair(middle=1)"
    with pytest.raises(TopologyError, match="defines pair"):
        load(f"{file}:pear")
    with pytest.raises(TopologyError, match="there is no file"):
        load(f"{tmp_path / 'other.py'}:pair")
    file.write_text(FILE.format(name="ring"))
    with pytest.raises(TopologyError, match="'ring' is already registered by"):
        load(f"{file}:ring")
    assert label(get("pair")) == "pair"  # a file that fails has changed nothing


def test_threads_load_a_file_at_once(tmp_path: Path) -> None:
    """Ranks may be threads, whose first calls name the same file."""
    with ThreadPoolExecutor(4) as pool:
        for number in range(20):
            file = tmp_path / f"at-once-{number}.py"
            file.write_text(FILE.format(name=f"at-once-{number}"))
            assert len(set(pool.map(load, [str(file)] * 40))) == 1


def test_threads_read_parameters_at_once() -> None:
    """A collection of garbage within Python's parser runs finalizers, and these let other threads parse."""

    class Garbage:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            pass

    def find(text: str) -> object:
        Garbage()
        return registry.find(text)

    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(1)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(find, ["wheel(hub=3)"] * 2000)) == {Wheel(hub=3)}
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)


def test_a_file_that_is_loaded_again_keeps_its_instances_until_it_is_edited(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(name="pair_kept"))
    one, other = load(str(file)), load(f"{file}:pair_kept(middle=1)")
    before = compile("pair_kept", "allreduce", 2)
    assert compile(one, "allreduce", 2) == before
    assert compile(other, "allreduce", 2) == compile("pair_kept(middle=1)", "allreduce", 2)
    file.write_text(FILE.format(name="pair_kept").replace("p[self.middle, c] = p", "p[self.middle + 1, c] = p"))
    load(str(file))
    assert compile("pair_kept", "allreduce", 2) != before
    with pytest.raises(TopologyError, match="Pair has been redefined since this instance was created"):
        compile(one, "allreduce", 2)


def test_files_of_the_same_name_in_different_folders_are_different(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(FILE.format(name=f"pair_{folder}"))
        assert label(load(str(tmp_path / folder / "mine.py"))) == f"pair_{folder}"
    (tmp_path / "two" / "mine.py").write_text(FILE.format(name="pair_one"))
    with pytest.raises(TopologyError, match=r"'pair_one' is already registered by .*one/mine.py:Pair"):
        load(str(tmp_path / "two" / "mine.py"))


def test_a_name_is_registered_once_whatever_was_loaded_first(tmp_path: Path) -> None:
    """In a process in which no built-in topology has been requested."""
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(name="ring"))
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True)
    assert "TopologyError: topology 'ring' is already registered by" in done.stderr

    @topology("once")
    class Once(Ring): ...

    def again() -> type:
        class Once(Ring): ...

        return Once

    with pytest.raises(TopologyError, match="register with replace=True"):
        topology("once")(again())
    replaced = topology("once", replace=True)(again())
    assert info("once").cls is replaced
    with pytest.raises(TopologyError, match="redefined"):
        info(Once)


HELPERS = """
from pycollective.schedule import Program, topology

def neighbours(p: Program) -> list[int]:
    return {ranks}

@topology("{name}")
class Helper:
    def allreduce(self, p: Program) -> None:
        for c in p.chunks(1):
            p[p.ranks, c] = p.sum(p[q, c] for q in neighbours(p))
"""
USER = """
from helpers import Helper, neighbours
from pycollective.schedule import topology

@topology("{name}")
class User(Helper):
    pass
"""


def test_a_file_imports_its_siblings(tmp_path: Path) -> None:
    """Those of its own folder, reloaded when edited; and a sibling's topology is registered once."""
    for folder, ranks in (("one", "list(p.ranks)"), ("two", "list(p.ranks)[::-1]")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "helpers.py").write_text(HELPERS.format(ranks=ranks, name=f"helper_{folder}"))
        (tmp_path / folder / "user.py").write_text(USER.format(name=f"user_{folder}"))

    def first_source(where: str) -> int:
        return compile(load(where), "allreduce", 3, placement=Placement.WINDOW).ranks[0].steps[0].sources[0].rank

    one, two = (str(tmp_path / folder / "user.py") for folder in ("one", "two"))
    assert [first_source(one), first_source(two), first_source(one)] == [0, 2, 0]
    assert label(load(str(tmp_path / "one" / "helpers.py"))) == "helper_one"
    assert label(load(one)) == "user_one"
    (tmp_path / "one" / "helpers.py").write_text(HELPERS.format(ranks="[1, 0, 2]", name="helper_one"))
    assert first_source(one) == 1
    assert info("helper_one").cls is not info("helper_two").cls
    assert str(tmp_path / "one") not in sys.path


def test_a_sibling_hides_no_module(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text(FILE.format(name="called_json"))
    load(str(tmp_path / "json.py"))
    import json

    assert json.loads("1") == 1


def test_supported_numbers_of_ranks_are_declared() -> None:
    def powers(n: int) -> bool:
        """a power of two."""
        return n & (n - 1) == 0

    @topology("eight", ranks=8)
    class Eight(Ring): ...

    @topology("grid", ranks=multiple_of("width"))
    class Grid(Ring):
        width: int = 4

    @topology("cube", ranks=powers)
    class Cube(Ring): ...

    @topology("wide", ranks=lambda grid, n: n % grid.width == 1)
    class Wide(Ring):
        width: int = 4

    for where, size, words in (
        ("eight", 3, "eight takes 8 ranks, not 3; the nearest supported: 8"),
        ("grid", 6, "grid takes a multiple of 4 ranks (width), not 6; the nearest supported: 4 and 8"),
        ("grid(width=3)", 4, "grid(width=3) takes a multiple of 3 ranks"),
        ("cube", 6, "cube takes a power of two, not 6; the nearest supported: 4 and 8"),
        ("wide", 6, "the nearest supported: 5 and 9"),
    ):
        for use in (compile, simulate):
            more = () if use is compile else (1000,)
            with pytest.raises(TopologyError, match=re.escape(words)):
                use(where, "allreduce", size, *more)
    assert compile("grid", "allreduce", 8).size == 8
    assert supported_sizes("eight") == [8]
    assert supported_sizes("grid") == [4, 8, 12, 16]
    reports = verify_topology("eight", placements=[Placement.STAGED], collectives=["allreduce"])
    assert [report.title for report in reports] == ["eight allreduce, 8 ranks, STAGED"]
    for wrong in ("8", [], 0, lambda: True, int):
        with pytest.raises((TypeError, ValueError), match="ranks"):
            topology("wrong", ranks=wrong)


def test_mistakes_of_a_topologys_author_are_named() -> None:
    @topology("divides", ranks=lambda size: 12 // (size - 2) > 0)
    class Divides(Ring):
        pass

    with pytest.raises(TopologyError, match="the function given as ranks= raised ZeroDivisionError: "):
        compile(Divides(), "allreduce", 2)

    class Initialized:
        def __init__(self, hub: int = 0) -> None:
            self.hub = hub

        def allreduce(self, p: Program) -> None: ...

    with pytest.raises(TopologyError, match=r"Initialized: parameters are annotated fields .*, no __init__"):
        topology("initialized")(Initialized)

    class Rootless:
        def broadcast(self, p: Program) -> None: ...

    class More:
        def allreduce(self, p: Program, more: int) -> None: ...

    class Defaults(Ring):
        def allreduce(self, p: Program, more: int = 0) -> None: ...
        def allreduce_small(p) -> None: ...  # type: ignore[override,no-untyped-def,misc]

    for wrong, words in (
        (Rootless, r"Rootless.broadcast takes \(self, p, root\), not \(self, p"),
        (More, r"test_registry.py:\d+: .*More.allreduce takes \(self, p\), not \(self, p: .*, more: "),
        (Defaults, r"Defaults.allreduce_small takes \(self, p\), not \(p\)"),
    ):
        with pytest.raises(ProgramError, match=words):
            topology("wrong")(wrong)
    with pytest.raises(TopologyError, match=r"multiple_of\('widht'\) .*; did you mean width\? \(it has width\)"):

        @topology("torus", ranks=multiple_of("widht"))
        class Torus(Ring):
            width: int = 2


def test_a_parameter_without_annotation_is_named() -> None:
    @topology("flat")
    class Flat(Ring):
        width = 2

    hint = "annotate it: width: int = 2"
    with pytest.raises(TopologyError, match=f"flat has the parameters: none; {hint}"):
        get("flat(width=3)")
    with pytest.raises(TopologyError, match=rf"names none of its parameters \(it has none; {hint}\)"):
        topology("flats", ranks=multiple_of("width"))(Flat)


def test_hosts_have_ranks() -> None:
    assert equal_shares(5, 2) == (0, 0, 0, 1, 1)
    for hosts in (0, 3):
        with pytest.raises(ValueError, match=f"2 ranks are on 1 to 2 hosts, not {hosts}"):
            equal_shares(2, hosts)
