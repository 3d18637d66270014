"""Commits in a file: a job that ends is restarted, on other ranks, and continues from the last one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hvd import job, run

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.torch
STEPS, ROWS = 9, 12  # ROWS: per step, on all ranks together


def parts(hvd: Any) -> Any:
    """A state with every kind of part."""
    torch.manual_seed(5)
    model = torch.nn.Linear(3, 1).double()
    plain = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    sampler = hvd.elastic.ElasticSampler(range(STEPS * ROWS), shuffle=False)
    return hvd.elastic.TorchState(model, optimizer, schedule=schedule, sampler=sampler, step=0, seen={"steps": []})


def train(hvd: Any, state: Any, fails_in: int | None) -> None:
    """To the end, with a commit every second step, or until it fails."""
    indices = list(state.sampler)
    for i in range(0, len(indices), ROWS // hvd.size()):
        if state.step == fails_in:
            raise KeyError("no more")
        batch = indices[i : i + ROWS // hvd.size()]
        x = torch.tensor([[k, k * k % 7, 1] for k in batch], dtype=torch.float64) / 50
        state.optimizer.zero_grad()
        (state.model(x) - x.sin().sum(1, keepdim=True)).pow(2).mean().backward()
        state.optimizer.step()
        state.schedule.step()
        state.sampler.record_batch(i, len(batch))
        state.seen["steps"].append((state.step, hvd.size()))
        state.step += 1
        if state.step % 2 == 0:
            state.commit()


def _part_of_it(hvd: Any, fails_in: int | None) -> Any:
    state, sizes = parts(hvd), []
    state.register_reset_callbacks([lambda: sizes.append(hvd.size())])
    try:
        hvd.elastic.run(lambda state: train(hvd, state, fails_in))(state)
    except KeyError:
        return None
    state.step += 1  # not committed
    assert hvd.elastic.run(lambda state: state.step)(state) == STEPS + 1  # the file is only for the beginning
    weights = torch.cat([p.detach().flatten() for p in state.model.parameters()])
    assert torch.equal(weights, hvd.broadcast(weights, 0))
    return state.seen["steps"], sizes, weights.tolist()


def test_continues_with_more_ranks_and_with_fewer(tmp_path: Path) -> None:
    file = {"PYCOLLECTIVE_ELASTIC_FILE": str(tmp_path / "commits")}
    ((steps, sizes, expected),) = run(1, _part_of_it, None, reuse=False)
    assert steps == [(step, 1) for step in range(STEPS)] and sizes == []
    assert not list(tmp_path.iterdir())  # none is requested
    assert run(2, _part_of_it, 5, env=file, reuse=False) == [None] * 2
    assert run(4, _part_of_it, 7, env=file, reuse=False) == [None] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["commits"]
    for steps, sizes, weights in run(3, _part_of_it, None, env=file, reuse=False):
        assert steps == [(0, 2), (1, 2), (2, 2), (3, 2), (4, 4), (5, 4), (6, 3), (7, 3), (8, 3)]
        assert sizes == [3]
        assert max(abs(a - b) for a, b in zip(weights, expected, strict=True)) < 1e-12


def _other_parts(hvd: Any) -> str:
    state = hvd.elastic.TorchState(torch.nn.Linear(3, 1).double(), None, step=0)
    try:
        hvd.elastic.run(lambda state: None)(state)
    except (ValueError, hvd.HorovodInternalError) as error:
        return str(error)
    return ""


def test_a_file_of_another_state(tmp_path: Path) -> None:
    file = tmp_path / "commits"
    torch.save({"ranks": 2, "state": {"values": {"step": 3}, "parts": {"network": {}}}}, file)
    with job(2, _other_parts, env={"PYCOLLECTIVE_ELASTIC_FILE": str(file)}) as ranks:
        message = ranks.outcomes()[0].value
    assert message == "the file has parts ['network'], the state ['model']"


class _Malice:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def _strangers_files(hvd: Any, folder: str) -> None:
    """Each would create a folder when unpickled."""
    state = hvd.elastic.TorchState(step=0)
    content, made = {"ranks": 1, "state": {"values": {"step": _Malice(f"{folder}/made")}}}, Path(folder, "made")
    own = Path(folder, "own")
    torch.save(content, own)
    own.chmod(0o660)
    link = Path(folder, "link")
    link.symlink_to(own)
    others = [own, link]
    if os.geteuid() == 0:
        others.append(Path(folder, "others"))
        torch.save(content, others[-1])
        os.chown(others[-1], 65534, 65534)
    for file in others:
        os.environ["PYCOLLECTIVE_ELASTIC_FILE"] = str(file)
        with pytest.raises(PermissionError, match=f"{file} is not read"):
            hvd.elastic.run(lambda state: None)(state)
    assert not made.exists()
    os.environ["PYCOLLECTIVE_ELASTIC_FILE"] = f"{folder}/kept"
    state.commit()
    assert Path(folder, "kept").stat().st_mode & 0o777 == 0o600


def test_files_that_others_may_have_written_are_not_unpickled(tmp_path: Path) -> None:
    run(1, _strangers_files, str(tmp_path), reuse=False)
