"""Finding topologies: by name, with parameters, from a file; and refusing what is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pycollective.errors import TopologyError
from pycollective.schedule import (
    COLLECTIVES,
    Program,
    compile,
    describe,
    get,
    info,
    label,
    load,
    names,
    registry,
    topology,
)
from pycollective.topologies.ring import Ring
from pycollective.topologies.wheel import Wheel

FILE = '''
from pycollective.schedule import Program, topology

@topology("{name}", small=1000, order="fixed")
class Pair:
    """Everything by way of one rank.

    More.
    """
    middle: int = 0

    def allreduce(self, p: Program) -> None:
        for c in p.chunks(1):
            p[self.middle, c] = p.sum(p[q, c] for q in p.ranks)
            p[p.ranks, c] = p[self.middle, c]
'''


def test_ours_are_found_by_being_there() -> None:
    assert {"direct", "halving_doubling", "ring", "star", "tree", "wheel"} <= set(names())
    files = {path.stem for path in (Path(registry.__file__).parents[1] / "topologies").glob("[!_]*.py")}
    assert files <= set(names())


def test_rows_say_what_a_topology_has() -> None:
    rows = {row.name: row for row in describe()}
    assert rows["direct"].collectives == tuple(COLLECTIVES)
    assert rows["direct"].order == "rank"
    assert {"allreduce", "broadcast"} <= set(rows["ring"].collectives)
    assert all((row.doc and row.doc.endswith(".")) or ":" in row.doc for row in rows.values())


def test_a_topology_is_a_name_a_call_a_class_or_an_instance() -> None:
    assert get("ring") == get(Ring) == Ring()
    wheel = Wheel(hub=3)
    assert get(wheel) is wheel
    assert get("wheel(hub=3)") == get(" wheel( hub = 3 ) ") == wheel != get("wheel")
    assert label(wheel) == "wheel(hub=3)"
    assert label(Wheel(hub=0)) == "wheel"
    assert info("wheel(hub=3)") is info(Wheel) is info(wheel)


def test_parameters_are_part_of_what_is_remembered() -> None:
    first = compile("star", "allreduce", 4)
    assert compile("star(hub=0)", "allreduce", 4) is first
    other = compile("star(hub=1)", "allreduce", 4)
    assert other is not first
    assert other.topology == "star(hub=1)"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rnig", "did you mean ring"),
        ("nothing like it", "there are direct,"),
        ("wheel(hob=3)", "wheel has the parameters: hub"),
        ("ring(hub=3)", "ring has the parameters: none"),
        ("wheel(3)", "write name(parameter=value, ...)"),
        ("wheel(hub=open('x'))", "write name(parameter=value, ...)"),
        ("wheel(hub=", "write name(parameter=value, ...)"),
    ],
)
def test_what_is_no_topology_is_refused(text: str, words: str) -> None:
    with pytest.raises(TopologyError) as caught:
        get(text)
    assert words in str(caught.value)


def test_refused_too() -> None:
    with pytest.raises(TopologyError, match="decorate it"):
        get(3)
    with pytest.raises(TopologyError, match="ring has no alltoall; topologies that have it: direct"):
        compile("ring", "alltoall", 2)
    with pytest.raises(TopologyError, match="root 2 is out of range for 2 ranks"):
        compile("ring", "broadcast", 2, root=2)
    with pytest.raises(TopologyError, match="0 ranks"):
        compile("ring", "broadcast", 0)


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

    with pytest.raises(TopologyError, match="Own: parameters are annotated fields"):

        @topology("own")
        class Own:
            def __init__(self, hub: int = 0) -> None: ...
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
    assert row.doc == "Everything by way of one rank."
    assert compile("pair(middle=1)", "allreduce", 2).topology == "pair(middle=1)"
    with pytest.raises(TopologyError, match="defines pair"):
        load(f"{file}:pear")
    with pytest.raises(TopologyError, match="there is no file"):
        load(f"{tmp_path / 'other.py'}:pair")
    file.write_text(FILE.format(name="ring"))
    with pytest.raises(TopologyError, match="'ring' is already registered by"):
        load(f"{file}:ring")


def test_an_edited_file_replaces_its_own_topology(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(name="pair"))
    before = compile(load(str(file)), "allreduce", 3)
    file.write_text(FILE.format(name="pair").replace("p[self.middle, c] = p.sum", "p[self.middle + 1, c] = p.sum"))
    load(str(file))
    assert compile("pair", "allreduce", 3) != before


def test_a_file_that_is_loaded_again_keeps_its_instances_until_it_is_edited(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(name="pair_kept"))
    one, other = load(str(file)), load(f"{file}:pair_kept(middle=1)")
    assert (compile(one, "allreduce", 2), compile(other, "allreduce", 2)) == (
        compile("pair_kept", "allreduce", 2),
        compile("pair_kept(middle=1)", "allreduce", 2),
    )
    file.write_text(FILE.format(name="pair_kept") + "# edited")
    assert info(load(str(file))).name == "pair_kept"
    with pytest.raises(TopologyError, match="Pair has been defined anew since this one was made"):
        compile(one, "allreduce", 2)


def test_files_of_the_same_name_in_different_folders_are_different(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(FILE.format(name=f"pair_{folder}"))
        assert label(load(str(tmp_path / folder / "mine.py"))) == f"pair_{folder}"
    (tmp_path / "two" / "mine.py").write_text(FILE.format(name="pair_one"))
    with pytest.raises(TopologyError, match=r"'pair_one' is already registered by .*one/mine.py:Pair"):
        load(str(tmp_path / "two" / "mine.py"))


def test_importing_defines_and_does_no_more() -> None:
    """No topology is loaded, and nothing heavy, until a name is asked for."""
    code = (
        "import sys, pycollective.schedule as s; "
        "assert not any(n.startswith('pycollective.topologies') for n in sys.modules); "
        "assert not {'numpy', 'matplotlib'} & set(sys.modules); "
        "s.names(); assert 'pycollective.topologies.ring' in sys.modules; "
        "assert not {'numpy', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
