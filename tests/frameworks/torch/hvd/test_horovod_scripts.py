"""Scripts written for Horovod run unchanged: `python -m pycollective.horovod script.py`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import pycollective
import pycollective.horovod
from labs import needs_mpi
from launch import launch, run_command
from pycollective.horovod import installation

torch: Any = pytest.importorskip("torch")
THROUGH = "pycollective.horovod"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

SHORT = """
import sys
import torch
import horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.arange(3.0) + hvd.rank(), op=hvd.Sum)
print(hvd.rank(), hvd.size(), total.tolist(), sys.argv[1:])
"""


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("mpirun", marks=needs_mpi)])
def test_a_script_under_other_launchers(launcher: str) -> None:
    options = {"launcher": launcher, "through": THROUGH, "loaded": ["torch"]}
    ran = launch(2, SHORT, "--lr", "1", env=ONE_THREAD, timeout=120, **options).check()
    assert ran.outputs == [f"{r} 2 [1.0, 3.0, 5.0] ['--lr', '1']\n" for r in range(2)]


RUN = """
import os, sys
sys.modules[sys.argv[1]] = None  # cannot be imported

import horovod

OFFSET = 5


class Answer:
    def __init__(self, value):
        self.value = value


def task(a, b=0):
    return Answer((os.environ["PYCOLLECTIVE_RANK"], os.environ["PYCOLLECTIVE_SIZE"], a + b + OFFSET, sys.argv[2:]))


if __name__ == "__main__":
    print([answer.value for answer in horovod.run(task, (1,), {"b": 2}, num_proc=2)])
"""


@pytest.mark.parametrize("hidden", ["cloudpickle", "nothing"])
def test_horovod_run_starts_ranks_and_returns_what_they_return(hidden: str) -> None:
    if hidden != "cloudpickle":
        pytest.importorskip("cloudpickle")
    ran = launch(1, RUN, hidden, "x", through=THROUGH, launcher="alone").check()
    assert ran.outputs == ["[('0', '2', 8, ['x']), ('1', '2', 8, ['x'])]\n"]


SPAWNED = """
import sys
import torch
import horovod
import horovod.torch as hvd
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        import horovod.common.exceptions

        return i, int(hvd.is_initialized()), int(horovod.__version__ == "0.28.1")


if __name__ == "__main__":
    hvd.init()
    for how in sys.argv[1:]:
        for batch in DataLoader(Rows(), batch_size=4, num_workers=1, multiprocessing_context=how):
            print(how, [part.tolist() for part in batch])
"""


def test_workers_of_a_loader_find_it_however_they_start() -> None:
    ran = launch(1, SPAWNED, "fork", "spawn", "forkserver", through=THROUGH, launcher="alone", env=ONE_THREAD).check()
    initialized = {"fork": 1, "spawn": 0, "forkserver": 0}
    rows = [f"{how} [[0, 1, 2, 3], {[value] * 4}, [1, 1, 1, 1]]" for how, value in initialized.items()]
    assert ran.outputs[0].splitlines() == rows


# -- without ranks ---------------------------------------------------------------------------------------------


@pytest.fixture
def installed() -> Iterator[None]:
    """In this process; afterwards nothing of it remains."""
    before, path = set(sys.modules), list(sys.path)
    finders = list(sys.meta_path)
    pycollective.horovod.install()
    yield
    sys.path[:], sys.meta_path[:] = path, finders
    for name in [name for name in sys.modules if name.split(".")[0] == "horovod" and name not in before]:
        del sys.modules[name]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("horovod", "__version__ run"),
        ("horovod.torch", "init rank allreduce Average elastic DistributedOptimizer SyncBatchNorm Compression"),
        ("horovod.torch.mpi_ops", "allreduce_async_ synchronize poll Adasum rocm_built HorovodInternalError"),
        ("horovod.torch.functions", "broadcast_parameters broadcast_optimizer_state broadcast_object allgather_object"),
        ("horovod.torch.optimizer", "DistributedOptimizer"),
        ("horovod.torch.compression", "Compression"),
        ("horovod.torch.sync_batch_norm", "SyncBatchNorm"),
        ("horovod.torch.elastic", "run TorchState ElasticSampler"),
        ("horovod.torch.elastic.state", "TorchState"),
        ("horovod.torch.elastic.sampler", "ElasticSampler"),
        ("horovod.common", ""),
        ("horovod.common.exceptions", "HorovodInternalError HostsUpdatedInterrupt HorovodVersionMismatchError"),
        ("horovod.common.util", "extension_available gpu_available mpi_built gloo_built nccl_built split_list"),
        ("horovod.common.basics", "HorovodBasics"),
        ("horovod.common.process_sets", "ProcessSet global_process_set add_process_set remove_process_set"),
        ("horovod.common.elastic", "run_fn State ObjectState"),
        ("horovod.runner", "run"),
        ("horovod.runner.common.util.env", "get_env_rank_and_size"),
    ],
)
def test_what_scripts_import_exists(module: str, names: str) -> None:
    there = importlib.import_module(module)
    assert not [name for name in names.split() if not hasattr(there, name)]
    assert sys.modules[module] is there


@pytest.mark.usefixtures("installed")
def test_modules_under_both_names_are_the_same() -> None:
    """Otherwise an exception of one could not be caught as that of the other, and there would be two worlds."""
    import pycollective.torch as ours
    from pycollective.torch.elastic import state

    theirs = importlib.import_module("horovod.torch")
    assert theirs is ours and importlib.import_module("horovod.torch.elastic.state") is state
    exceptions = importlib.import_module("horovod.common.exceptions")
    assert exceptions.HorovodInternalError is ours.HorovodInternalError
    assert ours.__name__ == "pycollective.torch" and ours.__spec__.name == "pycollective.torch"
    assert importlib.import_module("horovod").torch is ours


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("module", ["horovod.spark", "horovod.torch.nothing", "horovod.common.nothing"])
def test_missing_names_are_reported(module: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{module}'"):
        importlib.import_module(module)
    assert importlib.util.find_spec(module) is None


@pytest.mark.usefixtures("installed")
def test_helpers_of_horovod_common(monkeypatch: pytest.MonkeyPatch) -> None:
    util = importlib.import_module("horovod.common.util")
    assert util.split_list(list(range(7)), 3) == [[0, 1, 2], [3, 4], [5, 6]]
    assert util.split_list([1], 2) == [[1], []]
    assert [n for n in range(9) if util.num_rank_is_power_2(n)] == [1, 2, 4, 8]
    assert util.extension_available("torch") and not util.extension_available("numpy")
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match=r"horovod.numpy: pycollective has no binding for numpy"):
        util.check_extension("horovod.numpy", "HOROVOD_WITH_NUMPY", __file__)
    monkeypatch.setitem(sys.modules, "mxnet", None)  # it is not found, even where it is installed
    with pytest.raises(ImportError, match=r"horovod\.mxnet: mxnet is not installed"):
        util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__)
    versions = ["2.13.0+cpu", "2.9.1", "2.10.0", "2.10.0a0", "3.0"]
    newer = [util.is_version_greater_equal_than(version, "2.10.0") for version in versions]
    assert newer == [True, False, True, False, True]
    with pytest.raises(ValueError, match=r"target='2.10' is not of the form 1\.2\.3"):
        util.is_version_greater_equal_than("2.10.0", "2.10")
    assert util.is_version_greater_equal_than("2.10", "2.10.0")
    with pytest.raises(ValueError, match="versions must be strings, not 2"):
        util.is_version_greater_equal_than(2, "2.10.0")
    path = os.environ["PATH"]
    with util.env(PATH=None, PYCOLLECTIVE_TEST="x"):  # None: unchanged
        assert (os.environ["PATH"], os.environ["PYCOLLECTIVE_TEST"]) == (path, "x")
    assert os.environ["PATH"] == path and "PYCOLLECTIVE_TEST" not in os.environ
    calls: list[int] = []
    cached = util._cache(lambda value: calls.append(value) or value)
    assert [cached(1), cached(1), cached(2)] == [1, 1, 2] and calls == [1, 2]
    assert util.get_extension_full_path("/a/b.py", "c", "d") == f"/a/c/d{util.get_ext_suffix()}"
    assert util._check_extension_lambda("torch", lambda hvd: hvd.mpi_built(), "built with MPI", False) is not None
    assert util._check_extension_lambda("numpy", lambda hvd: True, "there", False) is None
    chosen = util.get_average_backwards_compatibility_fun(importlib.import_module("horovod.torch"))
    assert chosen(None, None) == 0
    with pytest.raises(ValueError, match="needs the name of an extension module"):
        util.get_extension_full_path("/a/b.py")
    assert util.is_iterable("abc") and util.is_iterable({}) and not util.is_iterable(3)
    assert not util.gpu_available("numpy") and not util.gpu_available("tensorflow")
    with pytest.warns(DeprecationWarning):
        assert chosen(None, False) == 1
    thread = importlib.import_module("horovod.runner.util.threads").in_thread(calls.append, (3,))
    thread.join()
    assert calls == [1, 2, 3]
    basics = importlib.import_module("horovod.common.basics").HorovodBasics(__file__, "mpi_lib_v2")
    basics.init()
    try:
        assert (basics.rank(), basics.size(), basics.is_initialized()) == (0, 1, True)
    finally:
        basics.shutdown()
        pycollective.shutdown()
    with pytest.raises(AttributeError, match="no attribute 'ranks'"):
        _ = basics.ranks


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"PYCOLLECTIVE_RANK": "2", "PYCOLLECTIVE_SIZE": "4"}, (2, 4)),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "3", "PMI_RANK": "1", "PMI_SIZE": "2"}, (0, 3)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"PMI_RANK": "1"}, "only one of PMI_RANK and PMI_SIZE is set"),
    ],
)
def test_rank_and_size_of_the_launchers_variables(variables: dict[str, str], expected: object) -> None:
    env = importlib.import_module("horovod.runner.common.util.env")
    with mock.patch.dict(os.environ, variables, clear=True):
        if isinstance(expected, str):
            with pytest.raises(RuntimeError, match=expected):
                env.get_env_rank_and_size()
        else:
            assert env.get_env_rank_and_size() == expected


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    expected = rf"no site-packages folder of this Python can be written: {file}.*: Not a directory"
    with pytest.raises(RuntimeError, match=expected):
        installation.install(file / "site-packages")


def test_a_horovod_that_is_imported_already_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "horovod.py").write_text("torch = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    theirs = importlib.import_module("horovod")
    try:
        with pytest.raises(ImportError, match=r"imported already, from .*horovod\.py: call .*install\(\) first"):
            pycollective.horovod.install()
        assert sys.modules["horovod"] is theirs and sys.meta_path == finders
    finally:
        del sys.modules["horovod"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"hosts": "a:1", "num_proc": 2}, "-np 2 is more than the 1 slots"),
        ({"hosts": "a", "hostfile": "b"}, "hosts and hostfile exclude each other"),
        ({"hosts": "a", "use_mpi": True}, "started without MPI"),
        ({"np": 0}, "num_proc=0 is not a number of ranks"),
        ({"use_gloo": True, "use_mpi": True}, "exclude each other"),
        ({"max_np": 1}, "max_num_proc is for elastic jobs: it needs host_discovery_script or min_num_proc"),
        ({"slots": 1}, "slots needs host_discovery_script"),
        ({"host_discovery_script": "x", "hosts": "a"}, "host_discovery_script replaces hosts and hostfile"),
        ({"num_proc": 2, "min_num_proc": 3}, "each must be at most the next"),
        ({"min_num_proc": 1, "cooldown_range": (2, 1)}, "a cool-down of 2 to 1 seconds"),
        ({"output_filename": "x"}, "does not take output_filename here"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_horovod_run_refuses_what_it_cannot_do(words: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        pycollective.horovod.run(print, (), {}, **words)


def test_older_names_of_arguments_are_deprecated() -> None:
    for name, new in (("np", "num_proc"), ("min_np", "min_num_proc"), ("max_np", "max_num_proc")):
        sentence = f"^{name} is deprecated, use {new} instead"
        with pytest.warns(DeprecationWarning, match=sentence), pytest.raises(ValueError, match="not take mpi_args"):
            pycollective.horovod.run(print, mpi_args="x", **{"min_num_proc": 1, name: 1})


def test_horovod_run_reports_a_failed_rank() -> None:
    with pytest.raises(RuntimeError, match="a rank failed, see its output; exit code 7"):
        pycollective.horovod.run(sys.exit, (7,), num_proc=2, use_gloo=True, hosts="localhost:2")


# -- the command line ------------------------------------------------------------------------------------------


def test_the_script_sees_what_python_would_show_it_and_its_exit_code_is_passed_on(tmp_path: Path) -> None:
    folder = tmp_path.resolve() / "a"
    folder.mkdir()
    (folder / "beside.py").write_text("")
    (folder / "b.py").write_text("import beside, sys; print(sys.argv, __name__, __file__, sys.path[0]); sys.exit(5)\n")

    def command(place: Path, *words: str, option: str = "-u") -> subprocess.CompletedProcess[str]:
        return run_command(sys.executable, option, "-m", THROUGH, *words, cwd=place, code=None)

    ran = command(tmp_path, "a/b.py", "-x", "--help")
    assert ran.stdout == f"['a/b.py', '-x', '--help'] __main__ a/b.py {folder}\n", ran.stderr
    assert ran.returncode == 5
    ran = command(folder, "-m", "b", "y")
    assert ran.stdout == f"['{folder}/b.py', 'y'] __main__ {folder}/b.py {folder}\n", ran.stderr
    assert ran.returncode == 5
    if sys.version_info >= (3, 11):
        assert "No module named 'beside'" in command(tmp_path, "a/b.py", option="-P").stderr
