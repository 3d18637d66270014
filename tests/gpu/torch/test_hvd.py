"""pycollective.torch on CUDA tensors: the GPU's side of everything between a tensor and the kernels.

torch here has no CUDA. In the ranks of these tests every CPU tensor counts as one on device 0 (the emulated device
reads all memory of its process), and where a torch stream would wait for a result, the host does. With `-m gpu` the
tensors are CUDA tensors.
"""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hvd import run, with_ranks  # noqa: E402
from opt import small, together  # noqa: E402

from gpu import emulation  # noqa: E402
from gpu.torch import standin  # noqa: E402
from pycollective.comm.arguments import arrays as host_arrays  # noqa: E402
from pycollective.comm.cuda import arrays  # noqa: E402
from pycollective.comm.cuda.runtime import load  # noqa: E402
from pycollective.engine import Engine, jobs  # noqa: E402
from pycollective.engine.device import EngineStream  # noqa: E402
from pycollective.hvd.basics import engine_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("cuda")]


def use_cuda() -> None:
    """Make new tensors CUDA tensors, or count as such."""
    emulation.install()
    if emulation.on_device():
        torch.set_default_device("cuda")
        torch.backends.cudnn.deterministic = True
    else:
        _stand_in()


def _stand_in() -> None:
    others, others_stream, others_like = host_arrays.on_device, arrays._current_stream, arrays.new_like

    def view(_torch: Any, x: Any, stream: int, what: str) -> arrays.View:
        assert x.is_contiguous(), what
        return arrays.View(x.data_ptr(), tuple(x.shape), str(x.dtype).removeprefix("torch."), 0, True, x)

    patches = {
        "_current_stream": lambda x: 0 if isinstance(x, torch.Tensor) else others_stream(x),
        "_view_of_tensor": view,
        "new_like": lambda x, shape, stream: (
            torch.empty(shape, dtype=x.dtype) if isinstance(x, torch.Tensor) else others_like(x, shape, stream)
        ),
        "keep_for": lambda x, stream: load().synchronize(stream),
    }
    for name, patch in patches.items():
        setattr(arrays, name, patch)
    host_arrays.on_device = lambda x: isinstance(x, torch.Tensor) or others(x)
    jobs._needs_no_check = lambda item: False  # sees that the memory is the CPU's
    Engine.reduce_group = lambda *_: None  # type: ignore[method-assign]  # so does the core
    torch.from_dlpack = standin.over


@with_ranks(2, 3)
def test_operations(hvd: Any) -> None:
    use_cuda()
    rank, size = hvd.rank(), hvd.size()
    x = torch.arange(10.0).reshape(5, 2) + rank
    mean = torch.arange(10.0).reshape(5, 2) + (size - 1) / 2
    torch.testing.assert_close(hvd.allreduce(x), mean)
    assert hvd.allreduce_(x.clone(), op=hvd.Sum)[0, 0] == sum(range(size))
    assert hvd.allreduce(x, op=hvd.Max)[0, 0] == size - 1
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        torch.testing.assert_close(hvd.allreduce(x, compression=compression), mean)
    many = [torch.full((n,), rank + 1.0) for n in (1, 300, 0, 7)]
    for found in hvd.grouped_allreduce(many, op=hvd.Sum):
        assert (found == size * (size + 1) / 2).all()
    assert hvd.grouped_allreduce_(many, op=hvd.Sum)[1] is many[1] and (many[1] == size * (size + 1) / 2).all()
    rows = hvd.allgather(torch.full((rank + 1, 2), rank))[:, 0]
    assert rows.tolist() == [r for r in range(size) for _ in range(r + 1)]
    assert (hvd.broadcast(x, root_rank=size - 1) == torch.arange(10.0).reshape(5, 2) + size - 1).all()
    assert (hvd.broadcast_(x.clone(), root_rank=0)[0] == torch.tensor([0.0, 1.0])).all()
    received, rows = hvd.alltoall(torch.arange(2 * size), torch.tensor([2] * size))
    assert received.tolist() == [2 * rank, 2 * rank + 1] * size and rows.tolist() == [2] * size
    assert hvd.reducescatter(torch.ones(size, 3), op=hvd.Sum).tolist() == [[size] * 3]
    handles = [hvd.allreduce_async(torch.full((4,), float(i)), name=f"number {i}") for i in range(20)]
    assert [float(hvd.synchronize(handle)[0]) for handle in handles] == list(range(20))
    same = torch.full((3,), 2.0)
    assert hvd.allreduce(same, op=hvd.Adasum).tolist() == [2.0] * 3
    rows_of = torch.sparse_coo_tensor([[rank]], torch.ones(1, 2), (size, 2))
    assert (hvd.sparse_allreduce_async(rows_of, "sparse", hvd.Sum)().to_dense() == 1).all()
    x.requires_grad_()
    hvd.allreduce(x, op=hvd.Sum).sum().backward()
    assert (x.grad == size).all()
    assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}


@with_ranks(2)
def test_a_mismatch_is_raised_on_all_ranks(hvd: Any) -> None:
    use_cuda()
    with pytest.raises(RuntimeError, match="on a GPU"):
        hvd.allreduce(torch.ones(3 + hvd.rank()), name="x")
    assert (hvd.allreduce(torch.ones(3)) == 1).all()


def _train(hvd: Any, on_gpu: bool) -> bytes:
    """Weights after training runs: with gradients packed, and in windows."""
    spans = []
    if on_gpu:
        use_cuda()
        reduce_span = EngineStream._reduce_span
        EngineStream._reduce_span = lambda stream, span: (spans.append(len(span)), reduce_span(stream, span))
    found = []
    for set_to_none in (True, False):
        model = small(torch.float32)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        found.append(together(hvd, adam, model=model, set_to_none=set_to_none).cpu())
    if on_gpu and engine_of(hvd.global_process_set).settings.fusion_threshold > 0:
        stream = engine_of(hvd.global_process_set)._stream
        assert stream is not None and stream._buffer is not None, "nothing passed through the GPU's fusion buffer"
        assert max(spans) > 1, "nothing was reduced in windows, or no adjacent arrays together"
    return b"".join(weights.numpy().tobytes() for weights in found)


def adam(model: Any) -> Any:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def test_fusion_changes_no_bit_of_a_training() -> None:
    fused, other = run(2, _train, True)
    assert fused == other == run(2, _train, True, env={"HOROVOD_FUSION_THRESHOLD": "0"})[0]
    if not emulation.on_device():  # its cuDNN rounds differently
        assert fused == run(2, _train, False)[0]


@with_ranks(2)
def test_the_state_of_an_optimizer_reaches_ranks_that_have_none(hvd: Any) -> None:
    use_cuda()
    model = small(torch.float32)
    optimizer = adam(model)
    if hvd.rank() == 0:
        sum(p.sum() for p in model.parameters()).backward()  # gradients of one
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert all((state["exp_avg"] == 0.1).all() and state["step"] == 1 for state in optimizer.state.values())
    assert len(optimizer.state) == len(list(model.parameters()))
