"""The labs: each runs, and what it concludes is plausible. Those with many processes run only if COURSE is set."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import notebooks
from labs import GIVEN, HERE, long, measured
from launch import run_command

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")


def test_gradient_descent(tmp_path):
    found = measured("lab1_gradient_descent", tmp_path, "--ranks", "3")
    assert found["full"]["steps"] < found["mini"]["steps"] < found["single"]["steps"]
    assert found["full"]["images"] > found["mini"]["images"]
    assert found["kept"] == pytest.approx(found["theory"], rel=0.02)
    assert found["ranks"] == 3 and found["difference"] < 1e-12


def test_model_parallel(tmp_path):
    found = measured("model_parallel", tmp_path)
    assert found["difference"] == 0 and found["accuracy"] > 0.8


def test_pipeline_parallel(tmp_path):
    found = measured("pipeline_parallel", tmp_path, "--ranks", "3")
    assert found["difference"] == 0
    assert found["gpipe"]["stored"] == 8 and found["other"]["stored"] == 3
    assert found["theory"] == pytest.approx(2 / 10) and 0 < found["gpipe"]["bubble"] < 1


def test_centralised(tmp_path):
    found = measured("centralised", tmp_path, "--ranks", "4")
    table = found["table"]
    assert table["star"]["busiest_rank"] == 6 and table["star"]["busiest_link"] == 1  # 2 (n - 1): in and out of the hub
    assert table["ring"]["busiest_rank"] == table["ring"]["mean_rank"] == 3  # 4 (n - 1) / n
    assert table["direct"]["busiest_link"] == 0.5  # 2 / n
    assert table["gossip"]["busiest_rank"] == 2  # one neighbour is read, and one reads
    for method, row in table.items():  # how old the gradients of the asynchronous one are depends on the machine
        assert row["percent"][0] > (60 if method == "asynchronous star" else 90), (method, row)
    assert sum(found["staleness"].values()) > 0 and found["stale"] > 0


@long
def test_gossip(tmp_path):
    found = measured("gossip", tmp_path)
    assert found["predicted"]["ring"] == pytest.approx(0.8047, abs=1e-4)
    for name, rate in found["predicted"].items():
        assert abs(found["measured"][name] - rate) < max(2e-3, 4 * found["uncertain"][name])
    reduced, *others = (sum(runs) / len(runs) for runs in found["accuracies"].values())
    assert reduced > 0.9 and min(others) > reduced - 0.02


@pytest.mark.skipif(GIVEN != "1", reason="takes a minute: set COURSE=1")
@pytest.mark.timeout(300)
def test_gossip_on_8_ranks_reaches_the_accuracy_of_allreduce(tmp_path):
    accuracies = measured("gossip", tmp_path, quick=False)["accuracies"]
    reduced, *others = (sum(runs) / len(runs) for runs in accuracies.values())
    assert len(others) == 7 and all(len(runs) == 5 for runs in accuracies.values())  # graphs, seeds
    assert all(abs(other - reduced) <= 0.005 for other in others)


def test_wrong_options_are_refused(tmp_path):
    script = HERE / "lab1_gradient_descent.py"
    for words, text in ((["--ranks", "0"], "0 is less than 1"), (["--data", "mnist"], "'mnist' is not one of digits")):
        assert text in run_command(sys.executable, script, *words, code=2, cwd=tmp_path).stderr


@long
@pytest.mark.torch
def test_loss_landscape(tmp_path):
    pytest.importorskip("torch")
    found = measured("lab1_loss_landscape", tmp_path)
    assert found["better"]["without"] < found["better"]["with"]
    assert all(ratio > 1 for ratio in found["wide"])
    assert found["rise"][0] < found["rise"][1]


@long
@pytest.mark.torch
def test_distributed(tmp_path):
    pytest.importorskip("torch")
    found = measured("lab2_distributed", tmp_path)
    assert found["same"] is True
    assert "rank 0" in found["error"] and "the last" in found["joined"]
    assert found["seen"] == pytest.approx(0.75, abs=0.02)  # 1 - (1 - 1/2)^2


@long
@pytest.mark.torch
def test_iteration(tmp_path):
    pytest.importorskip("torch")
    found = measured("lab2_iteration", tmp_path)
    assert 1 <= found["allreduces"] <= found["layers"] == 5
    assert min(found["stages"]) > 0 and found["earlier"] > 0 and found["waited"] >= 0
    assert sum(found["stages"]) <= found["fastest"] * 1.001  # those of rank 0, of an iteration of both


@long
@pytest.mark.torch
def test_scaling(tmp_path):
    pytest.importorskip("torch")
    found = measured("lab2_scaling", tmp_path)
    assert found["most"] == 4096 and 0 <= found["error"] < 0.1  # the formulas against the simulator
    for one in found["predicted"].values():
        assert one["hidden"][0] == one["shown"][0] == 100
        assert all(0 < shown <= hidden <= 100 for hidden, shown in zip(one["hidden"], one["shown"], strict=True))
    assert found["predicted"]["ring, small"]["shown"][-1] < found["predicted"]["tree, small"]["shown"][-1]


@long
def test_learning_rates(tmp_path):
    found = measured("lab3_learning_rates", tmp_path)
    fixed = np.mean(found["accuracy"]["fixed"], 1)
    assert fixed[0] - fixed[-1] > 0.05
    assert found["share"] > 0.5 and found["sizes"][-1] in found["failing"]
    assert found["rounding"] < 1e-5


@long
def test_batch_norm(tmp_path):
    found = measured("lab3_batch_norm", tmp_path)
    assert np.mean(found["accuracy"]["synchronised"]) > np.mean(found["accuracy"]["none"]) + 0.2


@long
def test_optimizers(tmp_path):
    found = measured("lab3_optimizers", tmp_path)
    assert all(gain > 10 for gain in found["gains"].values())


@long
def test_steps_to_target(tmp_path):
    found = measured("lab3_steps_to_target", tmp_path)
    assert found["first"] > 2 * found["last"]
    assert found["low"] <= found["scale"] <= found["high"]


@long
def test_data_size(tmp_path):
    found = measured("lab3_data_size", tmp_path)
    (low, high), (before, after) = found["exponents"], found["from_to"]
    assert 0.1 < low <= found["b"] <= high and after < before / 2 and found["needed"] > found["full"]


@long
def test_local_rates(tmp_path):
    found = measured("lab3_local_rates", tmp_path)
    assert found["most"] > 10 * found["least"]  # of the layers, by one rate for all
    assert all(first > 10 for first, *_ in found["apart"].values())


def test_each_lab_is_a_notebook():
    pytest.importorskip("jupytext")
    files = [file for file in notebooks.COURSE.glob("[a-z]*.py") if file.stem != "lab"]
    scripts = [file for file in files if "= lab.start(" in file.read_text()]
    assert len(scripts) > 10
    for script in scripts:
        notebook = notebooks.generate(script)
        code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
        compile(code, script.stem, "exec")
        assert "lab.conclude(" in code
